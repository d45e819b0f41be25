//! What the log says of refused tokens.

use aws_lc_rs::hmac;

use super::super::samples::encode;
use super::*;
use crate::telemetry::captured::LogCapture;

/// What a token is changed by, and what the log then has to say.
#[rstest]
#[case::audience(
    json!({}), json!({"aud": "account", "client_id": null, "azp": "cli"}),
    &[("reason", "token_audience"), ("unverified_aud", "account"), ("unverified_client", "cli"),
      ("wanted", "https://gw.test/mcp"), ("issuer", ISSUER), ("endpoint", "mcp")]
)]
#[case::audiences(
    json!({}), json!({"aud": ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]}),
    &[("unverified_aud", "a, b, c, d, e, f, g, h and 2 more")]
)]
#[case::no_audience(json!({}), json!({"aud": null}), &[("unverified_aud", "none")])]
#[case::issuer(
    json!({}), json!({"iss": "https://issuer.test/"}),
    &[("reason", "token_issuer"), ("unverified_iss", "https://issuer.test/"), ("wanted", "`iss` https://issuer.test")]
)]
#[case::no_issuer(
    json!({}), json!({"iss": null}),
    &[("reason", "token_issuer"), ("unverified_iss", "none"), ("wanted", "`iss` https://issuer.test")]
)]
#[case::no_key(
    json!({"kid": "k9", "alg": "ES384"}), json!({"iat": NOW - 600}),
    &[("reason", "token_unknown_key"), ("unverified_kid", "k9"), ("unverified_alg", "ES384")]
)]
#[case::key(
    json!({"kid": "k9"}), json!({"iat": NOW - 600}),
    &[("reason", "token_unknown_key"), ("unverified_kid", "k9"), ("wanted", "k1"), ("unverified_alg", "ES256")]
)]
#[case::id_token(
    json!({"typ": "JWT"}), json!({"typ": "ID", "nonce": "n"}),
    &[("reason", "token_type"), ("unverified_typ", "JWT, ID"), ("flaw", "`nonce`"), ("wanted", "access token")]
)]
#[case::type_of_header(json!({"typ": "logout+jwt"}), json!({}), &[("unverified_typ", "logout+jwt")])]
#[case::algorithm(
    json!({"alg": "HS256"}), json!({}),
    &[("reason", "token_algorithm"), ("unverified_alg", "HS256"), ("wanted", "ES256")]
)]
#[case::no_algorithm(
    json!({"alg": "none"}), json!({}),
    &[("reason", "token_algorithm"), ("unverified_alg", "none"), ("wanted", "ES256")]
)]
#[case::expired(
    json!({}), json!({"exp": NOW - 73}),
    &[("reason", "token_expired"), ("flaw", "expired 73 s ago"), ("wanted", "refresh")]
)]
#[case::early(
    json!({}), json!({"nbf": NOW + 90}),
    &[("reason", "token_not_yet_valid"), ("flaw", "90 s from now: compare the clocks"), ("wanted", "in the past")]
)]
#[case::no_expiry(json!({}), json!({"exp": null}), &[("reason", "token_claim"), ("flaw", "`exp` is missing")])]
#[case::scope_number(json!({}), json!({"scope": 7}), &[("flaw", "`scope` is not of its type")])]
#[case::subject(json!({}), json!({"sub": null}), &[("reason", "token_subject"), ("wanted", "subject_claim")])]
#[case::bound(json!({}), json!({"cnf": {"jkt": "x"}}), &[("reason", "token_bound"), ("wanted", "`cnf`")])]
#[case::long(
    json!({}), json!({"padding": "x".repeat(16 * 1024)}),
    &[("reason", "token_too_long"), ("flaw", "bytes"), ("wanted", "16 KiB")]
)]
#[case::scope(
    json!({}), json!({"scope": "openid profile"}),
    &[("reason", "insufficient_scope"), ("scope", "openid, profile"), ("wanted", "scope mcp:tools"), ("client", "c")]
)]
#[case::secret(json!({}), json!({"aud": "password=hunter22"}), &[("unverified_aud", "password=[redacted]")])]
#[tokio::test]
async fn a_refusal_says_what_came_and_was_wanted(
    #[case] header: Value,
    #[case] claims: Value,
    #[case] words: &[(&str, &str)],
) {
    let world = World::new();
    let token = world.changed(&header, &claims);
    let caught = LogCapture::begin();
    let denied = world.present(&token).await.expect_err("refused");
    let lines = caught.of_level("WARN");
    assert_one_line(&lines, words, &token);
    assert_nothing_is_told(&denied, &lines[0]);
}

