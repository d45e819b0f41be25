//! User interfaces of servers behind one gateway: whose tools they reach. Spec: SPEC N-03.

use rstest::rstest;
use serde_json::json;

use crate::harness::Setup;
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::modern::Modern;

/// The extension of user interfaces.
const UI: &str = r#"{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}"#;

// Spec: SPEC N-03: on the path of its own upstream an interface reaches that one alone.
#[rstest]
#[tokio::test]
async fn app_reaches_no_tool_of_another_upstream(#[values("legacy", "modern")] client: &str) {
    // Only `two` has an interface, and with it a tool that is for interfaces alone.
    let one = HttpStub::start(&[]).await;
    let two = HttpStub::start(&["--extensions", UI]).await;
    let setup = Setup::open().http("one", &one, "");
    let gw = setup.http("two", &two, "").start().await;
    let capabilities =
        json!({"extensions": serde_json::from_str::<serde_json::Value>(UI).unwrap()});
    let call = async |path: &str, name: &str| {
        let capabilities = capabilities.clone();
        let params = json!({"name": name, "arguments": {}});
        if client == "legacy" {
            let actor = gw.anonymous();
            let user = actor.open_as(path, "2025-11-25", capabilities).await;
            user.request("tools/call", params).await
        } else {
            let user = Modern::with(gw.anonymous(), path, capabilities);
            user.send("tools/call", params).await
        }
    };
    let shown = call("/mcp/two", "dashboard").await.expect("its own tool");
    assert_eq!(text_of(&shown), "shown");
    let before = two.counted("tools/call").await;
    for name in ["two__dashboard", "two/dashboard", "two:dashboard"] {
        let refused = call("/mcp/one", name).await.expect_err(name);
        assert_eq!(refused["code"], -32602, "{name}: {refused}");
    }
    // Forwarded to `one`, although `one` does not list the tool.
    drop(call("/mcp/one", "dashboard").await);
    assert_eq!(two.counted("tools/call").await, before);
    // On a merged endpoint, the tool's own name and the prefixed name call the same tool.
    for name in ["dashboard", "two__dashboard"] {
        assert_eq!(text_of(&call("/mcp", name).await.expect(name)), "shown");
    }
    gw.stop().await;
}
