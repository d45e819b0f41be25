//! `kind = "client_credentials"`: one account for all callers. Spec: SPEC B-05, B-12, B-14, B-17.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;

use super::world::{
    Answering, AuthServer, GuardedUpstream, SECRET, Verdict, gateway, tells_none, token_requests,
    with_keys,
};
use crate::harness::session::{Session, text_of};
use crate::harness::{Gateway, eventually};
use crate::modern::Modern;

/// A gateway before an upstream with one account for all, whose tokens last `lasts` seconds, and the session of a caller
/// who has used it.
async fn in_use(lasts: u64) -> (AuthServer, GuardedUpstream, Gateway, Session) {
    let server = AuthServer::start().await;
    server.answers(Answering::Tokens(Some(lasts)));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = gateway(&server, &upstream).await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    (server, upstream, gw, session)
}

#[tokio::test]
async fn legacy_and_modern_clients_are_served_with_one_token() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &["--era", "dual"]).await;
    let gw = gateway(&server, &upstream).await;
    let (alice, bob) = (gw.principal("alice"), gw.principal("bob"));
    let downstream: Vec<String> = [&alice, &bob]
        .map(|one| one.token().unwrap().to_owned())
        .to_vec();
    let legacy = alice.open("/mcp/up").await;
    assert_eq!(legacy.text("echo", json!({"text": "old"})).await, "old");
    let modern = Modern::new(bob, "/mcp/up");
    let call = json!({"name": "echo", "arguments": {"text": "new"}});
    let answer = modern
        .post(&modern.request(&json!(1), "tools/call", call))
        .await;
    let answer = answer.expect(StatusCode::OK).await.json().await;
    assert_eq!(text_of(&answer["result"]), "new");

    let forms = server.forms();
    assert_eq!(forms.len(), 1, "{forms:?}");
    assert_eq!(forms[0]["grant_type"], "client_credentials");
    assert_eq!(forms[0]["resource"], upstream.url());
    assert_eq!(forms[0]["scope"], "notes:read");
    let basic = BASE64_STANDARD.encode(format!("drawbridge:{SECRET}"));
    assert_eq!(server.authorization(), [Some(format!("Basic {basic}"))]);
    assert!((token_requests(&gw, "ok").await - 1.0).abs() < 0.5);

    // The first request reads the challenge.
    let seen = upstream.seen();
    assert_eq!(seen[0], (None, String::new()));
    let expected = Some(format!("Bearer {}", server.issued()[0]));
    assert!(
        seen[1..].iter().all(|(header, _)| *header == expected),
        "{seen:?}"
    );
    let all = [downstream, server.issued(), vec![SECRET.to_owned()]].concat();
    tells_none(&gw, &all).await;
    gw.stop().await;
}

// SPEC B-12
#[tokio::test]
async fn a_hundred_calls_after_the_end_of_a_token_make_one_request() {
    let (server, _upstream, gw, session) = in_use(1).await;
    // The token's whole life.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.answers(Answering::Tokens(Some(600)));
    let before = server.issued().len();
    let calls = (0..100).map(|_| session.call("echo", json!({"text": "x"})));
    for outcome in join_all(calls).await {
        outcome.unwrap();
    }
    assert_eq!(server.issued().len(), before + 1);
    gw.stop().await;
}

