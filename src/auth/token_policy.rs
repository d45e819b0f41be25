//! The rules for the claims of a token on an endpoint, whether the token carries the claims or its
//! issuer tells them.
//!
//! Spec: RFC 9068 §4, RFC 7662 §2.2; SPEC.

use std::collections::BTreeSet;

use super::claims::{ClaimSet, WrongType};
use super::reject::RejectReason;
use super::scope::ScopeHierarchy;
use crate::call::Principal;

/// How far the issuer's clock may differ from ours, in seconds.
pub(super) const SKEW_SECS: f64 = 60.0;
/// A subject that a person may have written into a profile without owning it.
pub(super) const EMAIL: &str = "email";

/// The rules for a genuine token.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenPolicy<'a> {
    pub(super) issuer: &'a str,
    /// The resource identifier of the endpoint.
    pub(super) resource: &'a str,
    /// Further audiences accepted by configuration.
    pub(super) audiences: [&'a [String]; 2],
    /// The claim that identifies the subject.
    pub(super) subject_claim: &'a str,
    /// The scopes that imply others.
    pub(super) hierarchy: &'a ScopeHierarchy,
    /// Seconds since the Unix epoch.
    pub(super) now: f64,
}

/// Whether claims may lack `iss` or `exp`. A missing audience or subject is never tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingClaims {
    /// Claims of a token must have both.
    Refused,
    /// An answer of the issuer itself may lack them. Spec: RFC 7662 §2.2
    Tolerated,
}

impl TokenPolicy<'_> {
    /// Names the caller.
    ///
    /// # Errors
    /// The first rule that the claims break.
    pub(super) fn admit(
        &self,
        claims: &ClaimSet<'_>,
        missing: MissingClaims,
    ) -> Result<Principal, RejectReason> {
        match claims.text("iss")? {
            Some(issuer) if issuer == self.issuer => {}
            None if missing == MissingClaims::Tolerated => {}
            _ => return Err(RejectReason::Issuer),
        }
        self.check_audience(claims)?;
        let expires = claims.time("exp")?;
        match expires {
            Some(expires) if self.now >= expires + SKEW_SECS => return Err(RejectReason::Expired),
            None if missing == MissingClaims::Refused => return Err(RejectReason::Claim),
            _ => {}
        }
        for start in ["nbf", "iat"] {
            if claims
                .time(start)?
                .is_some_and(|start| start > self.now + SKEW_SECS)
            {
                return Err(RejectReason::NotYet);
            }
        }
        let subject = claims
            .text(self.subject_claim)?
            .filter(|subject| !subject.is_empty())
            .ok_or(RejectReason::Subject)?;
        // Access tokens may lack the flag; ID tokens may not (`jwt::check_id`). Spec: OpenID Connect Core §5.1, §5.7
        if self.subject_claim == EMAIL && is_email_verified(claims) == Some(false) {
            return Err(RejectReason::Unverified);
        }
        // Spec: RFC 9449 §7.1, RFC 8705 §3: such a token is worth nothing without its key; SPEC A-40
        if claims.has("cnf") {
            return Err(RejectReason::Bound);
        }
        let client = match claims.text("client_id")? {
            Some(client) => client,
            None => claims.text("azp")?.unwrap_or_default(),
        };
        let expires = expires
            .map(std::time::Duration::try_from_secs_f64)
            .transpose()
            .map_err(|_| RejectReason::Claim)?;
        Ok(Principal::new(
            self.issuer,
            &subject,
            &client,
            self.hierarchy.expand(scopes(claims)?),
            expires,
        ))
    }

    fn check_audience(&self, claims: &ClaimSet<'_>) -> Result<(), RejectReason> {
        let audiences = claims.texts("aud")?;
        let mut distinct: Vec<&str> = audiences.iter().map(AsRef::as_ref).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let is_ours = |audience: &str| {
            audience == self.resource
                || self
                    .audiences
                    .iter()
                    .any(|more| more.iter().any(|accepted| accepted == audience))
        };
        // An audience that stands there twice is no mistake that an issuer makes by itself.
        if distinct.len() != audiences.len() || !distinct.into_iter().any(is_ours) {
            return Err(RejectReason::Audience);
        }
        Ok(())
    }
}

/// Whether the issuer has verified the address; `None` where it does not say. Some write the flag as text.
pub(super) fn is_email_verified(claims: &ClaimSet<'_>) -> Option<bool> {
    let name = "email_verified";
    let text = || claims.text(name).ok()??.parse::<bool>().ok();
    claims.flag(name).ok().flatten().or_else(text)
}

/// Whether `token_use` is an access token's, or missing. Amazon Cognito marks ID tokens by it, and Ory Hydra marks refresh
/// tokens by it alone.
pub(super) fn is_used_for_access(claims: &ClaimSet<'_>) -> Result<bool, WrongType> {
    let usage = claims.text("token_use")?.unwrap_or_default();
    Ok(["", "access", "access_token"].contains(&&*usage))
}

/// `scope` as in RFC 9068 §2.2.3, else `scp`, as some servers write it: a string or an array.
fn scopes(claims: &ClaimSet<'_>) -> Result<BTreeSet<String>, RejectReason> {
    let name = if claims.has("scope") { "scope" } else { "scp" };
    let texts = claims.texts(name)?;
    let words = texts.iter().flat_map(|text| text.split(' '));
    Ok(words
        .filter(|scope| !scope.is_empty())
        .map(str::to_owned)
        .collect())
}
