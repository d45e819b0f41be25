//! Questions that no upstream may ask, and questions that need a capability of the client.
//! Spec: SPEC C-70, C-82, C-83.

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::session::{Exchange, text_of};
use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

/// A gateway before servers of both eras.
async fn gateway() -> Gateway {
    let setup = Setup::open().stub("legacy", &[]);
    setup.stub("modern", &["--era", "modern"]).start().await
}

const BAD_LINKS: [&str; 5] = [
    "javascript:alert(1)",
    "not a url at all",
    "https:///path",
    "file:///etc/passwd",
    "",
];

// SPEC C-82.
#[tokio::test]
async fn link_that_no_browser_opens_as_a_page_is_not_asked() {
    let gw = gateway().await;
    for path in ["/mcp/legacy", "/mcp/modern", "/mcp"] {
        let tool = match path {
            "/mcp" => "legacy__ask_url",
            _ => "ask_url",
        };
        let legacy = gw.anonymous().open(path).await;
        let modern = Modern::new(gw.anonymous(), path);
        for url in BAD_LINKS {
            let arguments = json!({"url": url});
            let (_, exchange) = legacy.start_call(tool, arguments.clone()).await;
            let (asked, reply) = exchange.finish().await;
            assert!(asked.is_empty(), "{url} {asked:?}");
            let told = [
                reply.expect("a result"),
                modern.call(tool, arguments).await.expect("a result"),
            ];
            for result in told {
                let text = text_of(&result);
                assert!(
                    text.contains("http or https URL with a host"),
                    "{url}: {text}"
                );
                // A legacy upstream is told so, and its call goes on.
                assert_eq!(text.contains("-32602"), path != "/mcp/modern", "{text}");
            }
        }
    }
    gw.stop().await;
}

// SPEC C-83.
#[tokio::test]
async fn error_with_a_bad_link_is_not_shown() {
    let gw = gateway().await;
    for (path, tool) in [
        ("/mcp/legacy", "needs_visit"),
        ("/mcp", "legacy__needs_visit"),
    ] {
        let legacy = gw.anonymous().open(path).await;
        let modern = Modern::new(gw.anonymous(), path);
        let arguments = json!({"url": "javascript:alert(1)"});
        let replies = [
            legacy.call(tool, arguments.clone()).await,
            modern.call(tool, arguments).await,
        ];
        for reply in replies {
            let result = reply.expect("a tool's failure");
            assert_eq!(result["isError"], true, "{result}");
            assert_ne!(result["resultType"], "input_required");
            assert!(!result.to_string().contains("javascript"), "{result}");
        }
    }
    gw.stop().await;
}

/// The question of a call for a completion, at a client that declared this of sampling.
async fn asked(gw: &Gateway, path: &str, revision: &str, sampling: Value) -> Value {
    let declared = json!({ "sampling": sampling });
    let user = gw.anonymous().open_as(path, revision, declared).await;
    let (_, mut exchange) = user.start_call("ask_sampling", json!({})).await;
    loop {
        let message = exchange.next().await.expect("a question");
        if message.get("id").is_some() {
            return message;
        }
    }
}

// SPEC C-70: before 2025-11-25 it was no capability of its own.
#[rstest]
#[case("2025-11-25", json!({}), "none")]
#[case("2025-11-25", json!({"context": {}}), "thisServer")]
#[case("2025-06-18", json!({}), "thisServer")]
#[tokio::test]
async fn context_is_asked_of_clients_that_offer_it(
    #[case] revision: &str,
    #[case] sampling: Value,
    #[case] expected: &str,
) {
    let gw = gateway().await;
    for path in ["/mcp/legacy", "/mcp/modern"] {
        let question = asked(&gw, path, revision, sampling.clone()).await;
        assert_eq!(question["params"]["includeContext"], expected, "{path}");
    }
    let declared = json!({ "sampling": sampling });
    if revision == "2025-11-25" {
        let user = Modern::with(gw.anonymous(), "/mcp/modern", declared);
        let asked = user.call("ask_sampling", json!({})).await.unwrap();
        let question = &asked["inputRequests"]["sample"];
        assert_eq!(question["params"]["includeContext"], expected, "{asked}");
    }
    gw.stop().await;
}

// SPEC C-70.
#[rstest]
#[case(json!({}), "-32601")]
#[case(json!({"tools": {}}), "-32602")]
#[tokio::test]
async fn unanswered_tool_use_is_not_asked(#[case] sampling: Value, #[case] code: &str) {
    let gw = gateway().await;
    let user = gw.anonymous();
    let declared = json!({ "sampling": sampling });
    let user = user.open_as("/mcp/legacy", "2025-11-25", declared).await;
    let (_, exchange): (i64, Exchange) = user
        .start_call("ask_sampling", json!({"shape": "used"}))
        .await;
    let (asked, reply) = exchange.finish().await;
    assert!(asked.is_empty(), "{asked:?}");
    let said = reply.expect("a result");
    assert!(text_of(&said).contains(code), "{said}");
    gw.stop().await;
}
