//! A session whose owner has stopped, was killed, or drains.

use drawbridge::redis_client::cmd;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{pair, replica, replica_with};
use crate::harness::eventually;
use crate::harness::redis;
use crate::harness::session::text_of;

fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 77, "method": "ping"})
}

#[tokio::test]
async fn session_of_a_stopped_replica_is_over() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let one = replica(&redis).start().await;
    let here = one.anonymous().open("/mcp/stub").await;
    one.stop().await;
    let two = replica(&redis).start().await;
    let gone = here.at(two.anonymous()).post(&ping()).await;
    assert_eq!(gone.status(), 404);
    two.stop().await;
}

#[tokio::test]
async fn session_of_a_killed_replica_is_over_once_its_record_is_gone() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let lease = "lease = \"1s\"";
    let one = replica_with(&redis, lease).start().await;
    let here = one.anonymous().open("/mcp/stub").await;
    let client = redis.client().await;
    let mut records = cmd("KEYS");
    records.arg("drawbridge:*:record");
    eventually("the record is written", async || {
        let found: Vec<String> = client.command("keys", &records).await.unwrap();
        (!found.is_empty()).then_some(())
    })
    .await;
    one.kill().await;
    let two = replica_with(&redis, lease).start().await;
    let there = here.at(two.anonymous());
    client
        .command::<()>("flush", &cmd("FLUSHALL"))
        .await
        .unwrap();
    eventually("the session counts as over", async || {
        (there.post(&ping()).await.status() == 404).then_some(())
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn session_of_a_killed_replica_waits_for_a_redis_that_was_just_started() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let lease = "lease = \"6s\"";
    let one = replica_with(&redis, lease).start().await;
    let here = one.anonymous().open("/mcp/stub").await;
    one.kill().await;
    redis.kill();
    redis.start().await;
    let two = replica_with(&redis, lease).start().await;
    // Its owner might live, and write its record again.
    let answer = here.at(two.anonymous()).post(&ping()).await;
    assert_eq!(answer.status(), 503);
    two.stop().await;
}

#[tokio::test]
async fn draining_owner_answers_what_is_passed_on() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [mut one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, long) = there.start_call("sleep", json!({"ms": 4_000})).await;
    one.signal(Signal::TERM);
    eventually("the public port is closed", async || {
        let address = one.url.trim_start_matches("http://");
        let refused = tokio::net::TcpStream::connect(address).await;
        refused.is_err().then_some(())
    })
    .await;
    let text = there.text("echo", json!({"text": "hi"})).await;
    assert_eq!(text, "hi");
    let (_, reply) = long.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "slept");
    assert_eq!(one.exit().await, Some(0));
    let gone = there.post(&ping()).await;
    assert_eq!(gone.status(), 404);
    two.stop().await;
}