/// Asserts that one line was written, with these words in its fields, without the token and its subject.
pub(super) fn assert_one_line(lines: &[Value], words: &[(&str, &str)], token: &str) {
    let [line] = lines else {
        panic!("{lines:?}");
    };
    for (field, word) in words {
        let said = line[field].as_str().unwrap_or_default();
        assert!(said.contains(word), "{field} without {word}: {line}");
    }
    assert_eq!(line["endpoint"], "mcp");
    let line = line.to_string();
    for secret in ["alice", "hunter22"] {
        assert!(!line.contains(secret), "{line}");
    }
    let mut parts = token.split('.').filter(|part| !part.is_empty());
    assert!(!parts.any(|part| line.contains(part)), "{line}");
}

/// Asserts that the caller hears nothing of what the line says came, or was wanted.
pub(super) fn assert_nothing_is_told(denied: &DeniedResponse, line: &Value) {
    let challenge = denied.challenge.as_ref().expect("a challenge");
    let challenge = challenge.to_str().expect("ASCII");
    let fields = line.as_object().expect("an object");
    let of_ours = [
        "reason",
        "endpoint",
        "message",
        "level",
        "target",
        "unverified_client",
        "client",
    ];
    for (name, value) in fields
        .iter()
        .filter(|(name, _)| !of_ours.contains(&name.as_str()))
    {
        let text = value.as_str().unwrap_or_default();
        assert!(
            text.is_empty() || !challenge.contains(text),
            "{name} in {challenge}"
        );
    }
}

/// A token that no key of the issuer has signed.
fn forged(_: &World) -> String {
    Signer::new("k1").mint(ISSUER)
}

/// A token whose signature takes the public key for a shared secret. RFC 8725 §2.1
fn keyed_with_the_public_key(world: &World) -> String {
    let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": "k1"}).to_string();
    let claims = encode(claims(ISSUER).to_string().as_bytes());
    let signed = format!("{}.{claims}", encode(header.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, world.signer.public_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", encode(tag.as_ref()))
}

fn opaque(_: &World) -> String {
    "kR7mQ2xV9w".to_owned()
}

fn two_parts(world: &World) -> String {
    let token = world.signer.mint(ISSUER);
    token.rsplit_once('.').expect("three parts").0.to_owned()
}

fn encrypted(_: &World) -> String {
    ["kR7mQ2xV9w"; 5].join(".")
}

fn no_json(world: &World) -> String {
    world.signer.sign("kR7mQ2xV9w", "kR7mQ2xV9w")
}

#[rstest]
#[case::signature(
    forged,
    &[("reason", "token_signature"), ("unverified_kid", "k1"), ("wanted", "by the key of this `kid`"), ("issuer", ISSUER)]
)]
#[case::public_key_as_secret(
    keyed_with_the_public_key, &[("reason", "token_algorithm"), ("unverified_alg", "HS256"), ("wanted", "ES256")]
)]
#[case::opaque(
    opaque, &[("reason", "token_not_a_jwt"), ("flaw", "no dot"), ("wanted", "opaque tokens need `introspection`")]
)]
#[case::two_parts(two_parts, &[("reason", "token_not_a_jwt"), ("flaw", "neither one part nor three")])]
#[case::encrypted(encrypted, &[("reason", "token_not_a_jwt"), ("flaw", "five parts")])]
#[case::no_json(no_json, &[("reason", "token_not_a_jwt"), ("flaw", "no JSON object")])]
#[tokio::test]
async fn a_token_of_another_make_says_how_it_is_made(
    #[case] make: fn(&World) -> String,
    #[case] words: &[(&str, &str)],
) {
    let world = World::new();
    let token = make(&world);
    let caught = LogCapture::begin();
    let denied = world.present(&token).await.expect_err("refused");
    let lines = caught.of_level("WARN");
    assert_one_line(&lines, words, &token);
    assert_nothing_is_told(&denied, &lines[0]);
}

