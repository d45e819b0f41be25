//! Calls, their streams, and their end with the client. Spec: SPEC M-42, M-43; C-01, C-21.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Modern, over_both};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

fn user(gw: &Gateway) -> Modern {
    Modern::new(gw.anonymous(), "/mcp/stub")
}

#[tokio::test]
async fn a_call_is_answered_whole_when_nothing_comes_before() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = user(&gw);
    let params = json!({"name": "echo", "arguments": {"text": "ä\u{1f600}"}});
    let answer = user
        .post(&user.request(&json!("1"), "tools/call", params))
        .await;
    assert!(!answer.is_stream());
    let body = answer.expect(StatusCode::OK).await.json().await;
    assert_eq!(body["id"], "1");
    assert_eq!(text_of(&body["result"]), "ä\u{1f600}");
    gw.stop().await;
}

// Spec: SPEC M-02, M-42, T-14.
#[tokio::test]
async fn progress_comes_first_on_a_stream_without_ids() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = user(&gw).meta(json!({"progressToken": "p"}));
    let message = user.request(
        &json!(5),
        "tools/call",
        json!({"name": "notices", "arguments": {"n": 3}}),
    );
    let answer = user.post(&message).await;
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    let mut events = answer.events();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        assert_eq!((&event.id, event.retry), (&None, None));
        seen.extend(event.message());
    }
    let reply = seen.pop().unwrap();
    assert_eq!(reply["id"], 5);
    let tokens: Vec<&Value> = seen.iter().map(|m| &m["params"]["progressToken"]).collect();
    assert_eq!(tokens, ["p", "p", "p"]);
    gw.stop().await;
}

// Spec: SPEC C-21, M-42.
#[tokio::test]
async fn log_messages_come_only_to_those_who_asked() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let heard = async |meta: Value| {
        let user = user(&gw).meta(meta);
        let arguments = json!({"level": "error", "n": 2});
        let params = json!({"name": "log", "arguments": arguments});
        let (before, _) = user.start("tools/call", params).await.finish().await;
        before.len()
    };
    let level = |word: &str| json!({"io.modelcontextprotocol/logLevel": word});
    assert_eq!(heard(json!({})).await, 0);
    assert_eq!(heard(level("warning")).await, 2);
    assert_eq!(heard(level("critical")).await, 0);
    // The upstream was told the most verbose level, and only that.
    let stats = user(&gw).call("stats", json!({})).await.unwrap();
    let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
    assert_eq!(stats["counts"]["logging/setLevel"], 1, "{stats}");
    gw.stop().await;
}

// Spec: BRIDGING §3.5: alice's calls make the upstream known and open no session for bob, whose level is set before his
// first call all the same.
#[tokio::test]
async fn the_first_call_of_a_caller_is_logged_at_the_level_that_it_wants() {
    let stub = HttpStub::start(&[]).await;
    let gw = Setup::secured().http("stub", &stub, "").start().await;
    for (told, who) in [(1, "alice"), (2, "bob")] {
        let level = json!({"io.modelcontextprotocol/logLevel": "info"});
        let user = Modern::new(gw.principal(who), "/mcp/stub").meta(level);
        let stats = user.call("stats", json!({})).await.unwrap();
        let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
        assert_eq!(stats["counts"]["logging/setLevel"], told, "{stats}");
    }
    gw.stop().await;
}

// Spec: SPEC M-42: over a pipe nothing says whose a message is.
#[tokio::test]
async fn a_call_beside_another_one_gets_none_of_its_messages() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = user(&gw).meta(json!({"io.modelcontextprotocol/logLevel": "debug"}));
    let call = |n: u32| json!({"name": "notices", "arguments": {"n": n, "gap_ms": 10}});
    let mut long = user.start("tools/call", call(100)).await;
    let own = long.next().await.unwrap();
    assert!(own.to_string().contains("1 of 100"), "{own}");
    let (before, reply) = user.start("tools/call", call(50)).await.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "50 sent");
    let foreign = before
        .iter()
        .find(|message| message.to_string().contains("of 100"));
    assert_eq!(foreign, None);
    gw.stop().await;
}

// Spec: SPEC M-43.
#[tokio::test]
async fn a_client_that_goes_takes_its_call_with_it() {
    let (gw, _stub) = over_both().await;
    for path in ["/mcp/stub", "/mcp/remote"] {
        let user = Modern::new(gw.anonymous(), path).meta(json!({"progressToken": 1}));
        let arguments = json!({"n": 1000, "gap_ms": 100});
        let mut events = user.stream("notices", arguments).await;
        events.message().await.expect("a notice");
        drop(events);
        eventually("the upstream hears of it", async || {
            let stats = user.call("stats", json!({})).await.unwrap();
            let stats: Value = serde_json::from_str(text_of(&stats)).unwrap();
            (stats["counts"]["calls_cancelled"] == 1).then_some(())
        })
        .await;
    }
    gw.stop().await;
}

#[tokio::test]
async fn what_the_client_says_of_itself_stays_with_the_gateway() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = user(&gw).meta(json!({"vendor/x": 1}));
    let meta = user.call("seen_meta", json!({})).await.unwrap();
    assert!(text_of(&meta).contains("vendor/x"), "{meta}");
    assert!(!text_of(&meta).contains("modelcontextprotocol"), "{meta}");
    gw.stop().await;
}

#[tokio::test]
async fn calls_with_one_id_run_side_by_side() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = user(&gw);
    let slow = async || user.call("sleep", json!({"ms": 300})).await.unwrap();
    let (first, second) = tokio::join!(slow(), slow());
    assert_eq!((text_of(&first), text_of(&second)), ("slept", "slept"));
    // The client has one implicit session, with one child.
    let pid = async || text_of(&user.call("pid", json!({})).await.unwrap()).to_owned();
    assert_eq!(pid().await, pid().await);
    gw.stop().await;
}

/// The `clientInfo` that the upstream was told in `initialize`.
async fn told(user: &Modern) -> Value {
    let info = user.call("session_info", json!({})).await.unwrap();
    let info: Value = serde_json::from_str(text_of(&info)).unwrap();
    info["client"]["clientInfo"].clone()
}

#[tokio::test]
async fn legacy_upstream_is_told_the_modern_clients_info() {
    let setup =
        Setup::open()
            .stub("stub", &[])
            .stub_with("common", &[], "isolation = \"principal\"");
    let gw = setup.start().await;
    let info = json!({"name": "editor", "version": "7", "title": "Editor"});
    let meta = json!({"io.modelcontextprotocol/clientInfo": info});
    assert_eq!(told(&user(&gw).meta(meta.clone())).await, info);
    let common = Modern::new(gw.anonymous(), "/mcp/common").meta(meta);
    assert_eq!(told(&common).await["name"], "drawbridge");
    gw.stop().await;
}

// Spec: SPEC M-06: the description is optional here, its name and version are not in `initialize`.
#[tokio::test]
async fn legacy_upstream_is_told_a_whole_client_info() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let meta = json!({"io.modelcontextprotocol/clientInfo": {"name": "editor"}});
    assert_eq!(told(&user(&gw).meta(meta)).await["name"], "drawbridge");
    gw.stop().await;
}
