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
    key_id: String,
    dir: TempDir,
}

/// The key id of every token.
pub(crate) const KEY_ID: &str = "test-key";

impl Issuer {
    pub(crate) fn new() -> Self {
        Self::with_key_id(KEY_ID)
    }

    /// With another key id than [`KEY_ID`].
    pub(crate) fn with_key_id(key_id: &str) -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        let key = key.as_ref().to_vec();
        let issuer = Self {
            name: "https://issuer.test".into(),
            key,
            key_id: key_id.to_owned(),
            dir: tempfile::tempdir().unwrap(),
        };
        let keys = json!({"keys": [issuer.public_key()]});
        std::fs::write(issuer.jwks_file(), keys.to_string()).unwrap();
        issuer
    }

    fn pair(&self) -> EcdsaKeyPair {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.key).unwrap()
    }

    /// The key as a set publishes it.
    pub(crate) fn public_key(&self) -> Value {
        let pair = self.pair();
        // An uncompressed point: 04, x, y.
        let point = pair.public_key().as_ref();
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.key_id,
            "x": encode(&point[1..33]), "y": encode(&point[33..65]),
        })
    }

    /// The JWK of a P-256 key: its point is 04, x, y.
    pub(crate) fn public_of(point: &[u8]) -> Value {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": KEY_ID,
            "x": encode(&point[1..33]), "y": encode(&point[33..65]),
        })
    }

    pub(crate) fn jwks_file(&self) -> PathBuf {
        self.dir.path().join("jwks.json")
    }

    /// A good access token.
    pub(crate) fn mint(&self, subject: &str, audiences: &[String], scope: &str) -> String {
        self.sign_own(&self.claims(subject, audiences, scope))
    }

    /// Signs these claims under the name of its key.
    pub(crate) fn sign_own(&self, claims: &Value) -> String {
        let mut header = Self::header();
        header.kid = Some(self.key_id.clone());
        self.sign(&header, claims)
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

    /// Signs exactly this header and these claims, valid or not, with ES256.
    pub(crate) fn sign_raw(&self, header: &str, claims: &str) -> String {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let signed = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.as_bytes())
        );
        let signature = self.pair().sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", encode(signature.unwrap().as_ref()))
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
