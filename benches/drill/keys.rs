//! A key pair made for one run, its key set document, and access tokens signed with it.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Names us in tokens and configuration; nothing is ever fetched from it.
pub(crate) const ISSUER: &str = "http://127.0.0.1:9/issuer";
/// The scope that the endpoints ask for.
pub(crate) const SCOPE: &str = "mcp:tools";
const KEY_ID: &str = "drill";
const LIFETIME: Duration = Duration::from_hours(4);

/// Signs access tokens.
#[derive(Debug)]
pub(crate) struct Issuer {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl Issuer {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .context("cannot make a key pair")?;
        let random = SystemRandom::new();
        Ok(Self { pair, random })
    }

    /// Writes the key set document.
    pub(crate) fn write_key_set(&self, file: &Path) -> anyhow::Result<()> {
        // An uncompressed point: a tag byte, then two coordinates of 32 bytes.
        let point = self.pair.public_key().as_ref();
        let part = |range| URL_SAFE_NO_PAD.encode(point.get(range).unwrap_or_default());
        let keys = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": KEY_ID,
            "x": part(1..33), "y": part(33..65),
        }]});
        std::fs::write(file, keys.to_string()).context("cannot write the key set")
    }

    /// An access token of `subject` for the resources `audiences`.
    pub(crate) fn token(&self, subject: &str, audiences: &[String]) -> anyhow::Result<String> {
        let now = std::time::SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the clock is before 1970")?;
        let header = json!({"alg": "ES256", "typ": "at+jwt", "kid": KEY_ID});
        let claims = json!({
            "iss": ISSUER, "sub": subject, "aud": audiences, "client_id": "drill",
            "scope": SCOPE, "iat": now.as_secs(), "exp": (now + LIFETIME).as_secs(),
            "jti": format!("{subject}-{}", now.as_nanos()),
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self
            .pair
            .sign(&self.random, signed.as_bytes())
            .context("cannot sign")?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}
