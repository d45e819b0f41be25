//! Requests, the notices before their replies, and calls that end early.

use rstest::rstest;
use serde_json::{Value, json};

use super::{behind, count, user};
use crate::harness::eventually;
use crate::harness::session::text_of;

#[rstest]
#[tokio::test]
async fn a_legacy_client_reaches_all_of_a_modern_upstream(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let tools = user.tools().await;
    assert!(tools.contains(&"echo".to_owned()), "{tools:?}");
    // Spec: SPEC M-31.
    assert!(!tools.contains(&"bad_headers".to_owned()), "{tools:?}");
    let echoed = user.text("echo", json!({"text": "é"})).await;
    assert_eq!(echoed, "é");
    let params = json!({"uri": "stub://static/1"});
    let read = user.request("resources/read", params).await.unwrap();
    assert_eq!(read["contents"][0]["uri"], "stub://static/1");
    assert_eq!(read.get("resultType"), None, "{read}");
    let params = json!({"name": "greet", "arguments": {"name": "Ada"}});
    let prompt = user.request("prompts/get", params).await.unwrap();
    assert!(prompt.to_string().contains("Ada"), "{prompt}");
    let params = json!({"ref": {"type": "ref/prompt", "name": "greet"},
                        "argument": {"name": "name", "value": "a"}});
    let completed = user.request("completion/complete", params).await.unwrap();
    assert_eq!(completed["completion"]["values"][0], "alice", "{completed}");
    assert_eq!(user.request("ping", json!({})).await.unwrap(), json!({}));
    gw.stop().await;
}

// Spec: SPEC U-08, M-05, BRIDGING §3.9.
#[rstest]
#[tokio::test]
async fn every_request_says_who_asks_and_what_it_can(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let meta = json!({"progressToken": "mine", "vendor.example/x": 1, "baggage": "secret=1",
                      "io.modelcontextprotocol/related-task": {"taskId": "t"}});
    let params = json!({"name": "seen_meta", "arguments": {}, "_meta": meta});
    let result = user.request("tools/call", params).await.unwrap();
    let seen: Value = serde_json::from_str(text_of(&result)).unwrap();
    let key = |name: &str| seen[format!("io.modelcontextprotocol/{name}")].clone();
    assert_eq!(key("protocolVersion"), "2026-07-28", "{seen}");
    assert_eq!(key("clientInfo")["name"], "harness", "{seen}");
    assert!(
        key("clientCapabilities")["elicitation"].is_object(),
        "{seen}"
    );
    assert_eq!(key("related-task"), Value::Null, "{seen}");
    assert_eq!(seen["dev.drawbridge/gateway"]["name"], "drawbridge");
    assert_eq!(seen["vendor.example/x"], 1, "{seen}");
    assert_eq!(seen["baggage"], Value::Null, "{seen}");
    assert_ne!(seen["progressToken"], "mine", "{seen}");
    assert!(seen["traceparent"].is_string(), "{seen}");
    gw.stop().await;
}

// Spec: SPEC M-32, M-36: nothing was listed before the call.
#[tokio::test]
async fn arguments_are_mirrored_in_headers_also_by_a_gateway_that_has_listed_nothing() {
    let (gw, _stub) = behind("http", "").await;
    let user = user(&gw).await;
    for arguments in [
        json!({"region": "us-west1", "verbose": false, "deep": {"depth": -7}}),
        json!({"region": " Zürich\n", "verbose": null}),
        json!({"region": "=?base64?x?=", "other": 1}),
        json!({"region": ""}),
    ] {
        let echoed = user.text("headered", arguments.clone()).await;
        let echoed: Value = serde_json::from_str(&echoed).unwrap();
        assert_eq!(echoed, arguments);
    }
    gw.stop().await;
}

// Spec: SPEC M-31: the tool is left out of lists, and calling the tool by name is refused too.
#[tokio::test]
async fn a_tool_with_invalid_annotations_is_not_called_even_by_name() {
    let (gw, stub) = behind("http", "").await;
    let user = user(&gw).await;
    let error = user.call("bad_headers", json!({})).await.unwrap_err();
    assert_eq!(error["code"], -32602, "{error}");
    assert!(error["message"].as_str().unwrap().contains("x-mcp-header"));
    assert_eq!(count(stub.as_ref().unwrap(), "tool bad_headers").await, 0);
    gw.stop().await;
}

// Spec: SPEC M-35.
#[tokio::test]
async fn a_tool_that_has_learned_to_ask_for_a_header_gets_it() {
    let (gw, stub) = behind("http", "").await;
    let user = user(&gw).await;
    user.text("shifting", json!({"shift": "early"})).await;
    user.text("shift", json!({})).await;
    let arguments = json!({"shift": "late", "strict": true});
    let echoed = user.text("shifting", arguments).await;
    assert!(echoed.contains("late"), "{echoed}");
    assert_eq!(count(stub.as_ref().unwrap(), "refused").await, 1);
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn progress_comes_under_the_clients_own_token(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let params = json!({"name": "notices", "arguments": {"n": 3, "apart": 1},
                        "_meta": {"progressToken": "t-1"}});
    let (_, exchange) = user.start("tools/call", params).await;
    let (before, reply) = exchange.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "3 sent");
    let last = before.last().expect("progress");
    assert_eq!(last["method"], "notifications/progress", "{last}");
    assert_eq!(last["params"]["progressToken"], "t-1", "{last}");
    gw.stop().await;
}

