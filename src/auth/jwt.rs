//! What makes a JWT an access token for us. The signature is checked by `key_set`; everything else
//! here, by our own reading: the library's validation passes tokens without audience or issuer.
//!
//! Spec: RFC 9068 §4, RFC 8725 §3; SPEC.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;

use super::claims::{Members, WrongType};
use super::scope::Hierarchy;
use crate::call::Principal;

/// The longest token that is looked at, in bytes.
const MAX_LEN: usize = 16 * 1024;
/// How far the issuer's clock may differ from ours, in seconds.
const SKEW_SECS: f64 = 60.0;

/// Why a token is not accepted. The order is that of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reject {
    TooLong,
    NotAJwt,
    Algorithm,
    Type,
    Critical,
    Claim,
    Issuer,
    Audience,
    Expired,
    NotYet,
    Subject,
    Bound,
    UnknownKey,
    Signature,
}

impl Reject {
    /// One word for logs and metrics.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "token_too_long",
            Self::NotAJwt => "token_not_a_jwt",
            Self::Algorithm => "token_algorithm",
            Self::Type => "token_type",
            Self::Critical => "token_critical",
            Self::Claim => "token_claim",
            Self::Issuer => "token_issuer",
            Self::Audience => "token_audience",
            Self::Expired => "token_expired",
            Self::NotYet => "token_not_yet_valid",
            Self::Subject => "token_subject",
            Self::Bound => "token_bound",
            Self::UnknownKey => "token_unknown_key",
            Self::Signature => "token_signature",
        }
    }

    /// For the client, in the challenge.
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::TooLong => "the token is too long",
            Self::NotAJwt => "the token is not a signed JWT",
            Self::Algorithm => "the signature algorithm is not accepted",
            Self::Type => "the token is not an access token",
            Self::Critical => "the token has critical header parameters",
            Self::Claim => "a claim is not of its type",
            Self::Issuer => "the issuer is not trusted here",
            Self::Audience => "the token was issued for another resource",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::Subject => "the token names no subject",
            Self::Bound => "sender-constrained tokens are not accepted",
            Self::UnknownKey | Self::Signature => "the signature cannot be verified",
        }
    }
}

impl From<WrongType> for Reject {
    fn from(_: WrongType) -> Self {
        Self::Claim
    }
}

/// A token taken apart, nothing of it verified.
#[derive(Debug)]
pub(super) struct Token<'t> {
    /// What is signed: header and claims as they were sent.
    pub(super) signed: &'t str,
    /// The signature, still encoded.
    pub(super) signature: &'t str,
    pub(super) header: Header,
    claims: Vec<u8>,
}

/// The header parameters that we act on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    /// Whether the type says access token; else the claims have to show that it is no other kind.
    is_access_token: bool,
}

/// What a token has to fulfil besides its signature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) issuer: &'a str,
    /// The resource identifier of the endpoint.
    pub(super) resource: &'a str,
    /// Other audiences that the operator accepts here.
    pub(super) audiences: [&'a [String]; 2],
    /// The claim that identifies the subject.
    pub(super) subject_claim: &'a str,
    /// Which scopes bring others with them.
    pub(super) hierarchy: &'a Hierarchy,
    /// Seconds since the Unix epoch.
    pub(super) now: f64,
}

impl<'t> Token<'t> {
    pub(super) fn read(token: &'t str) -> Result<Self, Reject> {
        if token.len() > MAX_LEN {
            return Err(Reject::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Reject::NotAJwt)?;
        let (header, claims) = signed.split_once('.').ok_or(Reject::NotAJwt)?;
        let claims = decode(claims)?;
        Ok(Self {
            signed,
            signature,
            header: Header::read(&decode(header)?)?,
            claims,
        })
    }

    /// The claims, none of them verified.
    pub(super) fn claims(&self) -> Result<Members<'_>, Reject> {
        Members::read(&self.claims).ok_or(Reject::NotAJwt)
    }
}

/// Decodes one part; a dot, padding or a stray bit makes it no part of a JWT.
fn decode(part: &str) -> Result<Vec<u8>, Reject> {
    BASE64_URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| Reject::NotAJwt)
}

