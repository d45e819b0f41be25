//! `ProofKey`: PKCE with S256. A stolen code is useless without the verifier. Spec: RFC 7636 §4; SPEC B-04

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::secret::Secret;

/// Random bytes in a verifier.
const VERIFIER_LEN: usize = 32;

/// A PKCE verifier, from which the challenge is made.
#[derive(Debug)]
pub(super) struct ProofKey(Secret);

impl ProofKey {
    /// A random verifier.
    pub(super) fn new() -> Self {
        let chance: [u8; VERIFIER_LEN] = rand::random();
        Self(Secret::new(BASE64_URL_SAFE_NO_PAD.encode(chance)))
    }

    /// The challenge, method S256.
    pub(super) fn challenge(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, self.0.expose().as_bytes()))
    }

    /// The verifier.
    pub(super) fn into_verifier(self) -> Secret {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 7636, appendix B
    #[test]
    fn challenge_is_that_of_the_rfc() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let key = ProofKey(Secret::new(verifier));
        assert_eq!(
            key.challenge(),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }

    #[test]
    fn verifier_has_the_length_of_the_rfc_and_is_never_the_same() {
        let (one, other) = (ProofKey::new(), ProofKey::new());
        assert!((43..=128).contains(&one.0.expose().len()));
        assert_ne!(one.0.expose(), other.0.expose());
    }
}
