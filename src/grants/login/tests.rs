//! The URLs that browsers are sent to, and which issuer's answers are accepted.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rstest::rstest;

use super::*;
use crate::config::{ClientKey, EgressConfig, LoginToken};
use crate::egress::EgressRules;
use crate::grants::server_metadata::ConsentSupport;

const ISSUER: &str = "https://as.test";

/// The metadata of the issuer.
fn server(consent: ConsentSupport) -> ServerMetadata {
    ServerMetadata {
        issuer: ISSUER.to_owned(),
        token_endpoint: Url::parse("https://as.test/token").unwrap(),
        client_auth: None,
        assertion_algorithms: None,
        consent,
    }
}

/// A client whose issuer has the metadata `consent`.
fn client(consent: ConsentSupport) -> LoginClient {
    let config = LoginConfig {
        issuer: ISSUER.to_owned(),
        client_id: "drawbridge".to_owned(),
        client_key: ClientKey::Secret(Secret::new("hunter2")),
        subject_claim: None,
        token: LoginToken::Id,
    };
    let rules = EgressRules::new(&EgressConfig::default());
    let mut client = LoginClient::new(&config, SharedClients::new(rules).unwrap()).unwrap();
    client.metadata = MetadataCache::knowing(server(consent));
    client
}

fn at(endpoint: &str) -> ConsentSupport {
    ConsentSupport {
        authorization_endpoint: Url::parse(endpoint).ok(),
        ..ConsentSupport::default()
    }
}

async fn url(
    client: &LoginClient,
    scopes: &[&str],
    resource: Option<&str>,
) -> Result<Url, LoginFailure> {
    let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    let request = LoginRequest {
        redirect_uri: &Url::parse("https://gw.test/connect/callback/login").unwrap(),
        state: "a-state",
        nonce: "a-nonce",
        verifier: &Secret::new("a-verifier"),
        scopes: &scopes,
        resource,
        asks_again: resource.is_none(),
        keeps: false,
        may_outlast: true,
    };
    client.authorization_url(&request).await
}

#[tokio::test]
async fn browser_is_sent_with_state_nonce_and_the_digest_of_the_verifier() {
    let client = client(at("https://as.test/auth?tenant=1"));
    let url = url(&client, &["openid"], None).await.unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    let of = |name: &str| query[name].as_str();
    assert_eq!((url.path(), of("tenant")), ("/auth", "1"));
    assert_eq!(of("redirect_uri"), "https://gw.test/connect/callback/login");
    assert_eq!(
        (of("state"), of("nonce"), of("prompt")),
        ("a-state", "a-nonce", "login")
    );
    let challenge = digest(&SHA256, b"a-verifier");
    assert_eq!(
        of("code_challenge"),
        BASE64_URL_SAFE_NO_PAD.encode(challenge.as_ref())
    );
    assert_eq!(
        (of("code_challenge_method"), of("response_type")),
        ("S256", "code")
    );
    assert_eq!((of("client_id"), of("scope")), ("drawbridge", "openid"));
    assert!(
        !url.as_str().contains("a-verifier") && !url.as_str().contains("resource"),
        "{url}"
    );
}

