//! A list change heard at one replica is told at all replicas. Spec: DESIGN §8.1; `docs/adr/0025`.

use std::time::{Duration, Instant};

use serde_json::json;

use super::adoption::LEASE;
use super::{SECRET, pair, tables};
use crate::harness::events::EventStream;
use crate::harness::redis::{self, RedisServer};
use crate::harness::{Gateway, Session, Setup};

const CHANGED: &str = "notifications/tools/list_changed";

/// A replica whose upstream is a child of its own: no other replica hears the child's notices.
fn shared(redis: &RedisServer) -> Setup {
    Setup::open()
        .toml(&tables(redis, SECRET, ""))
        .stub_with("stub", &[], "isolation = \"shared\"")
}

async fn session(gateway: &Gateway) -> Session {
    let session = gateway.anonymous().open("/mcp/stub").await;
    session.tools().await;
    session
}

/// Changes the tools at the first replica: sessions at both replicas are told.
async fn both_hear([one, two]: [Gateway; 2]) {
    let (here, there) = (session(&one).await, session(&two).await);
    let (mut near, mut far) = (here.listen().await, there.listen().await);
    here.text("change_tools", json!({})).await;
    near.until(CHANGED).await;
    far.until(CHANGED).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn change_at_one_replica_is_told_at_the_others() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    both_hear(pair(|| shared(&redis)).await).await;
}

#[tokio::test]
async fn change_in_a_modern_child_is_told_at_the_others() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || {
        let setup = Setup::open().toml(&tables(&redis, SECRET, ""));
        setup.stub_with("stub", &["--era", "modern"], "")
    };
    both_hear(pair(make).await).await;
}

// The notice of this replica and the position of the other are gone with the data of Redis.
#[tokio::test]
async fn after_an_outage_of_redis_all_lists_count_as_changed() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let make = || {
        Setup::open()
            .toml(&tables(&redis, SECRET, "lease = \"2s\""))
            .stub_with("stub", &[], "isolation = \"shared\"")
    };
    let [one, two] = pair(make).await;
    tokio::time::sleep(LEASE).await;
    let (there, other) = (session(&two).await, session(&two).await);
    let (mut far, mut later) = (there.listen().await, other.listen().await);
    redis.kill();
    redis.start().await;
    let heard = async |stream: &mut EventStream| {
        stream.until(CHANGED).await;
        Instant::now()
    };
    let (first, second) = tokio::join!(heard(&mut far), heard(&mut later));
    let apart = first.max(second).duration_since(first.min(second));
    assert!(apart > Duration::from_secs(1), "not together: {apart:?}");
    let mut others = [far.message().await, far.message().await].map(|one| {
        let notice = one.expect("a notice");
        notice["method"].as_str().unwrap().to_owned()
    });
    others.sort();
    let expected =
        ["prompts", "resources"].map(|what| format!("notifications/{what}/list_changed"));
    assert_eq!(others, expected, "each once");
    one.stop().await;
    two.stop().await;
}