#[tokio::test]
async fn a_token_that_ends_soon_is_refreshed_while_it_is_used() {
    let (server, _upstream, gw, session) = in_use(4).await;
    eventually("a refresh", async || {
        session.call("echo", json!({"text": "x"})).await.unwrap();
        (server.issued().len() > 1).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn a_hundred_calls_with_a_revoked_token_make_one_request() {
    let (server, upstream, gw, session) = in_use(600).await;
    upstream.judges(without_the_first(&server));
    let calls = (0..100).map(|_| session.call("echo", json!({"text": "x"})));
    for outcome in join_all(calls).await {
        outcome.unwrap();
    }
    assert_eq!(server.issued().len(), 2);
    gw.stop().await;
}

/// Takes any token but the first.
fn without_the_first(
    server: &AuthServer,
) -> impl Fn(Option<&str>, &str) -> Verdict + Send + 'static {
    let server = server.clone();
    move |token, _| {
        let issued = server.issued();
        Verdict::of(issued.iter().skip(1).any(|one| Some(one.as_str()) == token))
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_a_token_gets_another_one_once() {
    let (server, upstream, gw, session) = in_use(600).await;
    // The token was revoked.
    upstream.judges(without_the_first(&server));
    assert_eq!(
        session.text("echo", json!({"text": "again"})).await,
        "again"
    );
    assert_eq!(server.issued().len(), 2);
    assert_eq!(upstream.count("again"), 2, "refused, and made again");
    // And now every one is.
    upstream.judges(|_, _| Verdict::Unauthorized);
    let refused = session.call("echo", json!({"text": "never"})).await;
    let error = refused.unwrap().to_string();
    assert!(error.contains("HTTP status 401"), "{error}");
    assert_eq!(server.issued().len(), 2, "at most one a minute");
    assert_eq!(upstream.count("never"), 1);
    let status = gw.admin_text("/status?format=json").await.unwrap().1;
    assert!(status.contains("to a token of its account"), "{status}");
    assert!(
        !status.contains("\"down\"") && !status.contains("\"degraded\""),
        "{status}"
    );
    gw.stop().await;
}

// SPEC B-11
#[tokio::test]
async fn a_call_that_needs_more_scopes_has_them_added() {
    let (server, upstream, gw, session) = in_use(600).await;
    let granted = server.clone();
    upstream.judges(move |_, body| {
        let last = granted
            .forms()
            .last()
            .unwrap()
            .get("scope")
            .cloned()
            .unwrap();
        let is_missing = body.contains("write it") && !last.contains("notes:write");
        Verdict::unless(is_missing, "notes:write")
    });
    assert_eq!(
        session.text("echo", json!({"text": "write it"})).await,
        "write it"
    );
    let scopes: Vec<_> = server
        .forms()
        .iter()
        .map(|form| form["scope"].clone())
        .collect();
    assert_eq!(scopes, ["notes:read", "notes:read notes:write"]);
    gw.stop().await;
}

// SPEC B-11
#[tokio::test]
async fn each_scope_is_added_once() {
    let (server, upstream, gw, session) = in_use(600).await;
    let round = Arc::new(AtomicUsize::new(0));
    upstream.judges(move |_, body| {
        const MORE: [&str; 4] = ["a", "b", "c", "d"];
        if !body.contains("more") {
            return Verdict::Good;
        }
        let round = round.fetch_add(1, Ordering::Relaxed);
        Verdict::Lacks(MORE[round % 4])
    });
    for _ in 0..8 {
        let refused = session.call("echo", json!({"text": "more"})).await;
        let error = refused.unwrap().to_string();
        assert!(error.contains("HTTP status 403"), "{error}");
    }
    assert_eq!(server.issued().len(), 5, "the first, and four with more");
    gw.stop().await;
}

#[tokio::test]
async fn scopes_of_the_configuration_are_final() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = with_keys(&server, &upstream, "scopes = [\"only:this\"]").await;
    let session = gw.principal("alice").open("/mcp/up").await;
    upstream.judges(|_, body| Verdict::unless(body.contains("more"), "notes:write"));
    let refused = session.call("echo", json!({"text": "more"})).await.unwrap();
    assert!(refused.to_string().contains("HTTP status 403"), "{refused}");
    let scopes: Vec<_> = server
        .forms()
        .iter()
        .map(|form| form["scope"].clone())
        .collect();
    assert_eq!(scopes, ["only:this"]);
    gw.stop().await;
}

#[tokio::test]
async fn the_token_goes_into_the_header_that_is_named() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    upstream.judges(|token, _| Verdict::of(token.is_none()));
    let gw = with_keys(&server, &upstream, "header = \"X-Token\"\nprefix = \"\"").await;
    let session = gw.principal("alice").open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.issued().len(), 1);
    gw.stop().await;
}
