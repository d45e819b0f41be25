//! Opaque tokens: what their issuer says is judged as strictly as a JWT, is remembered for a short
//! time, and its silence makes no token bad.

mod junk;
mod jwt;
mod parallel;
mod server;

use std::net::IpAddr;

use rstest::rstest;
use serde_json::{Value, json};

use self::server::Server;
use super::super::samples::{NOW, Signer, auth, endpoint};
use super::super::*;
use super::refusals::{assert_nothing_is_told, assert_one_line};
use super::{FROM, assert_invalid, authenticator, bearer, merged};
use crate::clock::TestClock;
use crate::secret::Secret;
use crate::telemetry::captured::LogCapture;

/// An authenticator that asks a server.
struct World {
    authenticator: Arc<Authenticator>,
    server: Arc<Server>,
    clock: Arc<TestClock>,
}

impl World {
    async fn new() -> Self {
        Self::with(|_| ()).await
    }

    async fn with(change: impl FnOnce(&mut config::IssuerConfig)) -> Self {
        let server = Server::start().await;
        let mut config = auth(&[&server.origin]);
        config.issuers[0].introspection = Some(config::IntrospectionConfig {
            endpoint: None,
            client_id: "gate way".to_owned(),
            client_secret: Secret::new("hunter:2"),
            auth_method: config::IntrospectionAuth::Auto,
            tokens: config::IntrospectedTokens::Opaque,
            max_age: Duration::from_secs(30),
        });
        change(&mut config.issuers[0]);
        let (authenticator, clock) = authenticator(&config);
        Self {
            authenticator,
            server,
            clock,
        }
    }

    async fn present(&self, token: &str) -> Result<Arc<Principal>, DeniedResponse> {
        self.present_on(&endpoint(), token).await
    }

    async fn present_on(
        &self,
        at: &Endpoint,
        token: &str,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        self.present_from(FROM, at, token).await
    }

    async fn present_from(
        &self,
        from: IpAddr,
        at: &Endpoint,
        token: &str,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        let headers = bearer(token);
        let principal = self.authenticator.authenticate(&headers, None, from, at);
        principal.await
    }
}

fn assert_unavailable(result: Result<Arc<Principal>, DeniedResponse>) {
    let denied = result.expect_err("nothing is known of the token");
    let found = (denied.status, denied.challenge, denied.reason);
    let expected = (
        StatusCode::SERVICE_UNAVAILABLE,
        None,
        "introspection_unavailable",
    );
    assert_eq!(found, expected);
}

// RFC 7662 §2.1, RFC 6749 §2.3.1
#[tokio::test]
async fn the_issuer_is_asked_with_our_credentials_and_names_the_caller() {
    let world = World::new().await;
    let principal = world.present("opaque-1").await.expect("an active token");
    let caller = (principal.issuer(), principal.subject(), principal.client());
    assert_eq!(caller, (world.server.origin.as_str(), "alice", "c"));
    assert_eq!(principal.scopes(), ["mcp:tools"]);
    assert_eq!(principal.expires_at(), Some(Duration::from_secs(NOW + 600)));
    let questions = world.server.questions();
    let [question] = questions.as_slice() else {
        panic!("one question: {questions:?}");
    };
    assert!(question.starts_with("POST /ask "), "{question}");
    // "gate+way:hunter%3A2"
    assert!(
        question.contains("authorization: Basic Z2F0ZSt3YXk6aHVudGVyJTNBMg=="),
        "{question}"
    );
    assert!(
        question.ends_with("token=opaque-1&token_type_hint=access_token"),
        "{question}"
    );
}

// RFC 6749 §2.3.1
#[rstest]
#[case::discovered(false)]
#[case::configured(true)]
#[tokio::test]
async fn credentials_are_in_the_form_where_the_configuration_says_so(#[case] has_endpoint: bool) {
    let world = World::with(|issuer| {
        let endpoint = format!("{}/ask", issuer.issuer).parse().expect("a URL");
        let introspection = issuer.introspection.as_mut().expect("it is set");
        introspection.endpoint = has_endpoint.then_some(endpoint);
        introspection.auth_method = config::IntrospectionAuth::Post;
    })
    .await;
    world.present("opaque").await.expect("an active token");
    let questions = world.server.questions();
    let [question] = questions.as_slice() else {
        panic!("one question: {questions:?}");
    };
    assert!(!question.contains("authorization:"), "{question}");
    assert!(
        question.ends_with("&client_id=gate+way&client_secret=hunter%3A2"),
        "{question}"
    );
}

