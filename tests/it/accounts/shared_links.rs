//! Links that the sessions of a caller share (`isolation = "principal"`): they end with the caller's account, not only
//! once they were unused for a while.

use rstest::rstest;
use serde_json::{Value, json};

use super::children::{keys_table, page};
use super::user_key::{KEY, OTHER};
use super::world::{AuthServer, GuardedUpstream, Verdict};
use crate::harness::{Gateway, Setup, eventually};

/// A number that the status has of the upstream.
async fn status(gw: &Gateway, what: &str) -> u64 {
    let (_, status) = gw.admin_text("/status").await.unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    status["upstreams"][0][what].as_u64().unwrap()
}

#[rstest]
#[tokio::test]
async fn shared_child_ends_with_the_account_that_it_has_the_key_of(
    #[values("legacy", "modern")] era: &str,
    #[values("disconnect", "connect")] action: &str,
    #[values(true, false)] is_used: bool,
) {
    let state = tempfile::tempdir().unwrap();
    let gw = Setup::open()
        .stub_with("up", &["--era", era], "isolation = \"principal\"\n")
        .toml(&keys_table(state.path()))
        .start()
        .await;
    page(&gw).await.submit("connect", KEY).await;
    let sessions = [
        gw.anonymous().open("/mcp/up").await,
        gw.anonymous().open("/mcp/up").await,
    ];
    let mut pids = Vec::new();
    for session in &sessions {
        let key = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
        assert_eq!(key, KEY);
        let pid: u32 = session.text("pid", json!({})).await.parse().unwrap();
        pids.push(pid);
    }
    assert_eq!(pids[0], pids[1]);
    if !is_used {
        for session in &sessions {
            session.delete().await;
        }
        assert_eq!(status(&gw, "children").await, 1);
    }
    page(&gw).await.submit(action, OTHER).await;
    eventually("the end of the child", async || {
        let mut children = gw.children().into_iter();
        (!children.any(|child| child.pid == pids[0])).then_some(())
    })
    .await;
    if is_used && action == "connect" {
        for session in &sessions {
            let key = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
            assert_eq!(key, OTHER);
        }
    }
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn shared_session_of_an_upstream_ends_with_the_account(#[values(true, false)] is_used: bool) {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &["--era", "legacy"]).await;
    upstream.judges(|token, _| Verdict::of(token == Some(KEY)));
    let state = tempfile::tempdir().unwrap();
    let keys = keys_table(state.path()).replace("env = \"TRACKER_TOKEN\"\n", "");
    let gw = Setup::open()
        .url("up", &upstream.url(), "isolation = \"principal\"\n")
        .toml(&keys)
        .start()
        .await;
    page(&gw).await.submit("connect", KEY).await;
    let session = gw.anonymous().open("/mcp/up").await;
    assert_eq!(session.text("echo", json!({"text": "one"})).await, "one");
    assert_eq!(status(&gw, "sessions").await, 1);
    if !is_used {
        session.delete().await;
    }
    page(&gw).await.submit("disconnect", "").await;
    eventually("the end of the session", async || {
        (status(&gw, "sessions").await == 0).then_some(())
    })
    .await;
    gw.stop().await;
}
