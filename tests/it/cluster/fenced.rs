//! Replicas whose fence is closed, and what they answer meanwhile. Spec: DESIGN §8.1; `docs/adr/0027`.

use drawbridge::redis_client::cmd;
use rustix::process::Signal;
use serde_json::json;

use super::adoption::{LEASE, keeps, over_http, ping, put_state, settled};
use super::knows;
use crate::harness::eventually;
use crate::harness::redis::{self, RedisServer};
use crate::harness::upstream::HttpStub;

/// The length of a record that says that its session is over.
const ENDED: usize = 12;

/// Waits until the record of one session in Redis says that the session is over.
async fn has_ended_record(redis: &RedisServer) {
    let client = redis.client().await;
    let mut records = cmd("KEYS");
    records.arg("drawbridge:*:record");
    eventually("the end is recorded", async || {
        let found: Vec<String> = client.command("keys", &records).await.ok()?;
        for record in found {
            let mut length = cmd("STRLEN");
            length.arg(record);
            let bytes: usize = client.command("length", &length).await.ok()?;
            if bytes == ENDED {
                return Some(());
            }
        }
        None
    })
    .await;
}

#[tokio::test]
async fn fenced_replica_adopts_no_session_and_knows_what_is_over() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    let over = one.anonymous().open("/mcp/stub").await;
    assert_eq!(over.delete().await, 204);
    has_ended_record(&redis).await;
    let (here, over) = (here.at(two.anonymous()), over.at(two.anonymous()));
    two.signal(Signal::STOP);
    one.kill().await;
    tokio::time::sleep(2 * LEASE).await;
    two.signal(Signal::CONT);
    let (mut session_answers, mut over_answers) = (Vec::new(), Vec::new());
    eventually("the session is adopted", async || {
        let request = ping();
        let (one, other) = tokio::join!(here.post(&request), over.post(&request));
        session_answers.push(one.status());
        over_answers.push(other.status());
        (one.status() == 200).then_some(())
    })
    .await;
    assert!(!session_answers.contains(&502), "{session_answers:?}");
    assert!(!over_answers.contains(&502), "{over_answers:?}");
    assert_eq!(over_answers.last(), Some(&404));
    assert!(keeps(&here).await.contains("kept"));
    two.stop().await;
}

#[tokio::test]
async fn session_with_an_unreadable_record_is_over() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let client = redis.client().await;
    let mut records = cmd("KEYS");
    records.arg("drawbridge:*:record");
    let record = eventually("the record is written", async || {
        let found: Vec<String> = client.command("keys", &records).await.unwrap();
        found.into_iter().next()
    })
    .await;
    one.kill().await;
    // As if a later release, or a key that is not here, had sealed it.
    let mut spoil = cmd("SETRANGE");
    spoil.arg(&record).arg(20).arg("unreadable");
    client.command::<()>("spoil", &spoil).await.unwrap();
    let there = here.at(two.anonymous());
    assert_eq!(
        there.post(&ping()).await.status(),
        503,
        "it may be another's"
    );
    eventually("the session is over", async || {
        (there.post(&ping()).await.status() == 404).then_some(())
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn large_message_finds_the_replica_that_has_adopted_its_session() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let three = over_http(&redis, &stub).start().await;
    knows(&two, 3).await;
    let here = one.anonymous().open("/mcp/stub").await;
    one.signal(Signal::STOP);
    let there = here.at(two.anonymous());
    eventually("the session is adopted", async || {
        (there.post(&ping()).await.status() == 200).then_some(())
    })
    .await;
    one.signal(Signal::CONT);
    eventually("the former owner has no session", async || {
        let open = one.metric("drawbridge_sessions_open", "").await;
        (open < 0.5).then_some(())
    })
    .await;
    knows(&three, 3).await;
    // Its id names the former owner, and its body is not kept.
    let entry = here.at(three.anonymous());
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "echo", "arguments": {"text": "x".repeat(100 * 1024)}}});
    let first = entry.post(&large).await.status();
    assert!([200, 503].contains(&first), "{first}");
    assert_eq!(entry.post(&large).await.status(), 200);
    for replica in [one, two, three] {
        replica.stop().await;
    }
}