#[tokio::test]
async fn a_forged_token_is_logged_once_with_its_key() {
    let world = World::new();
    let forged = Signer::new("k1").mint(ISSUER);
    let caught = LogCapture::begin();
    for _ in 0..5 {
        assert_invalid(world.present(&forged).await, "token_signature");
    }
    let lines = caught.of_level("WARN");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["unverified_kid"], "k1");
    assert_eq!(lines[0]["issuer"], ISSUER);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_after_the_first_of_a_minute() {
    let world = World::new();
    let caught = LogCapture::begin();
    for n in 0..50 {
        let claims = json!({"aud": format!("a{n}"), "iss": ISSUER});
        assert_invalid(
            world.present_changed(json!({}), claims).await,
            "token_audience",
        );
    }
    // Another reason has a line of its own.
    let expired = world.present_changed(json!({}), json!({"exp": NOW - 90}));
    assert_invalid(expired.await, "token_expired");
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_invalid(
        world.present_changed(json!({}), json!({"aud": "z"})).await,
        "token_audience",
    );
    let lines = caught.of_level("WARN");
    let reasons: Vec<_> = lines.iter().map(|line| line["reason"].clone()).collect();
    assert_eq!(
        reasons,
        ["token_audience", "token_expired", "token_audience"]
    );
    assert_eq!(
        (&lines[2]["muted"], &lines[2]["unverified_aud"]),
        (&json!(49), &json!("z"))
    );
}

#[tokio::test]
async fn values_are_cut_and_stay_on_one_line() {
    let world = World::new();
    let caught = LogCapture::begin();
    let long = format!("\n\u{1b}[2J{}", "é".repeat(1000));
    let result = world.present_changed(json!({}), json!({"aud": long})).await;
    assert_invalid(result, "token_audience");
    let said = caught.of_level("WARN")[0]["unverified_aud"].to_string();
    assert!(said.starts_with("\"\\n\\u001b[2Jéé"), "{said}");
    assert!(said.len() < 160, "{said}");
}

#[tokio::test]
async fn a_good_token_and_a_missing_one_make_no_line() {
    let world = World::new();
    let caught = LogCapture::begin();
    let token = world.signer.mint(ISSUER);
    world.present(&token).await.expect("good");
    let (nothing, endpoint) = (HeaderMap::new(), endpoint());
    let denied = world
        .authenticator
        .authenticate(&nothing, None, FROM, &endpoint);
    denied.await.expect_err("no token");
    assert_eq!(caught.of_level("WARN"), [] as [Value; 0]);
}

#[tokio::test]
async fn what_is_no_token_says_why() {
    let world = World::new();
    let caught = LogCapture::begin();
    assert_invalid(world.present("opaque").await, "token_not_a_jwt");
    let query = Some("access_token=abcdef");
    let (headers, endpoint) = (HeaderMap::new(), endpoint());
    let denied = world
        .authenticator
        .authenticate(&headers, query, FROM, &endpoint);
    denied.await.expect_err("in the query");
    let lines = caught.of_level("WARN");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0]["wanted"].to_string().contains("`introspection`"),
        "{lines:?}"
    );
    assert_eq!(lines[1]["flaw"], "a token in the URL is not accepted");
    assert!(!lines[1].to_string().contains("abcdef"));
}
