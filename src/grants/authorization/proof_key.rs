//! PKCE with S256. A stolen code is useless without the verifier. Spec: RFC 7636 §4; SPEC B-04

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::secret::Secret;

/// Random bytes in a verifier.
const VERIFIER_LEN: usize = 32;

/// A random verifier.
pub(super) fn verifier() -> Secret {
    let chance: [u8; VERIFIER_LEN] = rand::random();
    Secret::new(BASE64_URL_SAFE_NO_PAD.encode(chance))
}

/// The challenge of `verifier`, method S256.
pub(in crate::grants) fn challenge(verifier: &Secret) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.expose().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 7636, appendix B
    #[test]
    fn challenge_is_that_of_the_rfc() {
        let verifier = Secret::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        assert_eq!(
            challenge(&verifier),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }

    #[test]
    fn verifier_has_the_length_of_the_rfc_and_is_never_the_same() {
        let (one, other) = (verifier(), verifier());
        assert!((43..=128).contains(&one.expose().len()));
        assert_ne!(one.expose(), other.expose());
    }
}
