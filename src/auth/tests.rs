//! The battery of tokens: a good one is accepted, and each way of being bad is refused with its
//! status and challenge.

mod endpoints;
mod forged;
mod introspection;
mod issuers;
mod keys;
mod login;
mod refusals;
mod remembered;

use std::net::Ipv4Addr;
use std::time::Duration;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::samples::{NOW, Signer, auth, claims, endpoint};
use super::*;
use crate::clock::TestClock;

const ISSUER: &str = "https://issuer.test";
/// The address of callers.
const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// An authenticator that trusts the keys of one file.
struct World {
    authenticator: Arc<Authenticator>,
    signer: Signer,
    clock: Arc<TestClock>,
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut config::AuthConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let signer = Signer::new("k1");
        publish(&dir, &[signer.jwk()]);
        let mut config = auth(&[ISSUER]);
        config.issuers[0].jwks_file = Some(dir.path().join("jwks.json"));
        change(&mut config);
        let (authenticator, clock) = authenticator(&config);
        Self {
            authenticator,
            signer,
            clock,
            dir,
        }
    }

    /// Loads the keys again, if that is allowed for now.
    async fn refresh(&self) {
        let tasks = TaskSpawner::new();
        self.authenticator.issuers[0].refresh(&tasks).await;
    }

    async fn present(&self, token: &str) -> Result<Arc<Principal>, DeniedResponse> {
        self.present_on(&endpoint(), token).await
    }

    async fn present_on(
        &self,
        at: &Endpoint,
        token: &str,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        self.authenticator
            .authenticate(&bearer(token), None, FROM, at)
            .await
    }

    /// Presents a good token with these members of its header and claims replaced, or removed
    /// where the value is null.
    async fn present_changed(
        &self,
        header: Value,
        claims: Value,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        let token = self.changed(&header, &claims);
        self.present(&token).await
    }

    fn changed(&self, header: &Value, changes: &Value) -> String {
        let header = merged(self.signer.header(), header);
        let claims = merged(claims(ISSUER), changes);
        self.signer.sign(&header.to_string(), &claims.to_string())
    }
}

fn authenticator(config: &config::AuthConfig) -> (Arc<Authenticator>, Arc<TestClock>) {
    let clock = TestClock::at(NOW);
    let shared: SharedClock = Arc::<TestClock>::clone(&clock);
    let made = Authenticator::new(
        config,
        &config::EgressConfig::default(),
        shared,
        TaskSpawner::new(),
    );
    (made.expect("a usable configuration"), clock)
}

fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {token}")).expect("a header value");
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

fn publish(dir: &TempDir, keys: &[Value]) {
    let set = json!({ "keys": keys }).to_string();
    std::fs::write(dir.path().join("jwks.json"), set).expect("a file");
}

fn merged(mut base: Value, changes: &Value) -> Value {
    let members = base.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().cloned().unwrap_or_default() {
        if value.is_null() {
            members.remove(&name);
        } else {
            members.insert(name, value);
        }
    }
    base
}

/// Asserts a 401 with a challenge that says `invalid_token`, for this reason.
fn assert_invalid(result: Result<Arc<Principal>, DeniedResponse>, reason: &str) {
    let denied = result.expect_err("the token must be refused");
    assert_eq!(
        (denied.status, denied.reason),
        (StatusCode::UNAUTHORIZED, reason)
    );
    let challenge = denied.challenge.expect("a challenge");
    let challenge = challenge.to_str().expect("ASCII");
    assert!(
        challenge.starts_with("Bearer error=\"invalid_token\", error_description=\"")
            && challenge.contains(
                "resource_metadata=\"https://gw.test/.well-known/oauth-protected-resource/mcp\""
            )
            && challenge.ends_with("scope=\"mcp:tools\""),
        "{challenge}"
    );
}

#[tokio::test]
async fn a_good_token_names_its_principal() {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    let principal = world.present(&token).await.expect("a good token");
    assert_eq!(
        (principal.issuer(), principal.subject(), principal.client()),
        (ISSUER, "alice", "c")
    );
    assert_eq!(principal.scopes(), ["mcp:tools"]);
    assert_eq!(principal.expires_at(), Some(Duration::from_secs(NOW + 600)));
}

// SPEC A-10
#[tokio::test]
async fn without_a_token_a_401_says_where_to_get_one() {
    let world = World::new();
    let authenticator = &world.authenticator;
    let denied = authenticator
        .authenticate(&HeaderMap::new(), None, FROM, &endpoint())
        .await
        .expect_err("no token");
    assert_eq!(denied.status, StatusCode::UNAUTHORIZED);
    let challenge = denied.challenge.expect("a challenge");
    assert!(!challenge.to_str().expect("ASCII").contains("error"));
}

