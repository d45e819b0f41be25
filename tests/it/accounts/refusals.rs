//! Authorization servers that give no token. Spec: SPEC B-12, X-02; RFC 6749 §5.2.

use rstest::rstest;
use serde_json::{Value, json};

use super::world::{
    Answering, AuthServer, GuardedUpstream, SECRET, gateway, logged, refusal, tells_none,
    token_requests,
};
use crate::harness::eventually;
use crate::harness::http::initialize;

#[rstest]
#[case::wrong_secret(
    401,
    "{\"error\":\"invalid_client\",\"error_description\":\"secret page\"}",
    "invalid_client",
    "correct `client_id`"
)]
#[case::not_allowed(
    400,
    "{\"error\":\"unauthorized_client\"}",
    "unauthorized_client",
    "allow this grant type"
)]
#[case::unknown_resource(
    400,
    "{\"error\":\"invalid_target\"}",
    "invalid_target",
    "know the resource"
)]
#[case::made_up(
    400,
    "{\"error\":\"secret page\"}",
    "unreadable",
    "what answers at the token endpoint"
)]
#[case::no_oauth(404, "secret page", "unreadable", "what answers at the token endpoint")]
#[case::no_json(200, "secret page", "unreadable", "what answers at the token endpoint")]
#[case::another_type(
    200,
    "{\"access_token\":\"secret page\",\"token_type\":\"mac\"}",
    "not_bearer",
    "give Bearer tokens"
)]
#[case::broken(500, "secret page", "busy", "log of the authorization server")]
#[case::oversized(200, "LARGE", "unreadable", "what answers at the token endpoint")]
#[tokio::test]
async fn the_caller_learns_that_and_the_operator_why(
    #[case] status: u16,
    #[case] body: &str,
    #[case] outcome: &str,
    #[case] remedy: &str,
) {
    let server = AuthServer::start().await;
    let body = body.replace("LARGE", &"x".repeat(100_000));
    server.answers(Answering::Status(status, body));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = gateway(&server, &upstream).await;
    let error = refusal(&gw).await;
    assert!(!error.contains("secret page"), "{error}");
    logged(&gw, "the account of an upstream cannot be used").await;
    logged(&gw, remedy).await;
    assert!(token_requests(&gw, outcome).await >= 1.0);
    let (_, shown) = gw.admin_text("/status?format=json").await.unwrap();
    assert!(shown.contains(remedy), "{shown}");
    assert!(
        !shown.contains("\"down\"") && !shown.contains("\"degraded\""),
        "{shown}"
    );
    tells_none(&gw, &[SECRET.to_owned()]).await;
    assert_eq!(upstream.count("initialize"), 0);
    gw.stop().await;
}

#[tokio::test]
async fn a_server_that_is_down_for_a_while_is_asked_again() {
    let server = AuthServer::start().await;
    server.answers(Answering::Status(503, String::new()));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = gateway(&server, &upstream).await;
    for _ in 0..50 {
        refusal(&gw).await;
    }
    let asked = server.forms().len();
    assert!(asked < 10, "{asked} requests for 50 calls");
    server.answers(Answering::Tokens(Some(600)));
    let alice = gw.principal("alice");
    eventually("a session with a token", async || {
        let hello = initialize(1, "2025-11-25", &json!({}));
        let answer = alice.post("/mcp/up", &[], &hello).await.text().await;
        answer.contains("serverInfo").then_some(())
    })
    .await;
    let (_, shown) = gw.admin_text("/status?format=json").await.unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let account = json!({"kind": "client_credentials", "cause": null});
    assert_eq!(shown["upstreams"][0]["account"], account);
    gw.stop().await;
}
