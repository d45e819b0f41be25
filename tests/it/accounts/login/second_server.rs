//! Accounts of kind `user` at a second real authorization server, on other code than the first (`tests/as/authlib_server.py`):
//! metadata by RFC 8414 alone, registration, PKCE, `iss`, tokens for the upstream alone, refresh tokens that are good once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::path_in;
use super::world::{Browser, World};
use crate::accounts::personal::claims;
use crate::accounts::world::{AuthServer, GuardedUpstream, Verdict, tells_none};
use crate::harness::session::text_of;
use crate::harness::{eventually, peers};

/// An upstream that takes tokens of `issuer` for itself alone, until they end.
async fn upstream_of(issuer: &str) -> GuardedUpstream {
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    upstream.publishes(json!({
        "resource": upstream.url(), "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
    }));
    let expected = (issuer.to_owned(), upstream.url());
    upstream.judges(move |token, _| {
        let now = drawbridge::clock::Clock::now(&drawbridge::clock::SystemClock).as_secs();
        let is_good = |claims: &Value| {
            claims["iss"] == expected.0.as_str()
                && claims["aud"] == expected.1.as_str()
                && claims["scope"] == "mcp:tools"
                && claims["exp"].as_u64().is_some_and(|exp| now < exp)
        };
        Verdict::of(token.and_then(claims).as_ref().is_some_and(is_good))
    });
    upstream
}

/// The tokens in requests with this text.
fn tokens(upstream: &GuardedUpstream, text: &str) -> BTreeSet<String> {
    let seen = upstream.seen().into_iter();
    let with_text = seen.filter(|(_, body)| body.contains(text));
    let tokens = with_text.filter_map(|(header, _)| header);
    tokens
        .map(|header| header.trim_start_matches("Bearer ").to_owned())
        .collect()
}

#[tokio::test]
async fn two_users_of_a_second_server_call_with_their_own_tokens() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/authlib_server.py");
    // Tokens that are refreshed during the test.
    let env = [("ACCESS_TTL", "5")];
    let server = peers::serve(&peers::environment("authlib"), &[&script], &env).await;
    let world = World::of_users_at(upstream_of(&server.first_line).await).await;
    let callback = format!("{}/connect/", world.gw.url);
    let mut secrets = Vec::new();
    for user in ["alice", "bob"] {
        let caller = world.caller(user);
        let session = caller.open_as("/mcp/up", "2025-06-18", json!({})).await;
        let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
        let mut browser = Browser::new();
        let link = path_in(text_of(&refused));
        let page = world.log_in(&mut browser, &link, user).await;
        let departs = browser.submit(&page, &[("action", "connect")]).await;
        let answer = browser.walk(&departs.goes_on(), user, &callback).await;
        let done = browser.open(&answer).await;
        assert!(done.text.contains("up is connected"), "{}", done.text);
        assert!(!done.text.contains("no refresh token"), "{}", done.text);
        let call = format!("call-of-{user}");
        eventually("a third token", async || {
            assert_eq!(session.text("echo", json!({ "text": call })).await, call);
            (tokens(&world.upstream, &call).len() >= 3).then_some(())
        })
        .await;
        let tokens = tokens(&world.upstream, &call);
        let are_own = |token: &String| claims(token).unwrap()["sub"] == user;
        assert!(tokens.iter().all(are_own), "{tokens:?}");
        secrets.extend(tokens);
    }
    tells_none(&world.gw, &secrets).await;
    world.gw.stop().await;
}
