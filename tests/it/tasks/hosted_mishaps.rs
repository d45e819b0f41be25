//! Tasks that the gateway runs, where something goes wrong: a connection breaks, there is no room, an
//! upstream is not there, the gateway stops. Spec: BRIDGING §3.8; SPEC K-03, K-04.

use serde_json::json;
use tokio::net::TcpListener;

use super::hosted::{MODERN, World, about, begin, result, until};
use crate::harness::Setup;
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;

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

#[tokio::test]
async fn who_asks_for_a_task_waits_for_no_other_upstream() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", mute.local_addr().unwrap());
    let newer = HttpStub::start(&MODERN).await;
    let setup = Setup::secured().url("mute", &url, "");
    let gw = setup.http("newer", &newer, "").start().await;
    let alice = gw.principal("alice").open("/mcp").await;
    let task = begin(&alice, "newer__errand", json!({"ms": 600_000})).await;
    let begun = std::time::Instant::now();
    let state = alice.request("tasks/get", about(&task)).await.unwrap();
    assert_eq!(state["taskId"], task["taskId"]);
    // As long as a list waits for all upstreams of an endpoint.
    assert!(begun.elapsed().as_millis() < 2500, "{:?}", begun.elapsed());
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
    // Nor one for which what its own session could give up is not enough.
    let small = begin(&other, "big", json!({"bytes": 500})).await;
    until(&other, &small, "completed").await;
    let middling = begin(&other, "big", json!({"bytes": 2500})).await;
    until(&other, &middling, "failed").await;
    for (user, task) in [(&alice, &kept), (&other, &small)] {
        assert_eq!(result(user, task).await["isError"], false);
    }
    world.gw.stop().await;
}