// SPEC A-12
#[rstest]
#[case::repeated(&["Bearer a.b.c", "Bearer a.b.c"], None)]
#[case::nothing_after_bearer(&["Bearer "], None)]
#[case::foreign_characters(&["Bearer a\"b"], None)]
#[case::two_words(&["Bearer a b"], None)]
#[case::in_query(&[], Some("access_token=a.b.c"))]
#[case::in_both(&["Bearer a.b.c"], Some("access_token=a.b.c"))]
#[tokio::test]
async fn malformed_credentials_are_a_400(
    #[case] values: &[&'static str],
    #[case] query: Option<&str>,
) {
    let world = World::new();
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(AUTHORIZATION, HeaderValue::from_static(value));
    }
    let denied = world
        .authenticator
        .authenticate(&headers, query, FROM, &endpoint())
        .await
        .expect_err("malformed");
    assert_eq!(denied.status, StatusCode::BAD_REQUEST);
    let challenge = denied.challenge.expect("a challenge");
    let challenge = challenge.to_str().expect("ASCII");
    assert!(
        challenge.starts_with("Bearer error=\"invalid_request\""),
        "{challenge}"
    );
}

// SPEC; RFC 9068 §4. The first lines are those of the library's own omissions.
#[rstest]
#[case::no_audience(json!({}), json!({"aud": null}), "token_audience")]
#[case::no_issuer(json!({}), json!({"iss": null}), "token_issuer")]
#[case::no_expiry(json!({}), json!({"exp": null}), "token_claim")]
#[case::no_subject(json!({}), json!({"sub": null}), "token_subject")]
#[case::not_yet(json!({}), json!({"nbf": NOW + 61}), "token_not_yet_valid")]
#[case::id_token_type(json!({"typ": "id_token+jwt"}), json!({}), "token_type")]
#[case::logout_token_type(json!({"typ": "logout+jwt"}), json!({}), "token_type")]
#[case::critical(json!({"crit": ["exp"]}), json!({}), "token_critical")]
#[case::critical_nothing(json!({"crit": []}), json!({}), "token_critical")]
#[case::other_audience(json!({}), json!({"aud": "https://gw.test/mcp/git"}), "token_audience")]
#[case::audience_with_slash(json!({}), json!({"aud": "https://gw.test/mcp/"}), "token_audience")]
#[case::other_audiences(json!({}), json!({"aud": ["a", "b"]}), "token_audience")]
#[case::no_audiences(json!({}), json!({"aud": []}), "token_audience")]
#[case::audience_twice(
    json!({}), json!({"aud": ["https://gw.test/mcp", "https://gw.test/mcp"]}), "token_audience"
)]
#[case::audience_number(json!({}), json!({"aud": 1}), "token_claim")]
#[case::audience_mixed(json!({}), json!({"aud": ["https://gw.test/mcp", 1]}), "token_claim")]
#[case::other_issuer(json!({}), json!({"iss": "https://evil.test"}), "token_issuer")]
#[case::issuer_with_slash(json!({}), json!({"iss": "https://issuer.test/"}), "token_issuer")]
#[case::issuer_list(json!({}), json!({"iss": [ISSUER]}), "token_claim")]
#[case::expired(json!({}), json!({"exp": NOW - 60}), "token_expired")]
#[case::expiry_text(json!({}), json!({"exp": "9999999999"}), "token_claim")]
#[case::negative_expiry(json!({}), json!({"exp": -1}), "token_expired")]
#[case::issued_later(json!({}), json!({"iat": NOW + 61}), "token_not_yet_valid")]
#[case::empty_subject(json!({}), json!({"sub": ""}), "token_subject")]
#[case::subject_number(json!({}), json!({"sub": 7}), "token_claim")]
#[case::client_number(json!({}), json!({"client_id": 7}), "token_claim")]
#[case::scope_number(json!({}), json!({"scope": 7}), "token_claim")]
#[case::bound(json!({}), json!({"cnf": {"jkt": "x"}}), "token_bound")]
#[case::nonce(json!({"typ": "JWT"}), json!({"nonce": "n"}), "token_type")]
#[case::token_hash(json!({"typ": null}), json!({"at_hash": "h"}), "token_type")]
#[case::refresh_token(json!({"typ": "JWT"}), json!({"typ": "Refresh"}), "token_type")]
#[case::cognito_id_token(json!({"typ": null}), json!({"token_use": "id"}), "token_type")]
#[case::odd_use(json!({"typ": null}), json!({"token_use": 7}), "token_claim")]
#[case::unknown_key(json!({"kid": "k9"}), json!({}), "token_unknown_key")]
#[case::other_algorithm(json!({"alg": "ES384"}), json!({}), "token_unknown_key")]
#[case::rsa_with_ec_key(json!({"alg": "RS256"}), json!({}), "token_unknown_key")]
#[case::no_algorithm(json!({"alg": null}), json!({}), "token_algorithm")]
#[case::algorithm_none(json!({"alg": "none"}), json!({}), "token_algorithm")]
#[case::algorithm_none_in_capitals(json!({"alg": "NONE"}), json!({}), "token_algorithm")]
#[case::hmac(json!({"alg": "HS256"}), json!({}), "token_algorithm")]
#[tokio::test]
async fn a_token_with_one_fault_is_refused(
    #[case] header: Value,
    #[case] claims: Value,
    #[case] reason: &str,
) {
    assert_invalid(World::new().present_changed(header, claims).await, reason);
}