#[test]
fn debug_output_of_a_request_hides_what_ties_its_answer() {
    let request = LoginRequest {
        redirect_uri: &Url::parse("https://gw.test/connect/callback/login").unwrap(),
        state: "hunter2-state",
        nonce: "hunter2-nonce",
        verifier: &Secret::new("hunter2-verifier"),
        scopes: &[],
        resource: None,
        asks_again: false,
        keeps: false,
        may_outlast: true,
    };
    let shown = format!("{request:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn access_token_is_asked_for_with_its_resource() {
    let client = client(ConsentSupport {
        lists_s256: Some(true),
        ..at("https://as.test/auth")
    });
    let url = url(&client, &[], Some("https://gw.test/mcp"))
        .await
        .unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    assert_eq!(query["resource"], "https://gw.test/mcp");
    for name in ["scope", "nonce", "prompt"] {
        assert!(!query.contains_key(name), "{url}");
    }
}

// Spec: `OpenID` Connect Core §11. Columns: the scopes that the server lists, scopes that are asked for anyway, and both
// parameters.
#[rstest]
#[case::not_said(&[], &["openid"], "openid offline_access", Some("consent"))]
#[case::listed(&["openid", "offline_access"], &["openid"], "openid offline_access", Some("consent"))]
#[case::not_listed(&["openid"], &["openid"], "openid", None)]
#[case::by_access_token(&[], &["mcp:tools"], "mcp:tools openid offline_access", Some("consent"))]
#[tokio::test]
async fn login_that_is_kept_asks_for_a_refresh_token(
    #[case] listed: &[&str],
    #[case] scopes: &[&str],
    #[case] scope: &str,
    #[case] prompt: Option<&str>,
) {
    let owned = |texts: &[&str]| {
        texts
            .iter()
            .map(|one| (*one).to_owned())
            .collect::<Vec<_>>()
    };
    let client = client(ConsentSupport {
        scopes: owned(listed),
        ..at("https://as.test/auth")
    });
    let request = LoginRequest {
        redirect_uri: &Url::parse("https://gw.test/connect/callback/login").unwrap(),
        state: "a-state",
        nonce: "a-nonce",
        verifier: &Secret::new("a-verifier"),
        scopes: &owned(scopes),
        resource: None,
        asks_again: false,
        keeps: true,
        may_outlast: true,
    };
    let url = client.authorization_url(&request).await.unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    assert_eq!(query["scope"], scope);
    assert_eq!(query["nonce"], "a-nonce");
    assert_eq!(query.get("prompt").map(String::as_str), prompt);
}

// SPEC X-01
#[rstest]
#[case::clear("http://as.test/auth")]
#[case::inside("https://169.254.169.254/auth")]
#[case::loopback("https://localhost/auth")]
#[case::credentials("https://a:b@other.test/auth")]
#[tokio::test]
async fn browser_is_not_sent_elsewhere(#[case] endpoint: &str) {
    let client = client(at(endpoint));
    let reason = url(&client, &[], None).await.unwrap_err().reason();
    assert!(["refused", "metadata"].contains(&reason), "{reason}");
}

// Spec: RFC 7636 §4.2
#[tokio::test]
async fn server_that_refuses_s256_is_not_used() {
    let client = client(ConsentSupport {
        lists_s256: Some(false),
        ..at("https://as.test/auth")
    });
    assert_eq!(
        url(&client, &[], None).await.unwrap_err().reason(),
        "metadata"
    );
}

// PKCE alone ties an access token to its login.
#[rstest]
#[case::listed(Some(true), true, true)]
#[case::not_listed(Some(false), false, false)]
#[case::not_said(None, true, false)]
#[tokio::test]
async fn login_by_access_token_needs_s256_to_be_listed(
    #[case] lists_s256: Option<bool>,
    #[case] by_id_token: bool,
    #[case] by_access_token: bool,
) {
    let client = client(ConsentSupport {
        lists_s256,
        ..at("https://as.test/auth")
    });
    assert_eq!(url(&client, &["openid"], None).await.is_ok(), by_id_token);
    let resource = Some("https://gw.test/mcp");
    assert_eq!(url(&client, &[], resource).await.is_ok(), by_access_token);
}

// Spec: RFC 9207 §2.4
#[rstest]
#[case::own(Some(ISSUER), true, true)]
#[case::own_unannounced(Some(ISSUER), false, true)]
#[case::missing(None, true, false)]
#[case::never_sent(None, false, true)]
#[case::other(Some("https://evil.test"), true, false)]
#[case::other_unannounced(Some("https://evil.test"), false, false)]
#[case::slash(Some("https://as.test/"), true, false)]
#[tokio::test]
async fn answer_has_to_be_of_the_issuer_that_was_asked(
    #[case] named: Option<&str>,
    #[case] is_announced: bool,
    #[case] is_good: bool,
) {
    let metadata = ConsentSupport {
        names_issuer: is_announced,
        ..at("https://as.test/auth")
    };
    let checked = client(at("https://as.test/auth")).check_issuer(named, &server(metadata));
    assert_eq!(checked.is_ok(), is_good);
}

#[tokio::test(start_paused = true)]
async fn page_of_a_kept_login_waits_two_seconds_once() {
    let client = client(ConsentSupport {
        scopes: vec![OPENID.to_owned()],
        ..at("https://as.test/auth")
    });
    let asked = [OPENID.to_owned()];
    let search = client.metadata.searching().await;
    let start = Instant::now();
    for _ in 0..3 {
        let shown = client.kept_scopes(&asked, true).await;
        assert_eq!(shown.scopes, [OPENID, OFFLINE]);
        assert!(shown.has_offline && !shown.is_certain);
    }
    assert_eq!(start.elapsed().as_secs(), 2);
    drop(search);
    // The search of another has ended.
    let shown = client.kept_scopes(&asked, true).await;
    assert_eq!(shown.scopes, [OPENID]);
    assert!(shown.is_certain && !shown.has_offline);
}

#[tokio::test(start_paused = true)]
async fn login_waits_for_the_search_of_another_ten_seconds() {
    let client = client(at("https://as.test/auth"));
    let _search = client.metadata.searching().await;
    let start = Instant::now();
    let failure = url(&client, &[OPENID], None).await.unwrap_err();
    assert_eq!(failure.reason(), "timeout");
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn metadata_with_a_useless_token_endpoint_are_forgotten() {
    let mut client = client(at("https://as.test/auth"));
    let mut moved = server(at("https://as.test/auth"));
    moved.token_endpoint = Url::parse("https://10.1.2.3/token").unwrap();
    client.metadata = MetadataCache::knowing(moved);
    let (code, verifier) = (Secret::new("a-code"), Secret::new("a-verifier"));
    let redirect_uri = Url::parse("https://gw.test/connect/callback/login").unwrap();
    let answer = LoginResponse {
        code: &code,
        issuer: None,
        redirect_uri: &redirect_uri,
        verifier: &verifier,
        resource: None,
    };
    // Younger than a minute they stay, so that logins of many cause no search each.
    for (pause, stay) in [(59, true), (2, false)] {
        tokio::time::advance(Duration::from_secs(pause)).await;
        assert_eq!(
            client.redeem(&answer).await.unwrap_err().reason(),
            "unreachable"
        );
        assert_eq!(client.metadata.known().is_some(), stay);
    }
}
