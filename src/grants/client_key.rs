//! `ClientProof`: how the gateway proves to an authorization server which client it is. Spec: RFC 7523.

use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;

use crate::clock::{Clock as _, SystemClock};
use crate::config::ClientKey;
use crate::secret::Secret;

/// How long an assertion is valid, in seconds.
const ASSERTION_SECS: u64 = 60;

/// The client's secret, its signing key, or no proof at all.
pub(super) enum ClientProof {
    /// A public client: PKCE alone proves that a code is its own.
    Public,
    Secret(Secret),
    Key(SigningKey),
}

/// A private key, and the algorithms that it can sign with; the preferred one first.
pub(super) struct SigningKey {
    key: EncodingKey,
    algorithms: Vec<Algorithm>,
    /// Whether the server has last accepted the audience [`AssertionAudience::Endpoint`].
    names_endpoint: AtomicBool,
}

/// What an assertion names as its audience. Servers disagree: most accept the issuer, which FAPI 2.0 demands, and Okta nothing
/// but the endpoint. Spec: RFC 7523 §3
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AssertionAudience {
    /// The issuer identifier of the server.
    Issuer,
    /// The URL that the assertion is sent to. The receiver cannot use the assertion at another server.
    Endpoint,
}

/// Why `private_key` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "private_key is no private key in PKCS #8 (\"BEGIN PRIVATE KEY\") for RSA, P-256, P-384 or Ed25519"
)]
pub struct ClientKeyError;

#[derive(Debug, Serialize)]
struct AssertionClaims<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
    jti: String,
}

impl ClientProof {
    pub(super) fn new(key: &ClientKey) -> Result<Self, ClientKeyError> {
        Ok(match key {
            ClientKey::Secret(secret) => Self::Secret(secret.clone()),
            ClientKey::PrivateKey(pem) => Self::Key(SigningKey::read(pem)?),
        })
    }

    /// The audience to try first: the one that the server has last accepted, else the issuer.
    pub(super) fn audience(&self) -> AssertionAudience {
        match self {
            Self::Key(key) if key.names_endpoint.load(Ordering::Relaxed) => {
                AssertionAudience::Endpoint
            }
            Self::Key(_) | Self::Public | Self::Secret(_) => AssertionAudience::Issuer,
        }
    }

    /// The audience to try after `refused`; `None` for a proof without assertions.
    pub(super) fn other_audience(&self, refused: AssertionAudience) -> Option<AssertionAudience> {
        let other = match refused {
            AssertionAudience::Issuer => AssertionAudience::Endpoint,
            AssertionAudience::Endpoint => AssertionAudience::Issuer,
        };
        matches!(self, Self::Key(_)).then_some(other)
    }

    /// Records that the server has accepted `audience`, for as long as the process runs.
    pub(super) fn accepted(&self, audience: AssertionAudience) {
        if let Self::Key(key) = self {
            let names_endpoint = audience == AssertionAudience::Endpoint;
            key.names_endpoint.store(names_endpoint, Ordering::Relaxed);
        }
    }

    /// How it is sent to a server that takes the methods `taken`. Spec: RFC 8414 §2, the default.
    pub(super) fn method(&self, taken: Option<&[String]>) -> &'static str {
        let has = |method: &str| taken.is_some_and(|taken| taken.iter().any(|one| one == method));
        match self {
            Self::Public => "none",
            Self::Key(_) => "private_key_jwt",
            Self::Secret(_) if has("client_secret_post") && !has("client_secret_basic") => {
                "client_secret_post"
            }
            Self::Secret(_) => "client_secret_basic",
        }
    }
}

impl std::fmt::Debug for ClientProof {
    /// Shows neither the secret nor the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Public => "Public",
            Self::Secret(_) => "Secret(…)",
            Self::Key(_) => "Key(…)",
        })
    }
}

impl SigningKey {
    fn read(pem: &Secret) -> Result<Self, ClientKeyError> {
        let pem = pem.expose().as_bytes();
        let (key, candidates): (_, &[Algorithm]) = if let Ok(key) = EncodingKey::from_rsa_pem(pem) {
            (
                key,
                &[
                    Algorithm::RS256,
                    Algorithm::PS256,
                    Algorithm::RS384,
                    Algorithm::PS384,
                ],
            )
        } else if let Ok(key) = EncodingKey::from_ec_pem(pem) {
            (key, &[Algorithm::ES256, Algorithm::ES384])
        } else {
            let key = EncodingKey::from_ed_pem(pem).map_err(|_| ClientKeyError)?;
            (key, &[Algorithm::EdDSA])
        };
        // An elliptic-curve key fits one algorithm, which the PEM reader does not report: try each.
        let signs = |algorithm: &Algorithm| {
            jsonwebtoken::encode(&Header::new(*algorithm), &claims("", ""), &key).is_ok()
        };
        let algorithms: Vec<_> = candidates.iter().copied().filter(signs).collect();
        if algorithms.is_empty() {
            return Err(ClientKeyError);
        }
        Ok(Self {
            key,
            algorithms,
            names_endpoint: AtomicBool::new(false),
        })
    }

