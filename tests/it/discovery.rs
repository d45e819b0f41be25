//! How a client finds its authorization server: metadata and challenges.
//! Spec: RFC 9728, RFC 6750; SPEC.

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::http::initialize;
use crate::harness::{Gateway, Setup};

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

async fn gateway() -> Gateway {
    Setup::secured()
        .toml("[[auth.tool_scopes]]\ntools = [\"state_*\"]\nscopes = [\"mcp:admin\"]")
        .stub("stub", &[])
        .stub("other", &[])
        .start()
        .await
}

async fn metadata(gw: &Gateway, path: &str) -> Value {
    let answer = gw
        .anonymous()
        .get(&format!("{WELL_KNOWN}{path}"), &[("accept", "*/*")])
        .await;
    answer.expect(StatusCode::OK).await.json().await
}

#[tokio::test]
async fn each_endpoint_publishes_its_own_metadata() {
    let gw = gateway().await;
    for path in ["/mcp", "/mcp/stub", "/mcp/other"] {
        let document = metadata(&gw, path).await;
        assert_eq!(document["resource"], format!("{}{path}", gw.url));
        assert_eq!(
            document["authorization_servers"],
            json!(["https://issuer.test"])
        );
        assert_eq!(document["scopes_supported"], json!(["mcp:tools"]));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
    }
    // Spec: DESIGN §4: the root document is the `/mcp` document byte for byte.
    assert_eq!(metadata(&gw, "").await, metadata(&gw, "/mcp").await);
    let nobody = gw
        .anonymous()
        .get(&format!("{WELL_KNOWN}/mcp/nobody"), &[])
        .await;
    assert_eq!(nobody.status(), 404);
    gw.stop().await;
}

// Spec: SPEC A-03.
#[tokio::test]
async fn metadata_does_not_believe_the_host_header() {
    let gw = gateway().await;
    let headers = [
        ("host", "localhost:1"),
        ("x-forwarded-host", "evil.example"),
        ("accept", "*/*"),
    ];
    let answer = gw
        .anonymous()
        .get(&format!("{WELL_KNOWN}/mcp"), &headers)
        .await;
    assert_eq!(answer.json().await["resource"], format!("{}/mcp", gw.url));
    gw.stop().await;
}

// Spec: SPEC A-10, CLIENTS: Bearer first, scope and path-aware metadata.
#[tokio::test]
async fn without_a_token_the_challenge_leads_to_the_metadata() {
    let gw = gateway().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    for path in ["/mcp", "/mcp/stub"] {
        let answers = [
            gw.anonymous().post(path, &[], &hello).await,
            gw.anonymous().get(path, &[]).await,
        ];
        for answer in answers {
            assert_eq!(answer.status(), 401);
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Bearer "), "{challenge}");
            let url = format!("resource_metadata=\"{}{WELL_KNOWN}{path}\"", gw.url);
            assert!(challenge.contains(&url), "{challenge}");
            assert!(challenge.contains("scope=\"mcp:tools\""), "{challenge}");
            assert!(
                !challenge.contains("error="),
                "no error code without a token: {challenge}"
            );
        }
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_bad_token_is_told_so_and_nothing_reaches_the_upstream() {
    let gw = gateway().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let before = gw.children().len();
    for token in ["garbage", "a.b.c", "%%%"] {
        let answer = gw.bearer(token).post("/mcp/stub", &[], &hello).await;
        let status = answer.status();
        assert!(matches!(status, 400 | 401), "{token}: {status}");
        if status == 401 {
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
        }
    }
    assert_eq!(gw.children().len(), before, "no child was started");
    gw.stop().await;
}

// Spec: SPEC A-12.
#[tokio::test]
async fn a_token_in_the_query_is_none() {
    let gw = gateway().await;
    let alice = gw.principal("alice");
    let path = format!("/mcp/stub?access_token={}", alice.token().unwrap());
    let hello = initialize(1, "2025-11-25", &json!({}));
    assert!(matches!(
        gw.anonymous().post(&path, &[], &hello).await.status(),
        400 | 401
    ));
    gw.stop().await;
}

// Spec: SPEC; CLIENTS: old plus new scopes.
#[tokio::test]
async fn a_tool_that_needs_more_scopes_is_403_with_all_of_them() {
    let gw = gateway().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let message = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
                         "params": {"name": "state_get", "arguments": {"key": "k"}}});
    let refused = alice.post(&message).await;
    assert_eq!(refused.status(), 403);
    let challenge = refused.header("www-authenticate").unwrap().to_owned();
    assert!(
        challenge.contains("error=\"insufficient_scope\""),
        "{challenge}"
    );
    let scope = challenge
        .split("scope=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let scopes: Vec<&str> = scope.split(' ').collect();
    assert!(
        scopes.contains(&"mcp:tools") && scopes.contains(&"mcp:admin"),
        "{scope}"
    );
    // With the scope the same session goes on.
    let audience = [format!("{}/mcp/stub", gw.url)];
    let stepped_up = gw.bearer(&gw.issuer().mint("alice", &audience, "mcp:tools mcp:admin"));
    let answer = stepped_up
        .post("/mcp/stub", &alice.headers(), &message)
        .await;
    assert_eq!(answer.status(), 200);
    gw.stop().await;
}

// Spec: SPEC A-20: the audience is the path being called.
#[tokio::test]
async fn a_token_for_one_endpoint_is_none_for_another() {
    let gw = gateway().await;
    let audience = [format!("{}/mcp/stub", gw.url)];
    let alice = gw.bearer(&gw.issuer().mint("alice", &audience, "mcp:tools"));
    let hello = initialize(1, "2025-11-25", &json!({}));
    for (path, status) in [("/mcp/stub", 200), ("/mcp/other", 401), ("/mcp", 401)] {
        assert_eq!(
            alice.post(path, &[], &hello).await.status(),
            status,
            "{path}"
        );
    }
    gw.stop().await;
}