impl Header {
    fn read(json: &[u8]) -> Result<Self, Reject> {
        let members = Members::read(json).ok_or(Reject::NotAJwt)?;
        // Spec: RFC 7515 §4.1.11: we understand no extension
        if members.has("crit") {
            return Err(Reject::Critical);
        }
        let wrong = |_| Reject::NotAJwt;
        let algorithm = members.text("alg").map_err(wrong)?;
        let algorithm = algorithm
            .and_then(|name| algorithm_named(&name))
            .ok_or(Reject::Algorithm)?;
        // Spec: RFC 9068 §4; servers older than it say JWT or nothing
        let is_access_token = match members.text("typ").map_err(wrong)? {
            None => false,
            Some(typ) if typ.eq_ignore_ascii_case("JWT") => false,
            Some(typ)
                if typ.eq_ignore_ascii_case("at+jwt")
                    || typ.eq_ignore_ascii_case("application/at+jwt") =>
            {
                true
            }
            Some(_) => return Err(Reject::Type),
        };
        let key_id = members.text("kid").map_err(wrong)?;
        Ok(Self {
            algorithm,
            key_id: key_id.map(std::borrow::Cow::into_owned),
            is_access_token,
        })
    }
}

/// The algorithms that we accept: asymmetric ones only, so that no published key can ever serve as
/// a shared secret. Spec: RFC 8725 §3.1, RFC 9864 §2.2 (`Ed25519`)
pub(super) fn algorithm_named(name: &str) -> Option<Algorithm> {
    Some(match name {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "PS384" => Algorithm::PS384,
        "PS512" => Algorithm::PS512,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "EdDSA" | "Ed25519" => Algorithm::EdDSA,
        _ => return None,
    })
}

/// Checks the claims of a token and names the caller. The result counts only once the signature
/// has been verified.
///
/// # Errors
/// The first rule that the token breaks.
pub(super) fn check(
    header: &Header,
    claims: &Members<'_>,
    terms: &Terms<'_>,
) -> Result<Principal, Reject> {
    if !header.is_access_token && is_another_kind(claims)? {
        return Err(Reject::Type);
    }
    if claims.text("iss")?.as_deref() != Some(terms.issuer) {
        return Err(Reject::Issuer);
    }
    let audiences = claims.texts("aud")?;
    let mut distinct: Vec<&str> = audiences.iter().map(AsRef::as_ref).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let is_ours = |audience: &str| {
        audience == terms.resource
            || terms
                .audiences
                .iter()
                .any(|more| more.iter().any(|accepted| accepted == audience))
    };
    // An audience that stands there twice is no mistake that an issuer makes by itself.
    if distinct.len() != audiences.len() || !distinct.into_iter().any(is_ours) {
        return Err(Reject::Audience);
    }
    let expires = claims.time("exp")?.ok_or(Reject::Claim)?;
    if terms.now >= expires + SKEW_SECS {
        return Err(Reject::Expired);
    }
    for start in ["nbf", "iat"] {
        if claims
            .time(start)?
            .is_some_and(|start| start > terms.now + SKEW_SECS)
        {
            return Err(Reject::NotYet);
        }
    }
    let subject = claims
        .text(terms.subject_claim)?
        .filter(|subject| !subject.is_empty())
        .ok_or(Reject::Subject)?;
    // Spec: RFC 9449 §7.1, RFC 8705 §3: such a token is worth nothing without its key; SPEC A-40
    if claims.has("cnf") {
        return Err(Reject::Bound);
    }
    let client = match claims.text("client_id")? {
        Some(client) => client,
        None => claims.text("azp")?.unwrap_or_default(),
    };
    let expires = std::time::Duration::try_from_secs_f64(expires).map_err(|_| Reject::Claim)?;
    Ok(Principal::new(
        terms.issuer,
        &subject,
        &client,
        terms.hierarchy.expand(scopes(claims)?),
        Some(expires),
    ))
}

/// Whether the claims are those of an ID token, a logout token, or (as Keycloak marks them) of
/// anything but a bearer token. Spec: RFC 8725 §3.12
fn is_another_kind(claims: &Members<'_>) -> Result<bool, Reject> {
    const FOREIGN: [&str; 5] = ["nonce", "at_hash", "c_hash", "s_hash", "events"];
    let kind = claims.text("typ")?;
    Ok(FOREIGN.iter().any(|name| claims.has(name))
        || kind.is_some_and(|kind| !kind.eq_ignore_ascii_case("Bearer")))
}

/// `scope` as RFC 9068 §2.2.3 has it, else `scp` as some servers do: a string or an array.
fn scopes(claims: &Members<'_>) -> Result<BTreeSet<String>, Reject> {
    let name = if claims.has("scope") { "scope" } else { "scp" };
    let texts = claims.texts(name)?;
    let words = texts.iter().flat_map(|text| text.split(' '));
    Ok(words
        .filter(|scope| !scope.is_empty())
        .map(str::to_owned)
        .collect())
}
