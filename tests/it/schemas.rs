//! Tool schemas pass unchanged, and their references are never fetched. Spec: SPEC C-90, C-91.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::upstream::serve;
use crate::harness::{Answer, Gateway, Setup};
use crate::modern::Modern;
use crate::unsteady_upstream::usual;

/// Order, spelling, keywords and dialect that a reader and writer of JSON would change or drop.
const ODD: &str = r##"{"zeta":{"b":1,"a":[1.0,1E2,-0.0,12345678901234567890]},"type":"object","$schema":"http://json-schema.org/draft-07/schema#","$defs":{"z":{"type":"string","x-unit":"m\/s"},"a":{}},"properties":{"é":{"$ref":"#/$defs/z"},"b":{"type":"integer","maximum":1e400}},"x-vendor":null,"required":[],"$comment":"kept"}"##;

/// Count of requests to the host named in the schemas.
type Fetched = Arc<AtomicUsize>;

/// Starts a host that counts its requests; returns its origin.
async fn host() -> (String, Fetched) {
    let fetched = Fetched::default();
    let count = Arc::clone(&fetched);
    let origin = serve(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Response::new(Body::from(r#"{"type":"object"}"#)) }
    });
    (origin.await, fetched)
}

/// An upstream with one tool, `odd`, whose schemas are both `schema`; its URL.
async fn listing(schema: &str) -> String {
    let schema = schema.to_owned();
    let answer = move |request: Request| {
        let schema = schema.clone();
        async move {
            let method = request.method().clone();
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            if body["method"] != "tools/list" {
                return usual(&method, &body);
            }
            let id = &body["id"];
            let tool =
                format!(r#"{{"name":"odd","inputSchema":{schema},"outputSchema":{schema}}}"#);
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{tool}]}}}}"#
            );
            let response = Response::builder().header("content-type", "application/json");
            response.body(Body::from(text)).unwrap()
        }
    };
    serve(answer).await + "/mcp"
}

/// A gateway before it, with another upstream on the merged endpoint.
async fn before(url: &str, upstream: &str) -> Gateway {
    let keys = format!("era = {upstream:?}");
    let setup = Setup::open().url("up", url, &keys);
    setup.stub("other", &["--tools", "1"]).start().await
}

/// The answer to `tools/list` and, after it, to a call of the tool.
async fn listed_and_called(gw: &Gateway, client: &str, path: &str) -> [Answer; 2] {
    let tool = if path == "/mcp" { "up__odd" } else { "odd" };
    let call = json!({"name": tool, "arguments": {"é": 7, "b": "x"}});
    if client == "legacy" {
        let user = gw.anonymous().open(path).await;
        let request = |id: i64, method: &str, params: &Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let listed = user.post(&request(10, "tools/list", &json!({}))).await;
        [listed, user.post(&request(11, "tools/call", &call)).await]
    } else {
        let user = Modern::new(gw.anonymous(), path);
        let list = user.request(&json!(10), "tools/list", json!({}));
        let call = user.request(&json!(11), "tools/call", call);
        [user.post(&list).await, user.post(&call).await]
    }
}

// Spec: SPEC C-90.
#[rstest]
#[tokio::test]
async fn schema_reaches_the_client_byte_for_byte(
    #[values("legacy", "modern")] client: &str,
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/up", "/mcp")] path: &str,
) {
    let gw = before(&listing(ODD).await, upstream).await;
    // From the upstream, and from the kept list.
    for _ in 0..2 {
        let [listed, called] = listed_and_called(&gw, client, path).await;
        let listed = listed.text().await;
        assert_eq!(listed.matches(ODD).count(), 2, "{listed}");
        // Arguments are for the upstream to check: they match neither dialect's reading of the schema.
        let called = called.message().await;
        assert!(called["result"]["content"].is_array(), "{called}");
    }
    gw.stop().await;
}

// Spec: SPEC C-91.
#[rstest]
#[tokio::test]
async fn schema_on_the_network_is_not_fetched(
    #[values("legacy", "modern")] client: &str,
    #[values("legacy", "modern")] upstream: &str,
    #[values("/mcp/up", "/mcp")] path: &str,
) {
    let (origin, fetched) = host().await;
    let schema = json!({
        "$schema": format!("{origin}/dialect"), "$id": format!("{origin}/id"), "type": "object",
        "properties": {
            "é": {"$ref": format!("{origin}/schema.json")},
            "b": {"$dynamicRef": format!("{origin}/schema.json#b")},
        },
        "allOf": [{"$ref": format!("{origin}/all.json#/$defs/x")}],
    });
    let gw = before(&listing(&schema.to_string()).await, upstream).await;
    let [listed, called] = listed_and_called(&gw, client, path).await;
    let listed = listed.message().await.to_string();
    assert!(listed.contains("/schema.json"), "{listed}");
    let called = called.message().await;
    assert!(called["result"]["content"].is_array(), "{called}");
    gw.stop().await;
    assert_eq!(fetched.load(Ordering::SeqCst), 0);
}
