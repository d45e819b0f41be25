//! Mishaps of tasks that the gateway runs: a broken connection, a full quota, an unreachable upstream, a stop of the
//! gateway. Spec: BRIDGING §3.8; SPEC K-03, K-04.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::held::count;
use super::hosted::{MODERN, World, about, begin, result, stopped, until};
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually};

// Spec: SPEC K-04, T-25: a broken connection is no cancellation.
#[tokio::test]
async fn a_question_on_a_broken_connection_is_put_to_the_next_request() {
    let world = World::start().await;
    let alice = world.user("alice", "/mcp/newer").await;
    let task = begin(&alice, "errand", json!({"ask": 1})).await;
    let (_, exchange) = alice.start("tasks/result", about(&task)).await;
    let mut broken = exchange.stream();
    broken.until("elicitation/create").await;
    drop(broken);
    let (_, exchange) = alice.start("tasks/result", about(&task)).await;
    let mut stream = exchange.stream();
    let question = stream.until("elicitation/create").await;
    alice.answer(&question, json!({"action": "decline"})).await;
    let (_, reply) = Exchange::Stream(stream).finish().await;
    assert!(text_of(&reply.unwrap()).contains("decline"));
    world.gw.stop().await;
}

/// An upstream that closes every connection; once the flag is set, connections stay open without an answer.
async fn brusque() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let is_mute = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_mute);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            if told.load(Ordering::SeqCst) {
                held.push(connection);
            }
        }
    });
    (url, is_mute)
}

#[tokio::test]
async fn who_asks_for_a_task_waits_for_no_other_upstream() {
    let (url, is_mute) = brusque().await;
    let newer = HttpStub::start(&MODERN).await;
    // Waiting for `mute` would take longer than the test's timeout.
    let setup = Setup::secured().toml("[mcp]\nconnect_wait = \"5m\"");
    let setup = setup.url("mute", &url, "connect_timeout = \"5m\"");
    let gw = setup.http("newer", &newer, "").start().await;
    let alice = gw.principal("alice").open("/mcp").await;
    let task = begin(&alice, "newer__errand", json!({"ms": 600_000})).await;
    is_mute.store(true, Ordering::SeqCst);
    let state = alice.request("tasks/get", about(&task)).await.unwrap();
    assert_eq!(state["taskId"], task["taskId"]);
    // Or the end of the gateway would wait for it.
    alice.request("tasks/cancel", about(&task)).await.unwrap();
    gw.stop().await;
}

#[tokio::test]
async fn a_result_that_cannot_fit_takes_no_others_place() {
    let world = World::with("[limits]\ntask_results_per_principal = \"4KiB\"", "").await;
    let alice = world.user("alice", "/mcp/newer").await;
    let other = world.user("alice", "/mcp/newer").await;
    let kept = begin(&alice, "big", json!({"bytes": 2500})).await;
    until(&alice, &kept, "completed").await;
    let large = begin(&alice, "big", json!({"bytes": 5000})).await;
    until(&alice, &large, "failed").await;
    until(&alice, &kept, "completed").await;
    // Another session's result is not evicted either: the task fails, and its own session keeps what it has.
    let small = begin(&other, "big", json!({"bytes": 500})).await;
    until(&other, &small, "completed").await;
    let middling = begin(&other, "big", json!({"bytes": 2500})).await;
    until(&other, &middling, "failed").await;
    for (user, task, bytes) in [(&alice, &kept, 2500), (&other, &small, 500)] {
        let result = result(user, task).await;
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(text.len(), bytes);
    }
    world.gw.stop().await;
}

// Spec: SPEC A-14, O-04.
#[tokio::test]
async fn a_call_that_cannot_begin_as_a_task_is_answered_and_audited_like_any_other() {
    let newer = HttpStub::start(&MODERN).await;
    let setup = Setup::secured().toml("[limits]\ncalls_per_principal = 1");
    let setup = setup.url("gone", "http://127.0.0.1:1/mcp", "");
    let gw = setup.http("newer", &newer, "").start().await;
    let alice = gw.principal("alice").open("/mcp").await;
    let params = json!({"name": "gone__echo", "arguments": {"text": "hi"}});
    let plain = alice.request("tools/call", params.clone()).await;
    let mut as_task = params;
    as_task["task"] = json!({});
    assert_eq!(alice.request("tools/call", as_task).await, plain);
    // The cap is one call, and a running task would leave no permit for requests about it.
    let params = json!({"name": "newer__errand", "arguments": {}, "task": {}});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let refused = alice.post(&message).await.json().await;
    assert_eq!(refused["error"]["data"]["retryAfterMs"], 1000, "{refused}");
    let audited = eventually("audit records", async || {
        let records = gw.log_records().into_iter();
        let calls = records.filter(|r| r["target"] == "audit" && r["method"] == "tools/call");
        let calls: Vec<Value> = calls
            .map(|record| json!([record["outcome"], record["upstream"], record["name"]]))
            .collect();
        (calls.len() >= 3).then_some(calls)
    })
    .await;
    let gone = json!(["failed", "gone", "echo"]);
    let refused = json!(["failed", "newer", "errand"]);
    assert_eq!(audited, [gone.clone(), gone, refused]);
    gw.stop().await;
}

// Spec: DESIGN §11.
#[tokio::test]
async fn a_task_is_finished_before_the_gateway_stops() {
    let newer = stopped("60s", json!({"looks": 20})).await;
    assert_eq!(count(&newer, "tasks/cancel").await, 0);
    assert!(count(&newer, "tasks/get").await >= 20);
}
