//! Tasks that the gateway runs, where something goes wrong: a connection breaks, there is no room, an
//! upstream is not there, the gateway stops. Spec: BRIDGING §3.8; SPEC K-03, K-04.

use serde_json::json;

use super::hosted::{World, about, begin};
use crate::harness::session::{Exchange, text_of};

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