#[rstest]
#[case::media_type(json!({"typ": "application/at+jwt"}), json!({}))]
#[case::capitals(json!({"typ": "AT+JWT"}), json!({}))]
#[case::older_type(json!({"typ": "JWT"}), json!({}))]
#[case::keycloak(json!({"typ": "JWT"}), json!({"typ": "Bearer", "azp": "c"}))]
#[case::no_type(json!({"typ": null}), json!({}))]
#[case::cognito(json!({"typ": null}), json!({"token_use": "access"}))]
#[case::no_key_id(json!({"kid": null}), json!({}))]
#[case::many_audiences(json!({}), json!({"aud": ["https://a.test", "https://gw.test/mcp"]}))]
#[case::expired_within_skew(json!({}), json!({"exp": NOW - 59}))]
#[case::early_within_skew(json!({}), json!({"nbf": NOW + 60, "iat": NOW + 60}))]
#[case::fractions(json!({}), json!({"exp": 1_800_000_000.5, "iat": 1_799_999_999.5}))]
#[case::no_issue_time(json!({}), json!({"iat": null, "jti": null}))]
#[case::scope_list(json!({}), json!({"scope": null, "scp": ["mcp:tools", "x"]}))]
#[case::scope_text_elsewhere(json!({}), json!({"scope": null, "scp": "x mcp:tools"}))]
#[tokio::test]
async fn what_servers_do_differently_is_accepted(#[case] header: Value, #[case] claims: Value) {
    let result = World::new().present_changed(header, claims).await;
    result.expect("an acceptable token");
}

#[rstest]
#[case::client_id(json!({"azp": "a"}), "c")]
#[case::authorized_party(json!({"client_id": null, "azp": "a"}), "a")]
#[case::neither(json!({"client_id": null}), "")]
#[tokio::test]
async fn the_client_is_client_id_else_azp_else_empty(#[case] claims: Value, #[case] client: &str) {
    let principal = World::new().present_changed(json!({}), claims).await;
    assert_eq!(principal.expect("a good token").client(), client);
}

// SPEC A-21
#[tokio::test]
async fn another_claim_can_name_the_subject() {
    let world = World::with(|config| config.issuers[0].subject_claim = Some("oid".to_owned()));
    let claims = json!({"sub": null, "oid": "o-1"});
    let principal = world.present_changed(json!({}), claims).await;
    assert_eq!(principal.expect("a good token").subject(), "o-1");
    let result = world.present_changed(json!({}), json!({})).await;
    assert_invalid(result, "token_subject");
}

// OpenID Connect Core §5.7. Else a person who writes another's address into a profile is that other.
#[rstest]
#[case::flag(json!(false))]
#[case::text(json!("false"))]
#[tokio::test]
async fn address_that_is_said_to_be_unverified_names_no_caller(#[case] verified: Value) {
    let world = World::with(|config| config.issuers[0].subject_claim = Some("email".to_owned()));
    let address = "alice@one.test";
    let claims = json!({"email": address, "email_verified": verified});
    let result = world.present_changed(json!({}), claims).await;
    assert_invalid(result, "token_unverified");
    for said in [json!(null), json!(true)] {
        let claims = json!({"email": address, "email_verified": said});
        let principal = world.present_changed(json!({}), claims).await;
        assert_eq!(principal.expect("a good token").subject(), address);
    }
}

#[tokio::test]
async fn without_authentication_everybody_is_anonymous() {
    let world = World::with(|config| config.mode = config::AuthMode::None);
    let result = world.present("whatever").await;
    assert_eq!(result.expect("everybody").subject(), "anonymous");
}
