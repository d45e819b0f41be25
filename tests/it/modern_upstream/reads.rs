//! Reads of resources are answered by the upstream each time. Spec: SPEC M-68.

use rstest::rstest;
use serde_json::json;

use super::count;
use crate::harness::Setup;
use crate::harness::upstream::HttpStub;
use crate::modern::Modern;

// Spec: SPEC M-68.
#[rstest]
#[tokio::test]
async fn read_after_an_answered_one_goes_upstream_again(#[values("/mcp/stub", "/mcp")] path: &str) {
    let stub = HttpStub::start(&["--era", "modern", "--ttl", "60000", "--scope", "public"]).await;
    let setup = Setup::open().http("stub", &stub, "");
    let gw = setup.stub("other", &["--tools", "1"]).start().await;
    let user = Modern::new(gw.anonymous(), path);
    let prefix = if path == "/mcp" { "stub+" } else { "" };
    let uri = format!("{prefix}stub://asks");
    let read = json!({ "uri": uri });
    let asked = user.send("resources/read", read.clone()).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    for hint in ["ttlMs", "cacheScope"] {
        assert_eq!(asked.get(hint), None, "{asked}");
    }
    let mut retry = read.clone();
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    retry["inputResponses"] = json!({"q": answer});
    retry["requestState"] = asked["requestState"].clone();
    let done = user.send("resources/read", retry).await.unwrap();
    assert!(done["contents"].to_string().contains("Ada"), "{done}");
    let before = count(&stub, "resources/read").await;
    let plain = user.send("resources/read", read).await.unwrap();
    assert_eq!(plain["resultType"], "input_required", "{plain}");
    assert_eq!(count(&stub, "resources/read").await, before + 1);
    gw.stop().await;
}
