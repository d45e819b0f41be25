//! Failures of a tool call: some are errors of the protocol, others are tool results.
//! Spec: SPEC C-94.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

/// Sends one call to `path`; returns status and answer.
async fn asked(gw: &Gateway, client: &str, path: &str, params: Value) -> (u16, Value) {
    let answer = if client == "legacy" {
        let user = gw.anonymous().open(path).await;
        let id = user.next_id();
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        user.post(&call).await
    } else {
        let user = Modern::new(gw.anonymous(), path);
        user.post(&user.request(&json!(1), "tools/call", params))
            .await
    };
    (answer.status(), answer.message().await)
}

// Spec: SPEC C-94.
#[rstest]
#[tokio::test]
async fn unknown_tool_is_an_error_and_a_failed_one_a_result(
    #[values("legacy", "modern")] client: &str,
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/one", "/mcp")] path: &str,
) {
    let stub = HttpStub::start(&["--era", upstream]).await;
    let setup = Setup::open().http("one", &stub, "");
    let gw = setup.stub("two", &["--tools", "1"]).start().await;
    let prefix = if path == "/mcp" { "one__" } else { "" };
    for unknown in ["no_such_tool".to_owned(), format!("{prefix}no_such_tool")] {
        let params = json!({"name": unknown, "arguments": {}});
        let (status, answer) = asked(&gw, client, path, params).await;
        assert_eq!(answer["error"]["code"], -32602, "{unknown}: {answer}");
        assert!(matches!(status, 200 | 400), "{unknown}: {status}");
    }
    let params = json!({"name": format!("{prefix}fail"), "arguments": {"message": "no disk"}});
    let (status, answer) = asked(&gw, client, path, params).await;
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)));
    assert!(text_of(&answer["result"]).contains("no disk"), "{answer}");
    // A call without a name is refused here.
    let before = stub.counted("tools/call").await;
    let (_, answer) = asked(&gw, client, path, json!({"arguments": {}})).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    if path == "/mcp" {
        assert_eq!(stub.counted("tools/call").await, before);
    }
    gw.stop().await;
}
