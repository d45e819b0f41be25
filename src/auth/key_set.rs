//! The published keys of one issuer, and the check of a signature against the right one.
//!
//! Spec: RFC 7517, RFC 7518; RFC 8725 §3.1: a key serves only the algorithms it was made for.

use std::fmt;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::jwt::{ParsedToken, TokenHeader, algorithm_named};
use super::reject::RejectReason;

/// Keys kept per set.
const MAX_KEYS: usize = 100;
/// Keys tried per token: more than an issuer has in use at once, and a few milliseconds at most. All keys of a kind fit a
/// token that names none.
const MAX_TRIED: usize = 16;

/// The keys of a set that can verify signatures; others are left out.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
    /// Elements that were left out.
    others: usize,
}

/// One public key.
struct PublicKey {
    id: Option<String>,
    /// The key's `alg`, if any.
    algorithm: Option<Algorithm>,
    material: KeyMaterial,
    public: DecodingKey,
}

/// What a key can be used with by its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyMaterial {
    Rsa,
    P256,
    P384,
    Ed25519,
}

/// One element of a set.
enum KeySetElement {
    /// It can verify signatures.
    Key(PublicKey),
    /// A key for another purpose, or of a kind that we do not use.
    Other,
    /// No key at all.
    Malformed,
}

/// A document whose keys cannot take the place of others.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadKeySet {
    #[error("the document is not a JWK set")]
    NotASet(#[source] serde_json::Error),
    #[error("none of the {0} elements of the set is a key")]
    NoKeys(usize),
    #[error("the set is empty")]
    Empty,
    #[error("none of the {0} keys in the set can verify the signature of a token")]
    NothingUsable(usize),
}

impl KeySet {
    /// Reads a JWK set. Keys that we cannot use, and keys past the hundredth, are passed over: a
    /// set may hold keys for other purposes. Spec: RFC 7517 §5
    ///
    /// # Errors
    /// [`BadKeySet::NotASet`], or [`BadKeySet::NoKeys`] for a set without any well-formed key, which no
    /// issuer intends. An empty set, or a set with keys for other purposes only, is accepted: every signing
    /// key is withdrawn.
    pub(super) fn read(json: &[u8]) -> Result<Self, BadKeySet> {
        #[derive(Deserialize)]
        struct KeySetDocument<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        let document: KeySetDocument<'_> =
            serde_json::from_slice(json).map_err(BadKeySet::NotASet)?;
        let mut set = Self::default();
        let mut has_keys = document.keys.is_empty();
        for raw in &document.keys {
            match KeySetElement::read(raw.get()) {
                KeySetElement::Key(key) => set.keys.push(key),
                KeySetElement::Other => has_keys = true,
                KeySetElement::Malformed => {}
            }
            if set.keys.len() == MAX_KEYS {
                break;
            }
        }
        if set.keys.is_empty() && !has_keys {
            return Err(BadKeySet::NoKeys(document.keys.len()));
        }
        set.others = document.keys.len() - set.keys.len();
        Ok(set)
    }

    /// Checks that the set has a key for signatures.
    ///
    /// # Errors
    /// [`BadKeySet::Empty`] or [`BadKeySet::NothingUsable`] otherwise.
    pub(super) fn usable(&self) -> Result<(), BadKeySet> {
        match (self.keys.len(), self.others) {
            (0, 0) => Err(BadKeySet::Empty),
            (0, others) => Err(BadKeySet::NothingUsable(others)),
            _ => Ok(()),
        }
    }

    /// The ids of its keys, for the log.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys
            .iter()
            .map(|key| key.id.as_deref().unwrap_or("none"))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Verifies the signature of `token` with the keys that fit its header.
    ///
    /// # Errors
    /// [`RejectReason::UnknownKey`] when no key fits, [`RejectReason::Signature`] when one does and says no.
    pub(super) fn verify(&self, token: &ParsedToken<'_>) -> Result<(), RejectReason> {
        let mut fitting = self
            .keys
            .iter()
            .filter(|key| key.fits(&token.header))
            .take(MAX_TRIED)
            .peekable();
        if fitting.peek().is_none() {
            return Err(RejectReason::UnknownKey);
        }
        let is_signed = fitting.any(|key| {
            jsonwebtoken::crypto::verify(
                token.signature,
                token.signed.as_bytes(),
                &key.public,
                token.header.algorithm,
            )
            .unwrap_or(false)
        });
        is_signed.then_some(()).ok_or(RejectReason::Signature)
    }
}

