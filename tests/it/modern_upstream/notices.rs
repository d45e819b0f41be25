//! Change notices of a modern upstream reach the GET stream of a legacy client.
//! Spec: BRIDGING §3.4; SPEC M-70 to M-75.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{behind, count, user};
use crate::harness::events::EventStream;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// Whose client watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Legacy,
    Modern,
}

const LISTEN: &str = "subscriptions/listen";
const UPDATED: &str = "notifications/resources/updated";

/// Waits until the upstream has a stream of this session that asks for `what`.
async fn listens(user: &Session, streams: u64) {
    eventually("the upstream is listened to", async || {
        let stats = user.text("stats", json!({})).await;
        let stats: Value = serde_json::from_str(&stats).unwrap();
        let seen = stats["counts"]["subscriptions/listen"].as_u64();
        (seen.unwrap_or(0) >= streams).then_some(())
    })
    .await;
}

async fn next(stream: &mut EventStream, method: &str) -> Value {
    let notice = stream.until(method).await;
    let marks = &notice["params"]["_meta"];
    assert_eq!(marks["io.modelcontextprotocol/subscriptionId"], Value::Null);
    notice
}

#[rstest]
#[tokio::test]
async fn changed_lists_are_announced(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    user.text("echo", json!({})).await;
    let mut stream = user.listen().await;
    listens(&user, 1).await;
    user.text("change_tools", json!({})).await;
    next(&mut stream, "notifications/tools/list_changed").await;
    assert!(user.tools().await.contains(&"extra".to_owned()));
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_subscription_becomes_part_of_the_filter(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let mut stream = user.listen().await;
    let one = json!({"uri": "stub://static/1"});
    let two = json!({"uri": "stub://static/2"});
    for uri in [&one, &two] {
        let reply = user.request("resources/subscribe", uri.clone()).await;
        assert_eq!(reply, Ok(json!({})));
    }
    for uri in [&one, &two] {
        user.text("touch_resource", uri.clone()).await;
        let notice = next(&mut stream, UPDATED).await;
        assert_eq!(notice["params"]["uri"], uri["uri"], "{notice}");
    }
    let reply = user.request("resources/unsubscribe", one.clone()).await;
    assert_eq!(reply, Ok(json!({})));
    listens(&user, 3).await;
    // The upstream refuses a resource that it does not have.
    let foreign = json!({"uri": "other://x"});
    let refused = user.request("resources/subscribe", foreign).await;
    assert_eq!(refused.unwrap_err()["code"], -32602);
    gw.stop().await;
}

// Spec: SPEC O-01: each opening names all URIs again.
#[tokio::test]
async fn uris_added_in_a_row_join_one_filter() {
    const MORE: usize = 40;
    // The wait of `listen/spacing.rs` after an opening with 12 URIs of 8,000 bytes.
    const WAIT: Duration = Duration::from_millis(194);
    let (gw, stub) = behind("http", "").await;
    let stub = stub.expect("it is reached over HTTP");
    let user = user(&gw).await;
    let subscribe = async |uri: String| {
        let reply = user.request("resources/subscribe", json!({"uri": uri}));
        assert_eq!(reply.await, Ok(json!({})));
    };
    join_all((0..12).map(|n| subscribe(format!("stub://{n:07993}")))).await;
    let (before, begun) = (count(&stub, LISTEN).await, Instant::now());
    // After each call one more is asked for, without an answer to the one before.
    let turn = Semaphore::new(0);
    let adding = (0..MORE).map(async |n| {
        turn.acquire().await.unwrap().forget();
        subscribe(format!("stub://{n}")).await;
    });
    let calling = async {
        for _ in 0..MORE {
            user.text("echo", json!({})).await;
            turn.add_permits(1);
        }
    };
    tokio::join!(join_all(adding), calling);
    let waits = begun.elapsed().as_millis() / WAIT.as_millis();
    let openings = u128::from(count(&stub, LISTEN).await - before);
    assert!(openings <= waits + 2, "{openings} openings, {waits} waits");
    gw.stop().await;
}

// A stream that ends properly is opened again after a pause.
#[rstest]
#[tokio::test]
async fn listening_goes_on_after_the_upstream_ends_a_stream(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    user.text("echo", json!({})).await;
    let mut stream = user.listen().await;
    listens(&user, 1).await;
    user.text("end_listens", json!({})).await;
    listens(&user, 2).await;
    user.text("change_prompts", json!({})).await;
    next(&mut stream, "notifications/prompts/list_changed").await;
    gw.stop().await;
}

/// A gateway whose upstream does not admit `subscriptions/listen` yet.
async fn held(carrier: &str) -> (Gateway, Option<HttpStub>) {
    let args = ["--era", "modern", "--hold-listens"];
    if carrier == "stdio" {
        return (Setup::open().stub("stub", &args).start().await, None);
    }
    let stub = HttpStub::start_as(carrier, 0, &args).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    (gw, Some(stub))
}

// Spec: BRIDGING §3.4, SPEC M-75: an upstream announces no change before the subscription: the gateway sends the
// notice.
#[rstest]
#[tokio::test]
async fn a_change_before_the_upstream_was_listened_to_is_announced(
    #[values("stdio", "http", "ws")] carrier: &str,
) {
    let (gw, _stub) = held(carrier).await;
    let user = user(&gw).await;
    let before = user.tools().await;
    let mut stream = user.listen().await;
    listens(&user, 1).await;
    user.text("change_tools", json!({})).await;
    user.text("admit_listens", json!({})).await;
    next(&mut stream, "notifications/tools/list_changed").await;
    assert_ne!(user.tools().await, before);
    gw.stop().await;
}

#[tokio::test]
async fn an_unchanged_list_is_looked_at_again_and_not_announced() {
    let (gw, stub) = held("http").await;
    let stub = stub.unwrap();
    let user = user(&gw).await;
    user.tools().await;
    let mut stream = user.listen().await;
    listens(&user, 1).await;
    assert_eq!(count(&stub, "tools/list").await, 1);
    user.text("admit_listens", json!({})).await;
    eventually("the list is looked at again", async || {
        (count(&stub, "tools/list").await == 2).then_some(())
    })
    .await;
    user.text("change_prompts", json!({})).await;
    let first = stream.message().await.unwrap();
    assert_eq!(first["method"], "notifications/prompts/list_changed");
    // No client has listed prompts, so there is no list that could differ.
    assert_eq!(count(&stub, "prompts/list").await, 0);
    gw.stop().await;
}

// Spec: SPEC D-06: after the restart a change notice is sent, because one may have been missed.
#[tokio::test]
async fn a_child_that_crashed_is_listened_to_again() {
    let (gw, _stub) = behind("stdio", "").await;
    let user = user(&gw).await;
    let mut stream = user.listen().await;
    let uri = json!({"uri": "stub://static/1"});
    let reply = user.request("resources/subscribe", uri).await;
    assert_eq!(reply, Ok(json!({})));
    drop(user.call("crash", json!({})).await);
    let notice = next(&mut stream, UPDATED).await;
    assert_eq!(notice["params"]["uri"], "stub://static/1", "{notice}");
    gw.stop().await;
}

// DESIGN §6: a child with a followed resource is not idle, even without calls.
#[rstest]
#[tokio::test]
async fn a_child_that_is_only_watched_for_a_resource_is_not_idle(
    #[values(Era::Legacy, Era::Modern)] of_client: Era,
) {
    let args = ["--era", "modern", "--no-listchanged"];
    let setup = Setup::secured().toml("[stdio]\nidle = \"200ms\"");
    let gw = setup.stub("stub", &args).start().await;
    let uri = "stub://static/1";
    let alice = gw.principal("alice");
    let legacy = alice.open("/mcp/stub").await;
    let modern = Modern::new(alice, "/mcp/stub");
    let mut stream = None;
    if of_client == Era::Legacy {
        let reply = legacy
            .request("resources/subscribe", json!({"uri": uri}))
            .await;
        assert_eq!(reply, Ok(json!({})));
    } else {
        let wanted = json!({"notifications": {"resourceSubscriptions": [uri]}});
        let request = modern.request(&json!(1), "subscriptions/listen", wanted);
        let mut events = modern.post(&request).await.events();
        events.message().await.expect("an acknowledgement");
        stream = Some(events);
    }
    let pid = async || match of_client {
        Era::Legacy => legacy.text("pid", json!({})).await,
        Era::Modern => {
            let result = modern.call("pid", json!({})).await.unwrap();
            text_of(&result).to_owned()
        }
    };
    let before = pid().await;
    // Another child goes by the same clock, and shows that its time has come.
    let bob = gw.principal("bob").open("/mcp/stub").await;
    bob.text("pid", json!({})).await;
    let running = async || gw.metric("drawbridge_children_running", "").await;
    eventually("the idle one is stopped", async || {
        (running().await < 1.5).then_some(())
    })
    .await;
    assert_eq!(pid().await, before);
    drop(stream);
    gw.stop().await;
}
