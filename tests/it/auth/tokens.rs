//! The battery: every bad token is refused with its challenge, and nothing reaches an upstream.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Method;
use serde_json::{Value, json};

use super::{Guarded, assert_invalid_token, challenge, hello, nothing, parameter};
use crate::harness::Setup;
use crate::harness::issuer::{Issuer, unix_now};

/// Name, changed claims (`null` removes a claim), changed header parameters.
type Spoiled = (&'static str, Value, Value);

fn spoiled(resource: &str) -> Vec<Spoiled> {
    let now = unix_now();
    let slash = format!("{resource}/");
    let parent = resource.trim_end_matches("/stub");
    let no = || json!({});
    vec![
        ("no audience", json!({"aud": null}), no()),
        (
            "another audience",
            json!({"aud": "https://other.test/mcp"}),
            no(),
        ),
        (
            "the merged endpoint's audience",
            json!({"aud": parent}),
            no(),
        ),
        ("a trailing slash", json!({"aud": slash}), no()),
        (
            "an audience twice",
            json!({"aud": [resource, resource]}),
            no(),
        ),
        ("no issuer", json!({"iss": null}), no()),
        ("another issuer", json!({"iss": "https://evil.test"}), no()),
        ("expired", json!({"exp": now - 61}), no()),
        ("no expiry", json!({"exp": null}), no()),
        ("not yet valid", json!({"nbf": now + 120}), no()),
        ("issued later", json!({"iat": now + 120}), no()),
        ("no subject", json!({"sub": null}), no()),
        ("bound to a key", json!({"cnf": {"jkt": "x"}}), no()),
        ("alg none", no(), json!({"alg": "none"})),
        ("alg HS256", no(), json!({"alg": "HS256"})),
        ("alg of another kind", no(), json!({"alg": "RS256"})),
        ("unknown kid", no(), json!({"kid": "unknown"})),
        ("an ID token", json!({"nonce": "n"}), json!({"typ": "JWT"})),
        ("another typ", no(), json!({"typ": "logout+jwt"})),
        ("crit", no(), json!({"crit": ["x"], "x": 1})),
        ("huge", json!({"padding": "x".repeat(16_000)}), no()),
    ]
}

fn merged(mut base: Value, changes: &Value) -> Value {
    let members = base.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap().clone() {
        if value.is_null() {
            members.remove(&name);
        } else {
            members.insert(name, value);
        }
    }
    base
}

// SPEC
#[tokio::test]
async fn bad_tokens_are_refused_with_a_challenge_and_reach_nothing() {
    // Room for the huge token, which would otherwise be refused with 431.
    let room = "[limits]\nheaders = \"64KiB\"\n";
    let world = Guarded::start_with(Setup::secured().toml(room)).await;
    let (gw, issuer) = (&world.gw, world.gw.issuer());
    let resource = format!("{}/mcp/stub", gw.url);
    let header = serde_json::to_value(Issuer::header()).unwrap();
    let mut tokens: Vec<(&str, String)> = Vec::new();
    for (name, claims, parameters) in spoiled(&resource) {
        let header = merged(header.clone(), &parameters);
        let claims = merged(world.claims(), &claims);
        tokens.push((
            name,
            issuer.sign_raw(&header.to_string(), &claims.to_string()),
        ));
    }
    let good = issuer.sign(&Issuer::header(), &world.claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (head, _) = signed.split_once('.').unwrap();
    let other = merged(world.claims(), &json!({"sub": "mallory"}));
    let other = BASE64_URL_SAFE_NO_PAD.encode(other.to_string());
    let twice = world.claims().to_string();
    let twice = format!("{},\"aud\":\"{resource}\"}}", twice.trim_end_matches('}'));
    let unsigned = BASE64_URL_SAFE_NO_PAD.encode("{\"alg\":\"none\",\"typ\":\"at+jwt\"}");
    let body = signed.split_once('.').unwrap().1;
    tokens.extend([
        ("changed claims", format!("{head}.{other}.{signature}")),
        ("no signature", format!("{signed}.")),
        ("unsigned", format!("{unsigned}.{body}.")),
        (
            "a claim twice",
            issuer.sign_raw(&header.to_string(), &twice),
        ),
        (
            "another key",
            Issuer::new().sign(&Issuer::header(), &world.claims()),
        ),
        (
            "the public key as secret",
            public_key_as_secret(issuer, body),
        ),
        ("garbage", "garbage".to_owned()),
    ]);
    for (name, token) in &tokens {
        let answer = hello(&gw.bearer(token), "/mcp/stub").await;
        assert_eq!(answer.status(), 401, "{name}");
        assert_invalid_token(gw, "/mcp/stub", &answer);
        let text = answer.text().await;
        assert!(
            !text.contains(token.as_str()),
            "{name}: the token comes back"
        );
    }
    assert_eq!(world.received().await, nothing());
    let counted = gw.metric("drawbridge_auth_refused_total", "").await;
    assert!(counted >= 28.0, "{counted}");
    hello(&gw.bearer(&good), "/mcp/stub")
        .await
        .expect(http::StatusCode::OK)
        .await;
    world.stop().await;
}

/// Key confusion: a published key used as an HMAC secret. RFC 8725 §2.1
fn public_key_as_secret(issuer: &Issuer, body: &str) -> String {
    let keys: Value = serde_json::from_slice(&std::fs::read(issuer.jwks_file()).unwrap()).unwrap();
    let secret = keys["keys"][0].to_string();
    let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": keys["keys"][0]["kid"]});
    let signed = format!(
        "{}.{body}",
        BASE64_URL_SAFE_NO_PAD.encode(header.to_string())
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

// SPEC
#[tokio::test]
async fn without_a_token_nothing_but_metadata_is_served() {
    let world = Guarded::start().await;
    let nobody = world.gw.anonymous();
    for path in ["/mcp", "/mcp/", "/mcp/stub", "/mcp/stub?x=y"] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let answer = nobody
                .send(method.clone(), path, &[], "not even JSON")
                .await;
            assert_eq!(answer.status(), 401, "{method} {path}");
            assert_eq!(parameter(&answer, "error"), None, "{method} {path}");
        }
    }
    assert_eq!(world.received().await, nothing());
    world.stop().await;
}

/// A name, a path, headers.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

// SPEC A-12
#[tokio::test]
async fn malformed_credentials_are_400() {
    let world = Guarded::start().await;
    let good = world.gw.issuer();
    let good = good.sign(&Issuer::header(), &world.claims());
    let nobody = world.gw.anonymous();
    let bearer = format!("Bearer {good}");
    let in_query = format!("/mcp/stub?access_token={good}");
    let cases: [Case<'_>; 5] = [
        ("no token", "/mcp/stub", &[("authorization", "Bearer")]),
        ("two words", "/mcp/stub", &[("authorization", "Bearer a b")]),
        (
            "two headers",
            "/mcp/stub",
            &[("authorization", &bearer), ("authorization", &bearer)],
        ),
        ("in the query", &in_query, &[]),
        ("in both", &in_query, &[("authorization", &bearer)]),
    ];
    for (name, path, headers) in cases {
        let answer = nobody.post(path, headers, &json!({})).await;
        assert_eq!(answer.status(), 400, "{name}");
        let error = parameter(&answer, "error");
        assert_eq!(error.as_deref(), Some("invalid_request"), "{name}");
    }
    assert_eq!(world.received().await, nothing());
    world.stop().await;
}

// SPEC A-11
#[tokio::test]
async fn a_token_without_the_scope_of_the_endpoint_is_403() {
    let world = Guarded::start().await;
    let issuer = world.gw.issuer();
    let claims = merged(world.claims(), &json!({"scope": "openid"}));
    let token = issuer.sign(&Issuer::header(), &claims);
    let answer = hello(&world.gw.bearer(&token), "/mcp/stub").await;
    assert_eq!(answer.status(), 403);
    let challenge = challenge(&answer);
    assert_eq!(
        challenge[0],
        ("error".to_owned(), "insufficient_scope".to_owned())
    );
    assert_eq!(parameter(&answer, "scope").as_deref(), Some("mcp:tools"));
    assert_eq!(world.received().await, nothing());
    world.stop().await;
}

// SPEC A-22
#[tokio::test]
async fn the_token_goes_to_no_upstream_and_to_no_log() {
    let world = Guarded::start().await;
    let alice = world.gw.principal("alice");
    let token = alice.token().unwrap().to_owned();
    let session = alice.open("/mcp/stub").await;
    let headers = session.text("seen_headers", json!({})).await;
    assert!(
        !headers.to_ascii_lowercase().contains("authorization"),
        "{headers}"
    );
    let signature = token.rsplit_once('.').unwrap().1;
    assert!(!headers.contains(signature), "{headers}");
    let log = world.gw.log().join("\n");
    assert!(!log.contains(signature) && !log.contains(&token), "{log}");
    world.stop().await;
}
