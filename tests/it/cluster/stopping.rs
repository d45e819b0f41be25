//! A replica that stops: what the others hear of it and of its sessions meanwhile. Spec: DESIGN §8.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::adoption::LEASE;
use super::{SECRET, knows, pair, tables};
use crate::harness::redis;
use crate::harness::Setup;

/// A child that is only ended with the process.
const STUBBORN: [&str; 2] = ["--ignore-sigterm", "--ignore-eof"];

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
