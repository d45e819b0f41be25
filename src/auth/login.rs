//! Whose a login for the connect pages is: by its ID token, or by an access token for an endpoint of ours. Both name
//! the principal that the same person's calls have.
//!
//! Spec: `OpenID` Connect Core §3.1.3.7; RFC 8725 §3.

use super::claims::ClaimSet;
use super::reject::RejectReason;
use crate::call::Principal;

/// Claims that a person knows themselves by, in the order of looking.
const NAMES: [&str; 3] = ["preferred_username", "email", "name"];

/// What an ID token has to fulfil.
#[derive(Debug, Clone, Copy)]
pub struct IdTokenCheck<'a> {
    /// The issuer of the login, one of `auth.issuers`.
    pub issuer: &'a str,
    /// The gateway there.
    pub client_id: &'a str,
    /// What the login was begun with.
    pub nonce: &'a str,
    /// The claim that names the subject; `None`: that of the issuer's access tokens.
    pub subject_claim: Option<&'a str>,
}

/// Who logged in.
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
    /// What would have been accepted, or a remedy.
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

/// The first claim that a person would know themselves by.
pub(super) fn name(claims: &ClaimSet<'_>) -> Option<String> {
    let mut texts = NAMES.iter().filter_map(|name| claims.text(name).ok()?);
    texts
        .find(|text| !text.is_empty())
        .map(std::borrow::Cow::into_owned)
}
