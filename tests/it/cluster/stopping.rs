//! A replica that stops: how the other replicas answer requests for its sessions. Spec: DESIGN §8.1.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use futures_util::stream::{self, StreamExt as _};
use rustix::process::Signal;
use serde_json::json;

use super::adoption::{LEASE, adopted, ping, settled, setup};
use super::{SECRET, knows, pair, tables};
use crate::harness::redis;
use crate::harness::upstream::HttpStub;
use crate::harness::{Session, Setup, eventually};

/// A child that is only ended with the process.
const STUBBORN: [&str; 2] = ["--ignore-sigterm", "--ignore-eof"];

/// The first answer to the session that is not that of a living one.
async fn end_of(session: &Session) -> u16 {
    eventually("the session ends", async || {
        let status = session.post(&ping()).await.status();
        (status != 200).then_some(status)
    })
    .await
}

#[tokio::test]
async fn sessions_of_a_replica_that_ends_its_children_are_over_at_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || setup(&redis).stub("slow", &STUBBORN);
    let [one, two] = settled(make).await;
    let there = one.anonymous().open("/mcp/slow").await.at(two.anonymous());
    there.text("echo", json!({"text": "hi"})).await;
    one.signal(Signal::TERM);
    assert_eq!(end_of(&there).await, 404, "as the replica says");
    let asked = Instant::now();
    assert_eq!(there.post(&ping()).await.status(), 404);
    assert!(asked.elapsed() < Duration::from_secs(1));
    // Its children still end.
    one.kill().await;
    assert_eq!(
        there.post(&ping()).await.status(),
        404,
        "as the record says"
    );
    assert!(adopted(&two).await < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn replica_has_its_lease_until_its_children_have_ended() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let tables = tables(&redis, SECRET, "lease = \"2s\"");
    let keys = "stop = { eof = \"5s\", term = \"1s\" }";
    let make = || {
        Setup::open()
            .toml(&tables)
            .stub_with("slow", &STUBBORN, keys)
    };
    let [mut one, two] = pair(make).await;
    let busy = one.anonymous().open("/mcp/slow").await;
    busy.text("echo", json!({"text": "hi"})).await;
    one.signal(Signal::TERM);
    // A lease, and until the other replica has missed it.
    let until = Instant::now() + LEASE + LEASE;
    while Instant::now() < until {
        let known = two.metric("drawbridge_cluster_replicas", "").await;
        assert!((known - 2.0).abs() < 0.5, "{known}");
    }
    assert_eq!(one.exit().await, Some(0));
    knows(&two, 1).await;
    two.stop().await;
}

/// Sessions of a replica that stops, and the time between their requests: these last longer than the stop.
const SESSIONS: u32 = 200;
const SPACING: Duration = Duration::from_millis(5);

// The other replica takes it for the owner of each session, so that requests reach it at every moment of its end: also as
// it closes its connections.
#[tokio::test]
async fn requests_that_reach_a_replica_as_it_ends_are_answered_by_the_next_owner() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let tables = tables(
        &redis,
        SECRET,
        "lease = \"30s\"\n[limits]\nrate = \"100000/s\"",
    );
    let make = || Setup::open().toml(&tables).http("stub", &stub, "");
    let [mut one, two] = pair(make).await;
    let open = async |_| one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let sessions: Vec<Session> = stream::iter(0..SESSIONS)
        .map(open)
        .buffered(16)
        .collect()
        .await;
    one.signal(Signal::TERM);
    let asked = (0_u32..).zip(&sessions).map(async |(number, session)| {
        tokio::time::sleep(number * SPACING).await;
        session.post(&ping()).await.status()
    });
    let (statuses, exit) = join(join_all(asked), one.exit()).await;
    assert_eq!(exit, Some(0));
    let refused: Vec<_> = (0..)
        .zip(statuses)
        .filter(|one: &(u32, _)| one.1 != 200)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    two.stop().await;
}
