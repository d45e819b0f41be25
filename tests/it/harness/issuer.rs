//! A small issuer: one key, a key set file, tokens with any claims.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An issuer whose keys the gateway reads from a file.
pub(crate) struct Issuer {
    /// Its identifier.
    pub(crate) name: String,
    /// PKCS #8.
    key: Vec<u8>,
    dir: TempDir,
}

/// The key id of every token.
pub(crate) const KEY_ID: &str = "test-key";

impl Issuer {
    pub(crate) fn new() -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        let key = key.as_ref().to_vec();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &key).unwrap();
        // An uncompressed point: 04, x, y.
        let point = pair.public_key().as_ref();
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let keys = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": KEY_ID,
            "x": encode(&point[1..33]), "y": encode(&point[33..65]),
        }]});
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("jwks.json"), keys.to_string()).unwrap();
        Self {
            name: "https://issuer.test".into(),
            key,
            dir,
        }
    }

    pub(crate) fn jwks_file(&self) -> PathBuf {
        self.dir.path().join("jwks.json")
    }

    /// A good access token.
    pub(crate) fn mint(&self, subject: &str, audiences: &[String], scope: &str) -> String {
        self.sign(&Self::header(), &self.claims(subject, audiences, scope))
    }

    /// The header of a good token.
    pub(crate) fn header() -> Header {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".into());
        header.kid = Some(KEY_ID.into());
        header
    }

    /// The claims of a good token, for tests that spoil one of them.
    pub(crate) fn claims(&self, subject: &str, audiences: &[String], scope: &str) -> Value {
        let now = unix_now();
        json!({
            "iss": self.name, "sub": subject, "aud": audiences, "client_id": "test-client",
            "iat": now, "exp": now + 600, "jti": format!("{subject}-{now}"), "scope": scope,
        })
    }

    pub(crate) fn sign(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &EncodingKey::from_ec_der(&self.key)).unwrap()
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
