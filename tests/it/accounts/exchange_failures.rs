//! Exchanges that fail: each cause by its own name, for the caller alone whose token it is.

use http::StatusCode;
use rstest::rstest;
use serde_json::json;

use super::personal::{PersonalUpstream, exchanges, exchanging};
use super::world::{Answering, AuthServer, logged, refusal, tells_none, token_requests};
use crate::harness::http::initialize;

// Columns: the status and the body of the answer, the outcome, what the log names as remedy.
#[rstest]
#[case::revoked(
    400,
    r#"{"error":"invalid_grant","error_description":"subject token is revoked"}"#,
    "invalid_grant",
    "it does not take the caller's token"
)]
#[case::forbidden(
    403,
    r#"{"error":"access_denied"}"#,
    "access_denied",
    "allow this client to exchange"
)]
#[case::target(400, r#"{"error":"invalid_target"}"#, "invalid_target", "`audience`")]
#[case::client(
    401,
    r#"{"error":"invalid_client"}"#,
    "invalid_client",
    "correct `client_id`"
)]
#[case::grant(
    400,
    r#"{"error":"unsupported_grant_type"}"#,
    "unsupported_grant_type",
    "support this grant type"
)]
#[case::other_type(200, r#"{"access_token":"hunter2","token_type":"N_A","issued_token_type":"urn:ietf:params:oauth:token-type:id_token"}"#, "token_type", "access tokens for an exchange")]
#[case::not_bearer(
    200,
    r#"{"access_token":"hunter2","token_type":"DPoP"}"#,
    "not_bearer",
    "Bearer"
)]
#[case::page(
    200,
    "<html>hunter2</html>",
    "unreadable",
    "what answers at the token endpoint"
)]
#[case::busy(503, "", "busy", "look into the log")]
#[tokio::test]
async fn failed_exchange_has_its_own_cause(
    #[case] status: u16,
    #[case] body: &str,
    #[case] outcome: &str,
    #[case] remedy: &str,
) {
    let server = AuthServer::start().await;
    server.answers(Answering::Status(status, body.to_owned()));
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    refusal(&gw).await;
    logged(&gw, remedy).await;
    assert!(token_requests(&gw, outcome).await > 0.5);
    let subject = server.forms()[0]["subject_token"].clone();
    tells_none(&gw, &[subject, "hunter2".to_owned()]).await;
    let reached = upstream.seen().iter().any(|(header, _)| header.is_some());
    assert!(
        !reached,
        "nothing is sent without a token: {:?}",
        upstream.seen()
    );
    gw.stop().await;
}

#[tokio::test]
async fn failure_of_one_caller_is_none_of_another() {
    let server = AuthServer::start().await;
    let refused = r#"{"error":"invalid_grant"}"#.to_owned();
    server.answers(Answering::Status(400, refused));
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    refusal(&gw).await;
    exchanges(&server, 600);
    let session = gw.principal("bob").open("/mcp/up").await;
    assert_eq!(session.text("greet_bob", json!({})).await, "I am bob");
    gw.stop().await;
}

// The refusal of a token is remembered for that token alone.
#[tokio::test]
async fn next_token_of_a_caller_is_exchanged_at_once() {
    let server = AuthServer::start().await;
    let refused = r#"{"error":"invalid_grant"}"#.to_owned();
    server.answers(Answering::Status(400, refused));
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let audience = format!("{}/mcp/up", gw.url);
    let actor = |id: &str| {
        let mut claims = gw
            .issuer()
            .claims("alice", std::slice::from_ref(&audience), "mcp:tools");
        claims["jti"] = id.into();
        gw.bearer(&gw.issuer().sign_own(&claims))
    };
    let hello = initialize(1, "2025-11-25", &json!({}));
    let (first, second) = (actor("one"), actor("two"));
    for _ in 0..3 {
        first.post("/mcp/up", &[], &hello).await.text().await;
    }
    assert_eq!(
        server.forms().len(),
        1,
        "the same token is not tried again at once"
    );
    exchanges(&server, 600);
    let answer = second.post("/mcp/up", &[], &hello).await;
    answer.expect(StatusCode::OK).await;
    assert_eq!(server.forms().len(), 2);
    gw.stop().await;
}
