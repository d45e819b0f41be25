//! What the replica that passes a request on counts and notes, and what it does not pass on. Spec: DESIGN §8.1.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::{SECRET, forwards, pair, replica, replica_with, tables};
use crate::harness::connection::EventSession;
use crate::harness::{Gateway, Setup, eventually, redis};
use crate::modern::{Modern, VERSION};

#[tokio::test]
async fn forwarded_task_request_is_charged_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let limits = "[limits]\nrate = \"20/h\"\ncall_wait = \"100ms\"\n";
    let tables = tables(&redis, SECRET, limits);
    let setup = || Setup::open().toml(&tables).stub("stub", &["--tasks"]);
    let [one, two] = pair(setup).await;
    let extensions = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let user = |gw: &Gateway| Modern::with(gw.anonymous(), "/mcp/stub", extensions.clone());
    let begun = user(&one)
        .call("errand", json!({"looks": 2}))
        .await
        .unwrap();
    let there = user(&two);
    let mut served = 0;
    for _ in 0..40 {
        let asked = json!({"taskId": begun["taskId"]});
        served += usize::from(there.send("tasks/get", asked).await.is_ok());
    }
    assert!(forwards(&two, "ok").await > 0.5);
    // Twice the rate at once, less the call, and a slice of one for each replica.
    assert!((37..=40).contains(&served), "{served}");
    one.stop().await;
    two.stop().await;
}

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

#[tokio::test]
async fn streams_that_open_together_wait_for_the_slice() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let on = "[server.sse]\nenabled = true";
    let limits = "[limits]\nrate = \"1000/h\"\n";
    let setup = replica(&redis).server(on).toml(limits);
    let gw = setup.start().await;
    let user = gw.anonymous();
    let open = join_all((0..8).map(|_| EventSession::connect(&user, "/sse/stub"))).await;
    assert_eq!(open.len(), 8);
    drop(open);
    gw.stop().await;
}

// SPEC M-02.
#[tokio::test]
async fn modern_request_is_not_for_the_owner_of_a_session_that_it_names() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"30s\"")).await;
    let session = one.anonymous().open("/mcp/stub").await;
    one.kill().await;
    let there = Modern::new(two.anonymous(), "/mcp/stub");
    let asked = there.request(&json!(1), "server/discover", json!({}));
    let headers = [
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "server/discover"),
        ("mcp-session-id", &session.id),
    ];
    let answer = there.post_as(&headers, &asked).await;
    assert_eq!(answer.status(), 200);
    assert!(forwards(&two, "").await < 0.5);
    two.stop().await;
}