// Spec: SPEC C-20, BRIDGING §3.5.
#[rstest]
#[tokio::test]
async fn log_messages_come_from_the_level_that_the_client_set(
    #[values("stdio", "http")] carrier: &str,
) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let log = json!({"level": "warning"});
    assert_eq!(user.text("log", log.clone()).await, "not logged");
    let level = json!({"level": "info"});
    assert_eq!(
        user.request("logging/setLevel", level).await.unwrap(),
        json!({})
    );
    let (_, exchange) = user.start_call("log", log).await;
    let (before, _) = exchange.finish().await;
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(before[0]["params"]["level"], "warning");
    // Log messages that the request did not ask for are dropped.
    let loud = json!({"level": "debug", "anyway": 1});
    let (_, exchange) = user.start_call("log", loud).await;
    let (before, reply) = exchange.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "logged");
    assert!(before.is_empty(), "{before:?}");
    gw.stop().await;
}

// Spec: SPEC M-43, D-10, C-11.
#[rstest]
#[tokio::test]
async fn a_cancelled_call_is_cancelled_upstream(#[values("stdio", "http")] carrier: &str) {
    let (gw, stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let id = user.next_id();
    let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                         "params": {"name": "sleep", "arguments": {"ms": 3_600_000}}});
    let call = user.post(&message);
    let cancel = async {
        eventually("the call runs", async || {
            let stats = user.text("stats", json!({})).await;
            stats.contains("tool sleep").then_some(())
        })
        .await;
        let params = json!({"requestId": id, "reason": "no more"});
        user.notify("notifications/cancelled", params).await;
        eventually("the upstream knows", async || {
            let stats = user.text("stats", json!({})).await;
            let stats: Value = serde_json::from_str(&stats).unwrap();
            (stats["counts"]["calls_cancelled"] == 1).then_some(stats)
        })
        .await
    };
    let (_, stats) = tokio::join!(call, cancel);
    match &stub {
        Some(stub) => assert_eq!(count(stub, "streams_closed").await, 1),
        None => assert_eq!(
            stats["cancels"][0]["params"]["reason"], "no more",
            "{stats}"
        ),
    }
    gw.stop().await;
}

// Spec: SPEC M-44, C-95.
#[tokio::test]
async fn a_lost_call_is_not_run_again_unless_the_operator_says_so() {
    for (keys, runs) in [("", 1), ("retry_safe = [\"break_off\"]", 2)] {
        let (gw, stub) = behind("http", keys).await;
        let user = user(&gw).await;
        let reply = user.call("break_off", json!({})).await;
        let text = format!("{reply:?}");
        assert!(text.contains("unknown"), "{text}");
        let count = count(stub.as_ref().unwrap(), "tool break_off").await;
        assert_eq!(count, runs, "{keys}");
        gw.stop().await;
    }
}

// Spec: SPEC D-05, D-06.
#[tokio::test]
async fn a_crashed_child_fails_its_call_and_the_next_one_gets_another() {
    let (gw, _stub) = behind("stdio", "").await;
    let user = user(&gw).await;
    let reply = user.call("crash", json!({"words": "goodbye"})).await;
    assert!(format!("{reply:?}").contains("goodbye"), "{reply:?}");
    assert_eq!(user.text("echo", json!({})).await, "{}");
    gw.stop().await;
}

// Spec: SPEC M-40, U-14, D-09.
#[rstest]
#[tokio::test]
async fn what_no_modern_server_may_send_reaches_nobody(#[values("stdio", "http")] carrier: &str) {
    let (gw, _stub) = behind(carrier, "").await;
    let user = user(&gw).await;
    let reply = user.call("odd_result", json!({})).await;
    assert!(
        !format!("{reply:?}").contains("\"resultType\""),
        "{reply:?}"
    );
    assert!(reply.is_err() || reply.unwrap()["isError"] == true);
    let (_, exchange) = user.start_call("server_request", json!({})).await;
    let (before, reply) = exchange.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "asked out of turn");
    assert!(before.is_empty(), "{before:?}");
    gw.stop().await;
}

#[tokio::test]
async fn a_silent_call_ends_at_its_timeout() {
    let (gw, stub) = behind("http", "idle_timeout = \"1s\"").await;
    let user = user(&gw).await;
    let reply = user.call("sleep", json!({"ms": 3_600_000})).await;
    assert!(format!("{reply:?}").contains("in time"), "{reply:?}");
    let stub = stub.as_ref().unwrap();
    eventually("the upstream is told", async || {
        (count(stub, "streams_closed").await == 1).then_some(())
    })
    .await;
    gw.stop().await;
}