impl KeySetElement {
    fn read(json: &str) -> Self {
        let Some(shape) = serde_json::from_str::<KeyShape>(json)
            .ok()
            .filter(KeyShape::is_whole)
        else {
            return Self::Malformed;
        };
        let Ok(jwk) = serde_json::from_str::<Jwk>(json) else {
            return if shape.is_known() {
                Self::Malformed
            } else {
                Self::Other
            };
        };
        let Some((material, algorithm)) = shape.purpose(&jwk) else {
            return Self::Other;
        };
        match DecodingKey::from_jwk(&jwk) {
            Ok(public) => Self::Key(PublicKey {
                id: shape.kid,
                algorithm,
                material,
                public,
            }),
            Err(_) => Self::Malformed,
        }
    }
}

/// The members that make a JSON object a key. Spec: RFC 7517 §4, RFC 7518 §6, RFC 8037 §2
#[derive(Deserialize)]
struct KeyShape {
    kty: String,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    k: Option<String>,
}

impl KeyShape {
    /// Whether its type and its curve are among those that can be read.
    fn is_known(&self) -> bool {
        let is_type = ["RSA", "EC", "OKP", "oct"].contains(&self.kty.as_str());
        let curves = ["P-256", "P-384", "P-521", "Ed25519"];
        is_type && self.crv.as_deref().is_none_or(|crv| curves.contains(&crv))
    }

    /// Whether nothing is missing that a key of its type has.
    fn is_whole(&self) -> bool {
        let needed: &[&Option<String>] = match self.kty.as_str() {
            "RSA" => &[&self.n, &self.e],
            "EC" => &[&self.crv, &self.x, &self.y],
            "OKP" => &[&self.crv, &self.x],
            "oct" => &[&self.k],
            _ => &[],
        };
        needed.iter().all(|member| member.is_some())
    }

    /// Material and algorithm for verifying signatures; `None` for a key with another purpose.
    fn purpose(&self, jwk: &Jwk) -> Option<(KeyMaterial, Option<Algorithm>)> {
        let common = &jwk.common;
        let for_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature))
            && common
                .key_operations
                .as_ref()
                .is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !for_signatures {
            return None;
        }
        let material = KeyMaterial::of(&jwk.algorithm)?;
        let algorithm = match &self.alg {
            Some(name) => Some(algorithm_named(name).filter(|one| material.serves(*one))?),
            None => None,
        };
        Some((material, algorithm))
    }
}

impl PublicKey {
    /// A token that names no key may use any of the right kind; one that does, only that one.
    fn fits(&self, header: &TokenHeader) -> bool {
        self.material.serves(header.algorithm)
            && self.algorithm.is_none_or(|own| own == header.algorithm)
            && (header.key_id.is_none() || header.key_id == self.id)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("id", &self.id)
            .field("algorithm", &self.algorithm)
            .field("material", &self.material)
            .finish_non_exhaustive()
    }
}

impl KeyMaterial {
    /// A symmetric key in a published set is no key.
    fn of(parameters: &AlgorithmParameters) -> Option<Self> {
        match parameters {
            AlgorithmParameters::RSA(_) => Some(Self::Rsa),
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => Some(Self::P256),
                EllipticCurve::P384 => Some(Self::P384),
                _ => None,
            },
            AlgorithmParameters::OctetKeyPair(key) => {
                matches!(key.curve, EllipticCurve::Ed25519).then_some(Self::Ed25519)
            }
            _ => None,
        }
    }

    fn serves(self, algorithm: Algorithm) -> bool {
        match self {
            Self::Rsa => matches!(
                algorithm,
                Algorithm::RS256
                    | Algorithm::RS384
                    | Algorithm::RS512
                    | Algorithm::PS256
                    | Algorithm::PS384
                    | Algorithm::PS512
            ),
            Self::P256 => algorithm == Algorithm::ES256,
            Self::P384 => algorithm == Algorithm::ES384,
            Self::Ed25519 => algorithm == Algorithm::EdDSA,
        }
    }
}
