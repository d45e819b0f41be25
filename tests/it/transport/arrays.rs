//! JSON-RPC arrays: 2025-03-26 sessions only. Spec: SPEC T-08, T-09, T-30 to T-33.

use serde_json::{Value, json};

use crate::harness::http::initialize;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, within};

async fn gateway() -> Gateway {
    Setup::open().stub("stub", &[]).start().await
}

fn call(id: i64, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": id}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

async fn old_session(gw: &Gateway) -> Session {
    gw.anonymous()
        .open_as("/mcp/stub", "2025-03-26", json!({}))
        .await
}

fn ids(replies: &[Value]) -> Vec<i64> {
    let mut ids: Vec<i64> = replies
        .iter()
        .map(|reply| reply["id"].as_i64().unwrap())
        .collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn an_array_of_quick_requests_is_answered_by_one_array() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "no/such"},
    ]);
    let replies = user.post(&array).await.json().await;
    let replies = replies.as_array().expect("an array");
    assert_eq!(ids(replies), [1, 2, 3]);
    gw.stop().await;
}

#[tokio::test]
async fn an_array_that_streams_is_answered_by_one_stream() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([
        call(1, "notices", &json!({"n": 3, "gap_ms": 20})),
        call(2, "echo", &json!({})),
        call(3, "notices", &json!({"n": 2, "gap_ms": 20})),
    ]);
    let mut stream = user.post(&array).await.events();
    let (mut notices, mut replies) = (0, Vec::new());
    while let Some(message) = stream.message().await {
        if message.get("method").is_some() {
            notices += 1;
        } else {
            replies.push(message);
        }
    }
    assert_eq!(notices, 5);
    assert_eq!(ids(&replies), [1, 2, 3]);
    gw.stop().await;
}

#[tokio::test]
async fn an_array_without_requests_is_accepted() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
    ]);
    assert_eq!(user.post(&array).await.status(), 202);
    gw.stop().await;
}

#[tokio::test]
async fn arrays_are_refused_elsewhere() {
    let gw = gateway().await;
    let array = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]);
    for revision in ["2025-06-18", "2025-11-25"] {
        let user = gw
            .anonymous()
            .open_as("/mcp/stub", revision, json!({}))
            .await;
        let answer = user.post(&array).await;
        assert_eq!(answer.status(), 400, "{revision}");
        assert_eq!(answer.error().await["code"], -32600, "{revision}");
        assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    }
    gw.stop().await;
}

// SPEC T-60, T-62
#[tokio::test]
async fn the_version_header_counts_for_arrays_too() {
    let gw = gateway().await;
    let user = gw
        .anonymous()
        .open_as("/mcp/stub", "2025-03-26", json!({}))
        .await;
    let array = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]);
    let headers: Vec<_> = user
        .headers()
        .into_iter()
        .filter(|(name, _)| *name != "mcp-protocol-version")
        .collect();
    for (version, status) in [
        ("2025-03-26", 200),
        ("1999-01-01", 400),
        ("2026-07-28", 400),
    ] {
        let mut headers = headers.clone();
        headers.push(("mcp-protocol-version", version));
        let answer = gw.anonymous().post("/mcp/stub", &headers, &array).await;
        assert_eq!(answer.status(), status, "{version}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn malformed_arrays_are_refused_whole() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let many: Vec<Value> = (0..51)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "ping"}))
        .collect();
    let modern = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    for array in [
        json!([]),
        json!([initialize(1, "2025-03-26", &json!({}))]),
        json!(many),
        json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"},
               {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": modern}]),
    ] {
        let answer = user.post(&array).await;
        assert_eq!(answer.status(), 400, "{array}");
        assert_eq!(answer.error().await["code"], -32600, "{array}");
    }
    gw.stop().await;
}

// Spec: JSON-RPC 2.0 §6: an error for the element, replies for the others.
#[tokio::test]
async fn an_element_that_is_no_message_spoils_only_itself() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, 42]);
    let replies = user.post(&array).await.json().await;
    let replies = replies.as_array().expect("an array");
    assert_eq!(replies.len(), 2, "{replies:?}");
    assert!(
        replies
            .iter()
            .any(|reply| reply["id"] == 1 && reply["result"].is_object())
    );
    assert!(
        replies.iter().any(|reply| reply["error"]["code"] == -32600),
        "{replies:?}"
    );
    gw.stop().await;
}

// Spec: JSON-RPC 2.0 §5.
#[tokio::test]
async fn an_element_that_is_refused_is_answered_under_its_id() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": 7},
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ]);
    let replies = user.post(&array).await.json().await;
    let replies = replies.as_array().expect("an array");
    assert_eq!(ids(replies), [1, 2, 3]);
    for reply in replies {
        assert_eq!(reply.get("error").is_some(), reply["id"] != 3, "{reply}");
    }
    gw.stop().await;
}

// Spec: SPEC T-31, C-10: a call left without a task would hold its permit for ever.
#[tokio::test]
async fn an_upstream_that_is_slow_to_take_a_notification_holds_up_nobody() {
    const ROOTS: &str = "notifications/roots/list_changed";
    let stub = HttpStub::start(&["--deaf-to", ROOTS]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = old_session(&gw).await;
    user.text("echo", json!({})).await;
    within("it is accepted", user.notify(ROOTS, json!({}))).await;
    let array = json!([
        {"jsonrpc": "2.0", "id": 50, "method": "ping"},
        {"jsonrpc": "2.0", "method": ROOTS},
    ]);
    for _ in 0..2 {
        let replies = within("an answer", user.post(&array)).await.json().await;
        assert_eq!(ids(replies.as_array().expect("an array")), [50]);
    }
    gw.stop().await;
}

// Spec: SPEC T-30. Together the replies are larger than `events.per_session`.
#[tokio::test]
async fn large_replies_of_an_array_all_arrive() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let array = json!([
        call(1, "big", &json!({"bytes": 600_000})),
        call(2, "big", &json!({"bytes": 600_000})),
        call(3, "notices", &json!({"n": 2, "gap_ms": 20})),
    ]);
    let mut stream = user.post(&array).await.events();
    let mut replies = Vec::new();
    while let Some(message) = stream.message().await {
        if message.get("method").is_none() {
            replies.push(message);
        }
    }
    assert_eq!(ids(&replies), [1, 2, 3]);
    gw.stop().await;
}

// Spec: SPEC T-06, T-30: cancelled calls are owed no answer, in an array as alone.
#[tokio::test]
async fn an_array_whose_calls_are_all_cancelled_is_answered_by_an_empty_stream() {
    let gw = gateway().await;
    let user = old_session(&gw).await;
    let endless = |id| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                              "params": {"name": "never", "arguments": {}}})
    };
    let array = json!([endless(50), endless(51)]);
    let cancel = async {
        eventually("both calls run", async || {
            (gw.metric("drawbridge_calls_running", "").await > 1.5).then_some(())
        })
        .await;
        for id in [50, 51] {
            let cancelled = json!({"requestId": id});
            user.notify("notifications/cancelled", cancelled).await;
        }
    };
    let (answer, ()) = tokio::join!(user.post(&array), cancel);
    assert_eq!(answer.status(), 200);
    assert!(answer.is_stream(), "no JSON is no answer");
    assert_eq!(answer.text().await, "");
    gw.stop().await;
}
