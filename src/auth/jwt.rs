//! What makes a JWT an access token for us. The signature is checked by `key_set`, the claims by
//! `token_policy`, by our own reading: the library's validation passes tokens without audience or issuer.
//!
//! Spec: RFC 9068 §4, RFC 8725 §3; SPEC.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;

use super::claims::ClaimSet;
use super::reject::RejectReason;
use super::token_policy::{
    EMAIL, MissingClaims, TokenPolicy, is_email_verified, is_used_for_access,
};
use crate::call::Principal;

/// The longest token that is looked at, in bytes.
pub(super) const MAX_LEN: usize = 16 * 1024;

/// Claims that stand in ID tokens and logout tokens alone.
pub(super) const FOREIGN: [&str; 5] = ["nonce", "at_hash", "c_hash", "s_hash", "events"];

/// A parsed, unverified token.
#[derive(Debug)]
pub(super) struct ParsedToken<'t> {
    /// What is signed: header and claims as they were sent.
    pub(super) signed: &'t str,
    /// The signature, still encoded.
    pub(super) signature: &'t str,
    pub(super) header: TokenHeader,
    claims: Vec<u8>,
}

/// The header parameters that we act on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenHeader {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    /// Whether `typ` is an access token's; else the claims are checked for other kinds of token.
    is_access_token: bool,
}

impl<'t> ParsedToken<'t> {
    pub(super) fn read(token: &'t str) -> Result<Self, RejectReason> {
        if token.len() > MAX_LEN {
            return Err(RejectReason::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(RejectReason::NotAJwt)?;
        let (header, claims) = signed.split_once('.').ok_or(RejectReason::NotAJwt)?;
        let claims = decode(claims)?;
        Ok(Self {
            signed,
            signature,
            header: TokenHeader::read(&decode(header)?)?,
            claims,
        })
    }

    /// The claims, none of them verified.
    pub(super) fn claims(&self) -> Result<ClaimSet<'_>, RejectReason> {
        ClaimSet::read(&self.claims).ok_or(RejectReason::NotAJwt)
    }
}

/// Decodes one part; a dot, padding or a stray bit makes it no part of a JWT.
fn decode(part: &str) -> Result<Vec<u8>, RejectReason> {
    BASE64_URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| RejectReason::NotAJwt)
}

impl TokenHeader {
    fn read(json: &[u8]) -> Result<Self, RejectReason> {
        let members = ClaimSet::read(json).ok_or(RejectReason::NotAJwt)?;
        // Spec: RFC 7515 §4.1.11: we understand no extension
        if members.has("crit") {
            return Err(RejectReason::Critical);
        }
        let wrong = |_| RejectReason::NotAJwt;
        let algorithm = members.text("alg").map_err(wrong)?;
        let algorithm = algorithm
            .and_then(|name| algorithm_named(&name))
            .ok_or(RejectReason::Algorithm)?;
        // Spec: RFC 9068 §4; servers older than RFC 9068 send `JWT` or no `typ`
        let is_access_token = match members.text("typ").map_err(wrong)? {
            None => false,
            Some(typ) if typ.eq_ignore_ascii_case("JWT") => false,
            Some(typ)
                if typ.eq_ignore_ascii_case("at+jwt")
                    || typ.eq_ignore_ascii_case("application/at+jwt") =>
            {
                true
            }
            Some(_) => return Err(RejectReason::Type),
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
    header: &TokenHeader,
    claims: &ClaimSet<'_>,
    terms: &TokenPolicy<'_>,
) -> Result<Principal, RejectReason> {
    if !header.is_access_token && is_another_kind(claims)? {
        return Err(RejectReason::Type);
    }
    terms.admit(claims, MissingClaims::Refused)
}

/// Checks the claims of an ID token for `client` with this `nonce`, and names who logged in. `terms` has the client as
/// its resource. The result counts only once the signature has been verified.
/// Spec: `OpenID` Connect Core §3.1.3.7
///
/// # Errors
/// The first rule that the token breaks.
pub(super) fn check_id(
    header: &TokenHeader,
    claims: &ClaimSet<'_>,
    terms: &TokenPolicy<'_>,
    (client, nonce): (&str, &str),
) -> Result<Principal, RejectReason> {
    // Keycloak names the kind of its tokens; logout tokens have `events`. Spec: RFC 8725 §3.12
    let kind = claims.text("typ")?;
    if header.is_access_token || claims.has("events") || kind.is_some_and(|kind| kind != "ID") {
        return Err(RejectReason::Type);
    }
    let principal = terms.admit(claims, MissingClaims::Refused)?;
    let party = claims.text("azp")?;
    let is_alone = claims.texts("aud")?.len() == 1;
    let is_for_us = party.as_deref().map_or(is_alone, |party| party == client);
    if !is_for_us {
        return Err(RejectReason::Party);
    }
    if claims.text("nonce")?.as_deref() != Some(nonce) {
        return Err(RejectReason::Nonce);
    }
    // Spec: OpenID Connect Core §5.1, §5.7
    if terms.subject_claim == EMAIL && is_email_verified(claims) != Some(true) {
        return Err(RejectReason::Unverified);
    }
    Ok(principal)
}

/// Whether the claims are those of an ID token, a logout token, or (as Keycloak and Cognito mark them) of
/// anything but an access token. Spec: RFC 8725 §3.12
fn is_another_kind(claims: &ClaimSet<'_>) -> Result<bool, RejectReason> {
    let kind = claims.text("typ")?;
    Ok(FOREIGN.iter().any(|name| claims.has(name))
        || kind.is_some_and(|kind| !kind.eq_ignore_ascii_case("Bearer"))
        || !is_used_for_access(claims)?)
}
