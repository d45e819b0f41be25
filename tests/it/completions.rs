//! Completion values: a client is given a hundred at most. Spec: SPEC C-30.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::harness::upstream::serve;
use crate::modern::Modern;
use crate::unsteady_upstream::usual;

/// An upstream that completes everything with 150 values; its URL.
async fn talkative() -> String {
    let answer = async |request: Request| {
        let method = request.method().clone();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let capabilities = json!({"completions": {}, "prompts": {}});
        let result = match body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "serverInfo": {"name": "t", "version": "1"},
                "capabilities": capabilities,
            }),
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "ttlMs": 60_000, "cacheScope": "public",
            }),
            Some("completion/complete") => {
                let values: Vec<_> = (0..150).map(|number| format!("v{number}")).collect();
                json!({
                    "resultType": "complete", "_meta": {"x": 1},
                    "completion": {"values": values, "total": 150, "hasMore": false},
                })
            }
            _ => return usual(&method, &body),
        };
        let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let response = Response::builder().header("content-type", "application/json");
        response.body(Body::from(reply.to_string())).unwrap()
    };
    serve(answer).await + "/mcp"
}

// Spec: SPEC C-30.
#[rstest]
#[tokio::test]
async fn client_is_given_a_hundred_completions_and_told_of_more(
    #[values("legacy", "modern")] client: &str,
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/up", "/mcp")] path: &str,
) {
    let keys = format!("era = {upstream:?}");
    let setup = Setup::open().url("up", &talkative().await, &keys);
    let gw = setup.stub("other", &["--tools", "1"]).start().await;
    let prompt = if path == "/mcp" { "up__p" } else { "p" };
    let params = json!({
        "ref": {"type": "ref/prompt", "name": prompt},
        "argument": {"name": "a", "value": "v"},
    });
    let reply = if client == "legacy" {
        let user = gw.anonymous().open(path).await;
        user.request("completion/complete", params).await
    } else {
        let user = Modern::new(gw.anonymous(), path);
        user.send("completion/complete", params).await
    };
    let result = reply.expect("completions");
    let completion = &result["completion"];
    let values = completion["values"].as_array().unwrap();
    assert_eq!(values.len(), 100);
    assert_eq!((&values[0], &values[99]), (&json!("v0"), &json!("v99")));
    assert_eq!(completion["hasMore"], true, "{completion}");
    assert_eq!(completion["total"], 150, "{completion}");
    assert_eq!(result["_meta"]["x"], 1, "{result}");
    gw.stop().await;
}
