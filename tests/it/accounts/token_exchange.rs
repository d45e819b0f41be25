//! `kind = "token_exchange"`: each caller at the upstream as itself. Spec: RFC 8693; SPEC A-22, B-05.

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::personal::{PersonalUpstream, exchange, exchanges, exchanging};
use super::world::{
    Answering, AuthServer, GuardedUpstream, SECRET, Verdict, logged, tells_none, token_requests,
};
use crate::harness::http::{Actor, everything};
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup};
use crate::modern::Modern;

/// What a legacy client is told in a session of its own: hello, tools, the answer of the tool.
async fn legacy_says(actor: &Actor, user: &str) -> String {
    let session = actor.open_as("/mcp/up", "2025-11-25", everything()).await;
    let tools = session.request("tools/list", json!({})).await.unwrap();
    let answer = session
        .call(&format!("greet_{user}"), json!({}))
        .await
        .unwrap();
    format!("{} {tools} {answer}", session.hello)
}

/// The same of a modern client.
async fn modern_says(actor: &Actor, user: &str) -> String {
    let client = Modern::new(actor.clone(), "/mcp/up");
    let mut said = String::new();
    let call = json!({"name": format!("greet_{user}"), "arguments": {}});
    for (method, params) in [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("tools/call", call),
    ] {
        let message = client.request(&json!(1), method, params);
        let answer = client.post(&message).await.expect(StatusCode::OK).await;
        let answer = answer.json().await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        said += &answer["result"].to_string();
    }
    said
}

async fn says(actor: &Actor, user: &str) -> String {
    legacy_says(actor, user).await + &modern_says(actor, user).await
}

#[rstest]
#[tokio::test]
async fn two_users_never_see_what_is_of_the_other(
    #[values("session", "principal")] isolation: &str,
    #[values(true, false)] is_legacy: bool,
) {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = PersonalUpstream::start(&server, is_legacy).await;
    let isolation = format!("isolation = {isolation:?}");
    let gw = exchanging(&server, &upstream.url(), &isolation).await;
    let (alice, bob) = (gw.principal("alice"), gw.principal("bob"));
    // Cold, both at once, then warm, each after the other.
    let (first, second) = tokio::join!(says(&alice, "alice"), says(&bob, "bob"));
    let (third, fourth) = (says(&alice, "alice").await, says(&bob, "bob").await);
    for said in [first, third] {
        assert!(
            said.contains("I am alice") && said.contains("Hello alice"),
            "{said}"
        );
        assert!(
            said.contains("Greets alice") && !said.contains("bob"),
            "{said}"
        );
    }
    for said in [second, fourth] {
        assert!(
            said.contains("I am bob") && said.contains("Hello bob"),
            "{said}"
        );
        assert!(
            said.contains("Greets bob") && !said.contains("alice"),
            "{said}"
        );
    }
    let downstream = [&alice, &bob].map(|one| one.token().unwrap().to_owned());
    let forms = server.forms();
    assert_eq!(forms.len(), 2, "one exchange for each: {forms:?}");
    for form in &forms {
        assert_eq!(
            form["grant_type"],
            "urn:ietf:params:oauth:grant-type:token-exchange"
        );
        assert_eq!(
            form["subject_token_type"],
            "urn:ietf:params:oauth:token-type:access_token"
        );
        assert_eq!(form["resource"], upstream.url());
        assert_eq!(form["scope"], "notes:read");
        assert!(downstream.contains(&form["subject_token"]), "{form:?}");
        assert!(!form.contains_key("audience"), "{form:?}");
    }
    for (header, method) in upstream.seen() {
        let is_foreign = |header: &String| downstream.iter().any(|token| header.contains(token));
        assert!(
            !header.as_ref().is_some_and(is_foreign),
            "{method}: {header:?}"
        );
    }
    assert!((token_requests(&gw, "ok").await - 2.0).abs() < 0.5);
    let all = [
        downstream.to_vec(),
        server.issued(),
        vec![SECRET.to_owned()],
    ]
    .concat();
    tells_none(&gw, &all).await;
    gw.stop().await;
}

#[tokio::test]
async fn hundred_first_calls_of_a_caller_make_one_exchange() {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let alice = gw.principal("alice");
    let sessions = (0..10).map(|_| alice.open("/mcp/up"));
    let sessions = join_all(sessions).await;
    let calls = (0..100).map(|at| sessions[at % 10].call("greet_alice", json!({})));
    for outcome in join_all(calls).await {
        assert_eq!(text_of(&outcome.unwrap()), "I am alice");
    }
    assert_eq!(server.issued().len(), 1);
    gw.stop().await;
}

