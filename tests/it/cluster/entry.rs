//! What the replica that passes a request on counts and notes. Spec: DESIGN §8.

use std::time::Duration;

use serde_json::json;

use super::{pair, replica_with};
use crate::harness::{eventually, redis};

#[tokio::test]
async fn client_that_leaves_before_its_owner_is_reached_has_an_access_line() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"30s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    one.kill().await;
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let answered = tokio::time::timeout(Duration::from_millis(500), there.post(&ping)).await;
    assert!(answered.is_err(), "the owner has its lease still");
    let line = eventually("the access line", async || {
        let mut records = two.log_records();
        records.retain(|one| one["target"] == "access" && one["path"] == "/mcp/{endpoint}");
        records.pop()
    })
    .await;
    assert_eq!(line["outcome"], "client_gone", "{line}");
    two.stop().await;
}