// RFC 8414 §2
#[tokio::test]
async fn an_issuer_that_takes_no_secret_by_its_metadata_is_told_of() {
    for (methods, said) in [
        (["client_secret_post", "private_key_jwt"], None),
        (
            ["tls_client_auth", "private_key_jwt"],
            Some("tls_client_auth private_key_jwt"),
        ),
    ] {
        let world = World::new().await;
        world.server.lists(&methods);
        let caught = LogCapture::begin();
        world.present("opaque").await.expect("an active token");
        let lines = caught.of_level("WARN");
        let told: Vec<_> = lines.iter().map(|line| line["methods"].as_str()).collect();
        assert_eq!(told, Vec::from_iter(said.map(Some)));
    }
}

// SPEC; RFC 7662 §2.2
#[rstest]
#[case::inactive(json!({"active": false}), "token_inactive")]
#[case::other_issuer(json!({"iss": "https://evil.test"}), "token_issuer")]
#[case::no_audience(json!({"aud": null}), "token_audience")]
#[case::other_audience(json!({"aud": ["https://gw.test/mcp/git"]}), "token_audience")]
#[case::expired(json!({"exp": NOW - 60}), "token_expired")]
#[case::expiry_text(json!({"exp": "9999999999"}), "token_claim")]
#[case::not_yet(json!({"nbf": NOW + 61}), "token_not_yet_valid")]
#[case::issued_later(json!({"iat": NOW + 61}), "token_not_yet_valid")]
#[case::no_subject(json!({"sub": null}), "token_subject")]
#[case::empty_subject(json!({"sub": ""}), "token_subject")]
#[case::subject_number(json!({"sub": 7}), "token_claim")]
#[case::scope_number(json!({"scope": 7}), "token_claim")]
#[case::client_number(json!({"client_id": 7}), "token_claim")]
#[case::bound(json!({"cnf": {"jkt": "x"}}), "token_bound")]
#[case::bound_by_type(json!({"token_type": "DPoP"}), "token_bound")]
#[case::refresh_token(json!({"token_type": "refresh_token"}), "token_type")]
#[case::hydra_refresh_token(json!({"token_use": "refresh_token"}), "token_type")]
#[case::keycloak_refresh_token(json!({"token_type": null, "typ": "Refresh"}), "token_type")]
#[tokio::test]
async fn what_the_issuer_says_is_judged_as_a_token_is(#[case] said: Value, #[case] reason: &str) {
    let world = World::new().await;
    world.server.says(&merged(world.server.good(), &said));
    assert_invalid(world.present("opaque").await, reason);
}

#[tokio::test]
async fn an_inactive_token_is_logged_and_not_told() {
    let world = World::new().await;
    world.server.says(&json!({"active": false}));
    let caught = LogCapture::begin();
    let token = "kR7mQ2xV9w";
    let denied = world.present(token).await.expect_err("refused");
    let lines = caught.of_level("WARN");
    let words = [
        ("reason", "token_inactive"),
        ("flaw", "does not call it active"),
        ("wanted", "calls active"),
        ("issuer", &world.server.origin),
    ];
    assert_one_line(&lines, &words, token);
    assert_nothing_is_told(&denied, &lines[0]);
}

#[rstest]
#[case::no_issuer(json!({"iss": null}))]
#[case::no_expiry(json!({"exp": null}))]
#[case::no_type(json!({"token_type": null}))]
#[case::small_letters(json!({"token_type": "bearer"}))]
#[case::hydra(json!({"token_use": "access_token"}))]
#[case::more(json!({"username": "Alice", "typ": "Bearer"}))]
#[tokio::test]
async fn what_an_answer_may_leave_out_is_not_missed(#[case] said: Value) {
    let world = World::new().await;
    world.server.says(&merged(world.server.good(), &said));
    world.present("opaque").await.expect("an acceptable answer");
}

