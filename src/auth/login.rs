//! The person of a login for the connect pages, by an ID token or by an access token for an endpoint of ours. Both name
//! the same principal as the person's calls.
//!
//! Spec: `OpenID` Connect Core §3.1.3.7; RFC 8725 §3.

use super::claims::ClaimSet;
use super::reject::RejectReason;
use crate::call::Principal;

/// Claims with a name for people, the best one first.
const NAMES: [&str; 3] = ["preferred_username", "email", "name"];

/// The expected values of an ID token.
#[derive(Debug, Clone, Copy)]
pub struct IdTokenCheck<'a> {
    /// The issuer of the login, one of `auth.issuers`.
    pub issuer: &'a str,
    /// The gateway's client id there.
    pub client_id: &'a str,
    /// The nonce that the login was begun with.
    pub nonce: &'a str,
    /// The claim that names the subject; `None`: that of the issuer's access tokens.
    pub subject_claim: Option<&'a str>,
}

/// A person who has logged in.
#[derive(Debug, Clone)]
pub struct PersonLogin {
    /// Issuer and subject, as the person's calls have them.
    pub principal: Principal,
    /// A name for people: untrusted text, which two persons may share.
    pub name: Option<String>,
}

/// Why a token names no principal. For the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct LoginRefusal {
    /// One word.
    pub reason: &'static str,
    /// The value that would have been accepted, or a remedy.
    pub wanted: &'static str,
}

impl From<RejectReason> for LoginRefusal {
    fn from(reject: RejectReason) -> Self {
        let wanted = match reject {
            RejectReason::Audience => {
                "`aud` the client id of `connect.login`, or with token = \"access\" the resource of the login's endpoint"
            }
            RejectReason::Type => "an ID token, or with token = \"access\" an access token",
            RejectReason::Issuer => "`iss` the issuer of the login",
            RejectReason::Subject => "the claim that `subject_claim` names",
            other => other.wanted(),
        };
        Self {
            reason: reject.reason(),
            wanted,
        }
    }
}

/// The first claim with a name for people.
pub(super) fn name(claims: &ClaimSet<'_>) -> Option<String> {
    let mut texts = NAMES.iter().filter_map(|name| claims.text(name).ok()?);
    texts
        .find(|text| !text.is_empty())
        .map(std::borrow::Cow::into_owned)
}
