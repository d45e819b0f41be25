//! The resource server from outside: bad tokens, other people's handles, issuers and their keys,
//! rules for tools.

mod authority;
mod handles;
mod junk_tokens;
mod keys;
mod rules;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::http::{Actor, Answer, initialize};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup};

/// A secured gateway before one upstream, whose stub counts received messages.
struct Guarded {
    gw: Gateway,
    stub: HttpStub,
    looks: AtomicU64,
}

/// The stub's counts before any call.
fn nothing() -> Value {
    json!({"connections": 0})
}

impl Guarded {
    async fn start() -> Self {
        Self::start_with(Setup::secured()).await
    }

    async fn start_with(setup: Setup) -> Self {
        let stub = HttpStub::start(&[]).await;
        let gw = setup.http("stub", &stub, "").start().await;
        Self {
            gw,
            stub,
            looks: AtomicU64::new(0),
        }
    }

    /// The upstream's counts of received messages by method, and of its connections.
    async fn received(&self) -> Value {
        let base = self.stub.url.trim_end_matches("/mcp");
        let answer = Actor::new(base, None).get("/stats", &[]).await;
        let mut counts = answer.json().await["counts"].take();
        // Each look is a connection itself.
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        counts["connections"] = (counts["connections"].as_u64().unwrap() - looks).into();
        counts
    }

    /// The claims of a good token for `/mcp/stub`.
    fn claims(&self) -> Value {
        let audience = format!("{}/mcp/stub", self.gw.url);
        self.gw.issuer().claims("alice", &[audience], "mcp:tools")
    }

    async fn stop(self) {
        self.gw.stop().await;
        self.stub.stop().await;
    }
}

/// Sends the POST that opens a session.
async fn hello(actor: &Actor, path: &str) -> Answer {
    let message = initialize(1, "2025-11-25", &json!({}));
    actor.post(path, &[], &message).await
}

/// The parameters of a challenge, read strictly: one scheme, every value a quoted string.
fn challenge(answer: &Answer) -> Vec<(String, String)> {
    let text = answer.header("www-authenticate").expect("a challenge");
    let mut rest = text.strip_prefix("Bearer ").expect("Bearer comes first");
    let mut parameters = Vec::new();
    loop {
        let (name, quoted) = rest.split_once("=\"").expect("name=\"value\"");
        assert!(
            name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{name:?} in {text}"
        );
        let (value, after) = quoted.split_once('"').expect("a closing quote");
        parameters.push((name.to_owned(), value.to_owned()));
        if after.is_empty() {
            return parameters;
        }
        rest = after
            .strip_prefix(", ")
            .expect("a comma between parameters");
    }
}

/// One parameter of a challenge.
fn parameter(answer: &Answer, name: &str) -> Option<String> {
    challenge(answer)
        .into_iter()
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Fails unless `answer` refuses a token as the specification wants it on this endpoint.
fn assert_invalid_token(gw: &Gateway, path: &str, answer: &Answer) {
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(parameter(answer, "error").as_deref(), Some("invalid_token"));
    let metadata = format!("{}/.well-known/oauth-protected-resource{path}", gw.url);
    assert_eq!(parameter(answer, "resource_metadata"), Some(metadata));
    assert_eq!(parameter(answer, "scope").as_deref(), Some("mcp:tools"));
}

/// A configuration that asks `issuer` for its keys.
fn behind(authority: &Arc<authority::Authority>) -> Setup {
    Setup::behind_issuer(&authority.issuer())
}