    /// An assertion that the gateway is `client_id`, for the `audience`, signed with an algorithm of `taken`; `None` where the
    /// key fits none of these.
    pub(super) fn assertion(
        &self,
        client_id: &str,
        audience: &str,
        taken: Option<&[String]>,
    ) -> Option<Secret> {
        let is_taken = |algorithm: &&Algorithm| {
            let name = format!("{algorithm:?}");
            taken.is_none_or(|taken| taken.contains(&name))
        };
        let algorithm = self.algorithms.iter().find(is_taken)?;
        let claims = claims(client_id, audience);
        let signed = jsonwebtoken::encode(&Header::new(*algorithm), &claims, &self.key).ok()?;
        Some(Secret::new(signed))
    }
}

fn claims<'a>(client_id: &'a str, audience: &'a str) -> AssertionClaims<'a> {
    let now = SystemClock.now().as_secs();
    let mut id = [0; 16];
    // Without randomness every `jti` is zero, and the server refuses the second assertion as a replay.
    let _ = rand::fill(&mut id);
    AssertionClaims {
        iss: client_id,
        sub: client_id,
        aud: audience,
        iat: now,
        exp: now + ASSERTION_SECS,
        jti: BASE64_URL_SAFE_NO_PAD.encode(id),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn key(algorithm: &'static rcgen::SignatureAlgorithm) -> SigningKey {
        let pem = rcgen::KeyPair::generate_for(algorithm)
            .unwrap()
            .serialize_pem();
        SigningKey::read(&Secret::new(pem)).unwrap()
    }

    #[rstest]
    #[case::not_said(None, "client_secret_basic")]
    #[case::both(Some(&["client_secret_post", "client_secret_basic"][..]), "client_secret_basic")]
    #[case::form(Some(&["client_secret_post"][..]), "client_secret_post")]
    #[case::neither(Some(&["none"][..]), "client_secret_basic")]
    fn secret_goes_where_the_server_takes_it(#[case] taken: Option<&[&str]>, #[case] method: &str) {
        let owned = |texts: &[&str]| texts.iter().map(|one| (*one).to_owned()).collect();
        let taken: Option<Vec<String>> = taken.map(owned);
        let secret = ClientProof::Secret(Secret::new("hunter2"));
        assert_eq!(secret.method(taken.as_deref()), method);
        assert_eq!(ClientProof::Public.method(taken.as_deref()), "none");
    }

    #[rstest]
    #[case::p256(&rcgen::PKCS_ECDSA_P256_SHA256, Algorithm::ES256)]
    #[case::p384(&rcgen::PKCS_ECDSA_P384_SHA384, Algorithm::ES384)]
    #[case::ed25519(&rcgen::PKCS_ED25519, Algorithm::EdDSA)]
    fn a_key_signs_with_the_algorithm_of_its_curve(
        #[case] kind: &'static rcgen::SignatureAlgorithm,
        #[case] algorithm: Algorithm,
    ) {
        let key = key(kind);
        let assertion = key.assertion("me", "https://as.test", None).unwrap();
        let header = jsonwebtoken::decode_header(assertion.expose()).unwrap();
        assert_eq!(header.alg, algorithm);
    }

    #[test]
    fn an_assertion_is_for_one_server_and_for_once() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let read = || {
            let signed = key.assertion("me", "https://as.test", None).unwrap();
            let claims = signed.expose().split('.').nth(1).unwrap().to_owned();
            let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
            serde_json::from_slice::<serde_json::Value>(&claims).unwrap()
        };
        let (one, other) = (read(), read());
        assert_eq!((&one["iss"], &one["sub"]), (&"me".into(), &"me".into()));
        assert_eq!(one["aud"], "https://as.test");
        assert_ne!(one["jti"], other["jti"]);
        let lasts = one["exp"].as_u64().unwrap() - one["iat"].as_u64().unwrap();
        assert_eq!(lasts, ASSERTION_SECS);
    }

    #[test]
    fn an_algorithm_that_the_server_does_not_take_is_not_used() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let taken = ["RS256".to_owned()];
        assert!(
            key.assertion("me", "https://as.test", Some(&taken))
                .is_none()
        );
    }

    #[test]
    fn audience_that_was_accepted_is_tried_first() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let proof = ClientProof::Key(key);
        let (issuer, endpoint) = (AssertionAudience::Issuer, AssertionAudience::Endpoint);
        assert_eq!(proof.audience(), issuer);
        assert_eq!(proof.other_audience(issuer), Some(endpoint));
        proof.accepted(endpoint);
        assert_eq!(proof.audience(), endpoint);
        assert_eq!(proof.other_audience(endpoint), Some(issuer));
        let secret = ClientProof::Secret(Secret::new("hunter2"));
        assert_eq!(secret.other_audience(secret.audience()), None);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(SigningKey::read(&Secret::new("hunter2")).is_err());
    }
}
