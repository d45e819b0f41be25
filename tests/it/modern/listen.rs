//! `subscriptions/listen`. Spec: SPEC M-70 to M-77.

use std::time::Duration;

use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Modern, over_both};
use crate::harness::events::EventStream;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually};

const ID: &str = "io.modelcontextprotocol/subscriptionId";

/// Opens a subscription; its acknowledgement and its stream.
async fn listen(user: &Modern, id: &Value, wanted: Value) -> (Value, EventStream) {
    let params = json!({"notifications": wanted});
    let message = user.request(id, "subscriptions/listen", params);
    let answer = user.post(&message).await.expect(StatusCode::OK).await;
    let mut events = answer.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(ack["params"]["_meta"][ID], *id);
    (ack["params"]["notifications"].clone(), events)
}

async fn stats(user: &Modern) -> Value {
    let stats = user.call("stats", json!({})).await.unwrap();
    serde_json::from_str(text_of(&stats)).unwrap()
}

#[tokio::test]
async fn changes_reach_those_who_asked_for_them() {
    let (gw, _stub) = over_both().await;
    for path in ["/mcp/stub", "/mcp/remote"] {
        let user = Modern::new(gw.anonymous(), path);
        let wanted =
            json!({"toolsListChanged": true, "resourceSubscriptions": ["stub://static/1"]});
        let (honoured, mut first) = listen(&user, &json!("7"), wanted.clone()).await;
        assert_eq!(honoured, wanted);
        let prompts = json!({"promptsListChanged": true});
        let (_, mut second) = listen(&user, &json!(7), prompts).await;
        user.call("change_prompts", json!({})).await.unwrap();
        user.call("change_tools", json!({})).await.unwrap();
        let told = first.message().await.unwrap();
        assert_eq!(told["method"], "notifications/tools/list_changed", "{path}");
        assert_eq!(told["params"]["_meta"][ID], "7");
        let told = second.message().await.unwrap();
        assert_eq!(told["method"], "notifications/prompts/list_changed");
        assert_eq!(told["params"]["_meta"][ID], 7);
        user.call("touch_resource", json!({"uri": "stub://static/1"}))
            .await
            .unwrap();
        let told = first.message().await.unwrap();
        assert_eq!(told["params"]["uri"], "stub://static/1");
        assert_eq!(told["params"]["_meta"][ID], "7");
    }
    gw.stop().await;
}

// Spec: SPEC M-75: to miss no change a client has to subscribe before it lists, so nothing is listed for it again.
#[tokio::test]
async fn a_subscription_makes_nobody_look_again_at_what_was_listed() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("remote", &stub, "").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/remote");
    user.send("tools/list", json!({})).await.unwrap();
    let (_, _events) = listen(&user, &json!(1), json!({"toolsListChanged": true})).await;
    for _ in 0..3 {
        user.call("echo", json!({})).await.unwrap();
    }
    assert_eq!(stub.stats().await["counts"]["tools/list"], 1);
    gw.stop().await;
}

#[tokio::test]
async fn a_merged_endpoint_maps_what_it_tells() {
    let gw = Setup::open()
        .stub("one", &[])
        .stub("two", &[])
        .start()
        .await;
    let user = Modern::new(gw.anonymous(), "/mcp");
    let wanted = json!({
        "toolsListChanged": true,
        "resourceSubscriptions": ["two+stub://static/1", "none+file:///b"],
    });
    let (honoured, mut events) = listen(&user, &json!(1), wanted).await;
    assert_eq!(
        honoured["resourceSubscriptions"],
        json!(["two+stub://static/1"])
    );
    user.call("two__touch_resource", json!({"uri": "stub://static/1"}))
        .await
        .unwrap();
    assert_eq!(
        events.message().await.unwrap()["params"]["uri"],
        "two+stub://static/1"
    );
    user.call("one__change_tools", json!({})).await.unwrap();
    let told = events.message().await.unwrap();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    gw.stop().await;
}

