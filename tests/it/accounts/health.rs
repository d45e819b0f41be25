//! What is known of an upstream with accounts: a refusal says something of an account, never of the upstream.

use rstest::rstest;
use serde_json::json;

use super::user::server::ConsentServer;
use super::user::world::{setup, upstream_of};
use super::world::{Answering, AuthServer, GuardedUpstream, Verdict, account, gateway};
use crate::harness::http::initialize;
use crate::harness::{Answer, Gateway, Setup, eventually};

/// Values of `drawbridge.upstream.state`.
const CONNECTING: f64 = 0.0;
const UP: f64 = 1.0;
const DOWN: f64 = 3.0;

const PROBES: &str = "[health]\ninterval = \"1s\"\n";

async fn state(gw: &Gateway) -> f64 {
    let labels = "drawbridge_upstream=\"up\"";
    gw.metric("drawbridge_upstream_state", labels).await
}

async fn reaches(gw: &Gateway, expected: f64) {
    eventually(&format!("the state {expected}"), async || {
        ((state(gw).await - expected).abs() < 0.5).then_some(())
    })
    .await;
}

async fn stays(gw: &Gateway, expected: f64) {
    let now = state(gw).await;
    assert!((now - expected).abs() < 0.5, "{now}, not {expected}");
}

async fn hello(gw: &Gateway) -> Answer {
    let hello = initialize(1, "2025-11-25", &json!({}));
    gw.principal("alice").post("/mcp/up", &[], &hello).await
}

#[rstest]
#[case::unauthorized(Verdict::Unauthorized)]
#[case::forbidden(Verdict::Lacks("more"))]
#[tokio::test]
async fn refusal_of_an_account_is_none_of_its_upstream(#[case] verdict: Verdict) {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let refused = verdict.clone();
    upstream.judges(move |_, _| refused.clone());
    let gw = gateway(&server, &upstream).await;
    for _ in 0..3 {
        let said = hello(&gw).await.text().await;
        assert!(said.contains("is not available"), "{said}");
    }
    stays(&gw, CONNECTING).await;
    upstream.judges(move |_, body| {
        if body.contains("refused") {
            verdict.clone()
        } else {
            Verdict::Good
        }
    });
    eventually("a session", async || {
        let answer = hello(&gw).await;
        answer.header("mcp-session-id").is_some().then_some(())
    })
    .await;
    let session = gw.principal("alice").open("/mcp/up").await;
    reaches(&gw, UP).await;
    for _ in 0..3 {
        let said = session.call("echo", json!({"text": "refused"})).await;
        let is_error = said.map_or(true, |said| said["isError"] == true);
        assert!(is_error);
    }
    stays(&gw, UP).await;
    gw.stop().await;
}

// A refused probe proves that the upstream is up.
#[tokio::test]
async fn probe_goes_without_an_account_of_a_user() {
    let server = ConsentServer::start().await;
    let upstream = upstream_of(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let gw = setup(&upstream, directory.path(), "").toml(PROBES);
    let gw = gw.start().await;
    reaches(&gw, UP).await;
    upstream.judges(|_, _| Verdict::Down);
    reaches(&gw, DOWN).await;
    upstream.judges(|_, _| Verdict::Unauthorized);
    reaches(&gw, UP).await;
    let seen = upstream.seen();
    assert!(seen.len() > 3, "{seen:?}");
    assert!(seen.iter().all(|(token, _)| token.is_none()), "{seen:?}");
    assert_eq!(server.looked_up(), 0, "nobody has an account");
    gw.stop().await;
}

// It is refused, and gets no token: this says nothing of the upstream.
#[tokio::test]
async fn probe_that_gets_no_account_blames_no_upstream() {
    let server = AuthServer::start().await;
    server.answers(Answering::Status(503, String::new()));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let setup = Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&account(&server, ""))
        .toml(PROBES);
    let gw = setup.start().await;
    eventually("three probes", async || {
        (upstream.seen().len() > 2).then_some(())
    })
    .await;
    stays(&gw, CONNECTING).await;
    let seen = upstream.seen();
    assert!(seen.iter().all(|(token, _)| token.is_none()), "{seen:?}");
    server.answers(Answering::Tokens(Some(600)));
    reaches(&gw, UP).await;
    gw.stop().await;
}
