//! What the log says of refused tokens.

use super::*;
use crate::telemetry::captured::Captured;

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
#[case::expired(
    json!({}), json!({"exp": NOW - 73}),
    &[("reason", "token_expired"), ("flaw", "expired 73 s ago"), ("wanted", "refresh")]
)]
#[case::early(json!({}), json!({"nbf": NOW + 90}), &[("flaw", "90 s from now: compare the clocks")])]
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
    let caught = Captured::begin();
    let denied = world.present(&token).await.expect_err("refused");
    let lines = caught.of_level("WARN");
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    for (field, word) in words {
        let said = line[field].as_str().unwrap_or_default();
        assert!(said.contains(word), "{field} without {word}: {line}");
    }
    let line = line.to_string();
    assert!(
        !line.contains("alice") && !line.contains("hunter22"),
        "{line}"
    );
    assert!(!token.split('.').any(|part| line.contains(part)), "{line}");
    // The caller learns none of it.
    let challenge = denied.challenge.expect("a challenge");
    let challenge = challenge.to_str().expect("ASCII");
    for secret in ["account", "k9", "HS256", "73 s", "openid"] {
        assert!(!challenge.contains(secret), "{challenge}");
    }
}

#[tokio::test]
async fn a_forged_token_is_logged_once_with_its_key() {
    let world = World::new();
    let forged = Signer::new("k1").mint(ISSUER);
    let caught = Captured::begin();
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
    let caught = Captured::begin();
    for n in 0..50 {
        let claims = json!({"aud": format!("a{n}"), "iss": ISSUER});
        assert_invalid(
            world.present_changed(json!({}), claims).await,
            "token_audience",
        );
    }
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_invalid(
        world.present_changed(json!({}), json!({"aud": "z"})).await,
        "token_audience",
    );
    let lines = caught.of_level("WARN");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&lines[1]["muted"], &lines[1]["unverified_aud"]),
        (&json!(49), &json!("z"))
    );
}

#[tokio::test]
async fn values_are_cut_and_stay_on_one_line() {
    let world = World::new();
    let caught = Captured::begin();
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
    let caught = Captured::begin();
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
    let caught = Captured::begin();
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