#[tokio::test]
async fn scopes_of_the_endpoint_are_needed_of_opaque_tokens_too() {
    let world = World::new().await;
    let said = merged(world.server.good(), &json!({"scope": "other"}));
    world.server.says(&said);
    let denied = world
        .present("opaque")
        .await
        .expect_err("a scope is missing");
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_token_is_judged_for_each_endpoint_on_its_own() {
    let world = World::new().await;
    world.present("opaque").await.expect("its own endpoint");
    let mut other = endpoint();
    other.name = "git".into();
    other.resource = "https://gw.test/mcp/git".to_owned();
    assert_invalid(world.present_on(&other, "opaque").await, "token_audience");
}

#[tokio::test]
async fn an_answer_counts_for_max_age_and_a_revoked_token_ends_then() {
    let world = World::new().await;
    world.present("opaque").await.expect("active");
    world.server.says(&json!({"active": false}));
    world.clock.advance(Duration::from_secs(29));
    world.present("opaque").await.expect("remembered");
    assert_eq!(world.server.questions().len(), 1);
    world.clock.advance(Duration::from_secs(1));
    assert_invalid(world.present("opaque").await, "token_inactive");
}

#[tokio::test]
async fn an_answer_counts_no_longer_than_the_token() {
    let world = World::new().await;
    let said = merged(world.server.good(), &json!({"exp": NOW + 5}));
    world.server.says(&said);
    world.present("opaque").await.expect("active");
    world.clock.advance(Duration::from_secs(5));
    world.server.says(&json!({"active": false}));
    assert_invalid(world.present("opaque").await, "token_inactive");
}

#[tokio::test]
async fn a_refusal_counts_for_ten_seconds() {
    let world = World::new().await;
    world.server.says(&json!({"active": false}));
    for _ in 0..3 {
        assert_invalid(world.present("opaque").await, "token_inactive");
    }
    assert_eq!(world.server.questions().len(), 1);
    world.server.says(&world.server.good());
    world.clock.advance(Duration::from_secs(10));
    world.present("opaque").await.expect("active by now");
}

#[rstest]
#[case::down(500, "{}")]
#[case::our_credentials(401, "{\"error\":\"invalid_client\"}")]
#[case::no_json(200, "<html>")]
#[case::nothing_said(200, "{}")]
#[case::said_as_text(200, "{\"active\":\"true\"}")]
#[case::said_twice(200, "{\"active\":false,\"active\":true}")]
#[tokio::test]
async fn an_issuer_that_gives_no_usable_answer_makes_no_token_bad(
    #[case] status: u16,
    #[case] body: &str,
) {
    let world = World::new().await;
    world.server.answers(status, body);
    assert_unavailable(world.present("opaque").await);
}

#[tokio::test]
async fn an_issuer_that_cannot_be_reached_makes_no_token_bad() {
    let world = World::with(|issuer| {
        let introspection = issuer.introspection.as_mut().expect("it is set");
        introspection.endpoint = Some("http://127.0.0.1:9/ask".parse().expect("a URL"));
    })
    .await;
    assert_unavailable(world.present("opaque").await);
    assert_unavailable(world.present("another").await);
}

// SPEC X-01
#[tokio::test]
async fn a_discovered_endpoint_inside_is_not_asked() {
    let world = World::new().await;
    let elsewhere = Server::start().await;
    // Its metadata names the second server's endpoint, on another port: another origin.
    let issuer = world.server.origin.clone();
    let fetcher = IssuerClients::new(EgressRules::default()).expect("trust anchors");
    let url = format!("{}/ask", elsewhere.origin).parse().expect("a URL");
    let base = issuer.parse().expect("a URL");
    let refused = fetcher.post(&url, &base, None, String::new()).await;
    assert!(matches!(
        refused,
        Err(crate::egress::DocumentError::Refused(_))
    ));
    assert!(elsewhere.questions().is_empty());
}

#[tokio::test]
async fn an_endpoint_that_does_not_accept_the_issuer_asks_nobody() {
    let world = World::new().await;
    let mut other = endpoint();
    other.issuers.push("https://other.test".to_owned());
    assert_invalid(world.present_on(&other, "opaque").await, "token_not_a_jwt");
    assert!(world.server.questions().is_empty());
}

#[tokio::test]
async fn a_jwt_is_asked_about_only_where_all_tokens_are() {
    let signer = Signer::new("k1");
    for (tokens, questions) in [
        (config::IntrospectedTokens::Opaque, 0),
        (config::IntrospectedTokens::All, 1),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        super::publish(&dir, &[signer.jwk()]);
        let world = World::with(|issuer| {
            issuer.jwks_file = Some(dir.path().join("jwks.json"));
            issuer.introspection.as_mut().expect("it is set").tokens = tokens;
        })
        .await;
        let token = signer.mint(&world.server.origin);
        world.present(&token).await.expect("a good token");
        assert_eq!(world.server.questions().len(), questions);
        let forged = Signer::new("k1").mint(&world.server.origin);
        assert_invalid(world.present(&forged).await, "token_signature");
        assert_eq!(world.server.questions().len(), questions);
    }
}