/// A token of alice with `scope`, whose end is in `seconds`.
fn minted(gw: &Gateway, scope: &str, seconds: u64) -> Actor {
    let audience = format!("{}/mcp/up", gw.url);
    let mut claims = gw.issuer().claims("alice", &[audience], scope);
    claims["exp"] = (claims["iat"].as_u64().unwrap() + seconds).into();
    claims["jti"] = rand::random::<u64>().to_string().into();
    gw.bearer(&gw.issuer().sign_own(&claims))
}

#[tokio::test]
async fn call_with_fewer_scopes_is_made_with_a_token_of_its_own() {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let wide = minted(&gw, "mcp:tools mcp:admin", 600);
    let narrow = minted(&gw, "mcp:tools", 600);
    let session = wide.open("/mcp/up").await;
    session.call("greet_alice", json!({})).await.unwrap();
    let call = json!({
        "jsonrpc": "2.0", "id": 99, "method": "tools/call",
        "params": {"name": "greet_alice", "arguments": {}},
    });
    let answer = narrow.post("/mcp/up", &session.headers(), &call).await;
    let answer = answer.expect(StatusCode::OK).await.message().await;
    assert_eq!(text_of(&answer["result"]), "I am alice");
    let calls: Vec<Option<String>> = upstream
        .seen()
        .into_iter()
        .filter(|(_, method)| method == "tools/call")
        .map(|(header, _)| header)
        .collect();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0], calls[1]);
    let subjects: Vec<String> = server
        .forms()
        .iter()
        .map(|form| form["subject_token"].clone())
        .collect();
    let tokens = [&wide, &narrow].map(|actor| actor.token().unwrap().to_owned());
    assert_eq!(subjects, tokens);
    gw.stop().await;
}

#[rstest]
#[case::resource("")]
#[case::audience("audience = \"tracker\"")]
#[tokio::test]
async fn only_a_configured_audience_is_sent(#[case] keys: &str) {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = PersonalUpstream::start(&server, true).await;
    let gw = Setup::secured()
        .url("up", &upstream.url(), "")
        .toml(&exchange(&server, keys))
        .start()
        .await;
    gw.principal("alice").open("/mcp/up").await;
    let sent = server.forms()[0].get("audience").cloned();
    assert_eq!(sent.as_deref(), (!keys.is_empty()).then_some("tracker"));
    gw.stop().await;
}

/// An unsigned JWT with this audience.
fn jwt_for(audience: &Value, number: usize) -> String {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    let claims = json!({"aud": audience, "jti": number}).to_string();
    format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

#[rstest]
#[case::none(json!(null), "audience\":\"none")]
#[case::other(json!(["account", "other"]), "account other")]
#[tokio::test]
async fn token_with_another_audience_is_used_and_told_once(
    #[case] audience: Value,
    #[case] told: &str,
) {
    let server = AuthServer::start().await;
    let given = audience.clone();
    server.answers(Answering::Made(Arc::new(move |_, number| {
        json!({"access_token": jwt_for(&given, number), "token_type": "bearer", "expires_in": 600})
    })));
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    for user in ["alice", "bob"] {
        let session = gw.principal(user).open("/mcp/up").await;
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    }
    logged(
        &gw,
        "an exchanged token has another audience than the upstream",
    )
    .await;
    let log = gw.log();
    let lines: Vec<&String> = log
        .iter()
        .filter(|line| line.contains("another audience"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains(told) && lines[0].contains(&upstream.url()),
        "{lines:?}"
    );
    gw.stop().await;
}

#[tokio::test]
async fn token_with_the_audience_of_the_upstream_is_no_news() {
    let server = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let url = upstream.url();
    server.answers(Answering::Made(Arc::new(move |_, number| {
        let token = jwt_for(&json!(["other", url]), number);
        json!({"access_token": token, "token_type": "Bearer", "expires_in": 600})
    })));
    let gw = exchanging(&server, &upstream.url(), "").await;
    let session = gw.principal("alice").open("/mcp/up").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    assert!(!gw.log().join("\n").contains("another audience"));
    gw.stop().await;
}

#[tokio::test]
async fn refused_token_is_exchanged_once_more() {
    let server = AuthServer::start().await;
    exchanges(&server, 600);
    let upstream = GuardedUpstream::start(&server, &[]).await;
    let gw = exchanging(&server, &upstream.url(), "").await;
    let (alice, bob) = (gw.principal("alice"), gw.principal("bob"));
    let session = alice.open("/mcp/up").await;
    let other = bob.open("/mcp/up").await;
    session.call("echo", json!({"text": "x"})).await.unwrap();
    other.call("echo", json!({"text": "x"})).await.unwrap();
    upstream.judges(|token, _| Verdict::of(token.is_some_and(|token| token != "for-alice-0")));
    let calls = (0..20).map(|_| session.call("echo", json!({"text": "x"})));
    for outcome in join_all(calls).await {
        outcome.unwrap();
    }
    other.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(server.issued(), ["for-alice-0", "for-bob-1", "for-alice-2"]);
    gw.stop().await;
}
