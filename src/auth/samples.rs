//! Endpoints, configurations and an issuer for the tests of this module.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::config::{AuthConfig, AuthMode, IssuerConfig};
use crate::endpoint::Endpoint;

/// The time of all tests, in seconds since the Unix epoch.
pub(super) const NOW: u64 = 1_800_000_000;

/// `/mcp` of `https://gw.test`, which needs `mcp:tools`.
pub(super) fn endpoint() -> Endpoint {
    Endpoint {
        name: "mcp".into(),
        path: "/mcp".to_owned(),
        resource: "https://gw.test/mcp".to_owned(),
        metadata_url: "https://gw.test/.well-known/oauth-protected-resource/mcp".to_owned(),
        required_scopes: vec!["mcp:tools".to_owned()],
        ..Endpoint::unreachable(&"files".into())
    }
}

/// `[auth]` that trusts these issuers.
pub(super) fn auth(issuers: &[&str]) -> AuthConfig {
    let issuer = |issuer: &&str| IssuerConfig {
        issuer: (*issuer).to_owned(),
        jwks_file: None,
        audiences: Vec::new(),
        subject_claim: None,
        introspection: None,
    };
    AuthConfig {
        keeps_tokens: false,
        mode: AuthMode::OAuth,
        required_scopes: vec!["mcp:tools".to_owned()],
        login_scopes: Vec::new(),
        issuers: issuers.iter().map(issuer).collect(),
        tool_scopes: Vec::new(),
        scope_implies: Vec::new(),
    }
}

/// An ES256 key and the tokens it signs.
pub(super) struct Signer {
    pair: EcdsaKeyPair,
    pub(super) key_id: &'static str,
}

impl Signer {
    pub(super) fn new(key_id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Self {
            pair: pair.expect("a key"),
            key_id,
        }
    }

    /// The public key, as a set publishes it.
    pub(super) fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.key_id,
            "x": encode(&point[1..33]), "y": encode(&point[33..65]),
        })
    }

    /// The uncompressed public point.
    pub(super) fn public_bytes(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    pub(super) fn header(&self) -> Value {
        json!({ "alg": "ES256", "typ": "at+jwt", "kid": self.key_id })
    }

    /// Signs any header and claims, valid or not.
    pub(super) fn sign(&self, header: &str, claims: &str) -> String {
        let signed = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.as_bytes())
        );
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        format!(
            "{signed}.{}",
            encode(signature.expect("a signature").as_ref())
        )
    }

    /// A good token of `issuer` for [`endpoint`].
    pub(super) fn mint(&self, issuer: &str) -> String {
        self.sign(&self.header().to_string(), &claims(issuer).to_string())
    }
}

/// The claims of a good token.
pub(super) fn claims(issuer: &str) -> Value {
    json!({
        "iss": issuer, "sub": "alice", "aud": "https://gw.test/mcp", "client_id": "c",
        "iat": NOW, "exp": NOW + 600, "jti": "1", "scope": "mcp:tools",
    })
}

pub(super) fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