// Spec: SPEC G-03, M-75.
#[tokio::test]
async fn an_upstream_that_never_answers_leaves_out_its_own_resources_alone() {
    let gw = Setup::open()
        .toml("[mcp]\nconnect_wait = \"2s\"")
        .stub("hung", &["--hold-listens"])
        .stub("sound", &[])
        .start()
        .await;
    let user = Modern::new(gw.anonymous(), "/mcp");
    for tool in ["hung__echo", "sound__echo"] {
        user.call(tool, json!({})).await.unwrap();
    }
    // All that it has: one or two are answered by chance before a wait that is over is seen to be.
    let sound: Vec<String> = (1..=5)
        .map(|n| format!("sound+stub://static/{n}"))
        .collect();
    let mut uris: Vec<String> = (1..=100).map(|n| format!("hung+stub://{n}")).collect();
    uris.extend_from_slice(&sound);
    let (honoured, _events) =
        listen(&user, &json!(1), json!({"resourceSubscriptions": uris})).await;
    assert_eq!(honoured, json!({"resourceSubscriptions": sound}));
    gw.stop().await;
}

// Spec: SPEC G-03.
#[tokio::test]
async fn a_subscription_does_not_wait_for_what_another_asks() {
    let gw = Setup::open()
        .toml("[mcp]\nconnect_wait = \"20s\"")
        .stub("hung", &["--hold-listens"])
        .stub("good", &[])
        .start()
        .await;
    let user = Modern::new(gw.anonymous(), "/mcp");
    let hung = json!({"resourceSubscriptions": ["hung+stub://static/1"]});
    let good = json!({"resourceSubscriptions": ["good+stub://static/1"]});
    let other = async {
        eventually("the upstream is asked", async || {
            let stats = user.call("hung__stats", json!({})).await.unwrap();
            let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
            (stats["counts"]["resources/subscribe"] == 1).then_some(())
        })
        .await;
        listen(&user, &json!(2), good.clone()).await
    };
    let id = json!(1);
    tokio::select! {
        biased;
        _ = listen(&user, &id, hung) => panic!("it was not waited for"),
        (honoured, _events) = other => assert_eq!(honoured, good),
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.4: references are counted.
#[tokio::test]
async fn a_resource_is_followed_as_long_as_anybody_follows_it() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let wanted = json!({"resourceSubscriptions": ["stub://static/1"]});
    let (_, first) = listen(&user, &json!(1), wanted.clone()).await;
    let (_, second) = listen(&user, &json!(2), wanted).await;
    assert_eq!(stats(&user).await["counts"]["resources/subscribe"], 1);
    drop(first);
    eventually("one stream is closed", async || {
        (gw.metric("drawbridge_streams_open", "").await < 1.5).then_some(())
    })
    .await;
    assert_eq!(
        stats(&user).await["counts"].get("resources/unsubscribe"),
        None
    );
    drop(second);
    eventually("nobody follows it", async || {
        let counts = &stats(&user).await["counts"];
        (counts["resources/unsubscribe"] == 1).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC M-73.
#[tokio::test]
async fn subscriptions_have_a_cap_of_their_own() {
    let limits = "[limits]\nstreams_per_session = 1\nsubscriptions_per_session = 3";
    let gw = Setup::open().toml(limits).stub("stub", &[]).start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let wanted = json!({"toolsListChanged": true});
    let mut open = Vec::new();
    for id in 1..=3 {
        open.push(listen(&user, &json!(id), wanted.clone()).await);
    }
    let one_more = json!({"notifications": wanted});
    let one_more = user.request(&json!(4), "subscriptions/listen", one_more);
    let refused = user.post(&one_more).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    open.pop();
    eventually("there is room again", async || {
        (user.post(&one_more).await.status() == 200).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC M-71, M-76.
#[tokio::test]
async fn what_cannot_be_told_is_not_honoured() {
    let gw = Setup::open()
        .stub("stub", &["--no-listchanged"])
        .start()
        .await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let all =
        json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true});
    let (honoured, _events) = listen(&user, &json!(1), all).await;
    assert_eq!(honoured, json!({}));
    let too_many = vec!["stub://static/1"; 1025];
    for (params, status, code) in [
        (json!({}), 200, -32602),
        (
            json!({"notifications": {"resourceSubscriptions": too_many}}),
            200,
            -32602,
        ),
        (
            json!({"notifications": {"resourceSubscriptions": [1]}}),
            200,
            -32602,
        ),
        (json!({"notifications": {"taskIds": ["t"]}}), 400, -32021),
    ] {
        let message = user.request(&json!(2), "subscriptions/listen", params);
        let answer = user.post(&message).await;
        assert_eq!(answer.status(), status);
        assert_eq!(answer.error().await["code"], code);
    }
    gw.stop().await;
}

// Spec: BRIDGING §3.4: late upstreams join silently.
#[rstest]
#[tokio::test]
async fn changes_of_an_upstream_that_is_late_are_told_once_it_is_heard(
    #[values("modern", "legacy")] era: &str,
) {
    let stub = HttpStub::start(&["--era", era, "--hold-listens"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let wanted = json!({"toolsListChanged": true});
    let (honoured, mut events) = listen(&user, &json!(1), wanted.clone()).await;
    assert_eq!(honoured, wanted);
    user.call("admit_listens", json!({})).await.unwrap();
    let told = eventually("the late upstream is heard", async || {
        user.call("change_tools", json!({})).await.unwrap();
        let told = tokio::time::timeout(Duration::from_millis(100), events.message());
        told.await.ok().flatten()
    });
    assert_eq!(told.await["method"], "notifications/tools/list_changed");
    gw.stop().await;
}

// Spec: BRIDGING §3.4, SPEC M-74: once the upstream turns out to have no GET stream, an acknowledged subscription ends
// with its result, and later acknowledgements honour nothing.
#[tokio::test]
async fn a_promise_that_cannot_be_kept_is_taken_back() {
    let stub = HttpStub::start(&["--no-get", "--hold-listens"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let wanted = json!({"toolsListChanged": true});
    let (honoured, mut events) = listen(&user, &json!("a"), wanted.clone()).await;
    assert_eq!(honoured, wanted, "nothing is known against it");
    user.call("admit_listens", json!({})).await.unwrap();
    let over = events.message().await.expect("a result");
    assert_eq!(over["id"], "a");
    assert_eq!(over["result"]["resultType"], "complete");
    assert_eq!(events.message().await, None);
    let both = json!({"toolsListChanged": true, "resourceSubscriptions": ["stub://static/1"]});
    let (honoured, _events) = listen(&user, &json!("b"), both).await;
    assert_eq!(honoured, json!({}));
    gw.stop().await;
}

// Spec: SPEC M-74.
#[tokio::test]
async fn a_drain_ends_a_subscription_with_its_result() {
    let mut gw = Setup::open().stub("stub", &[]).start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let wanted = json!({"toolsListChanged": true});
    let (_, mut events) = listen(&user, &json!("x"), wanted).await;
    gw.signal(rustix::process::Signal::TERM);
    let result = events.message().await.expect("a result");
    assert_eq!(result["id"], "x");
    assert_eq!(result["result"]["resultType"], "complete");
    assert_eq!(result["result"]["_meta"][ID], "x");
    assert_eq!(gw.exit().await, Some(0));
}

// Spec: BRIDGING §3.4: references are counted: `resources/subscribe` that was answered too late for the acknowledgement
// is undone, as no subscription counts on it.
#[rstest]
#[tokio::test]
async fn a_subscription_that_comes_too_late_is_ended(
    #[values("stdio", "http")] carrier: &str,
    #[values("session", "principal")] isolation: &str,
) {
    let keys = format!("isolation = {isolation:?}");
    let args = ["--hold-listens"];
    let setup = Setup::secured().toml("[mcp]\nconnect_wait = \"300ms\"");
    let (setup, _stub) = if carrier == "stdio" {
        (setup.stub_with("stub", &args, &keys), None)
    } else {
        let stub = HttpStub::start(&args).await;
        (setup.http("stub", &stub, &keys), Some(stub))
    };
    let gw = setup.start().await;
    let user = Modern::new(gw.principal("alice"), "/mcp/stub");
    user.call("echo", json!({})).await.unwrap();
    let wanted = json!({"resourceSubscriptions": ["stub://static/1"]});
    let (honoured, _events) = listen(&user, &json!(1), wanted.clone()).await;
    assert_eq!(honoured.get("resourceSubscriptions"), None, "{honoured}");
    let counts = stats(&user).await["counts"].clone();
    assert_eq!(counts["resources/subscribe"], 1, "{counts}");
    assert_eq!(counts.get("resources/unsubscribe"), None, "{counts}");
    user.call("admit_listens", json!({})).await.unwrap();
    eventually("nobody follows it", async || {
        let counts = &stats(&user).await["counts"];
        (counts["resources/unsubscribe"] == 1).then_some(())
    })
    .await;
    // A client that subscribes in time has the resource acknowledged.
    let (honoured, _events) = listen(&user, &json!(2), wanted.clone()).await;
    assert_eq!(honoured, wanted);
    gw.stop().await;
}
