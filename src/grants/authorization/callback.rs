//! The answer that a browser brings back, checked against its pending row.

use super::super::failure::TokenFailure;
use crate::secret::Secret;
use crate::vault::PendingRecord;

/// Parameters of the callback's query, except `state`.
#[derive(Clone, Copy, Default)]
pub struct CallbackAnswer<'a> {
    /// `code`.
    pub code: Option<&'a str>,
    /// `iss`. Spec: RFC 9207.
    pub iss: Option<&'a str>,
    /// `error`.
    pub error: Option<&'a str>,
}

impl std::fmt::Debug for CallbackAnswer<'_> {
    /// Shows no code.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackAnswer")
            .field("iss", &self.iss)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Why an answer is not turned into a grant.
#[derive(Debug, thiserror::Error)]
pub enum CallbackRefusal {
    /// The answer names another server than the one asked: nothing else in it is read.
    #[error("the answer names another issuer than the one that was asked")]
    OtherIssuer,
    /// `iss` is missing, although the server announces it (RFC 9207).
    #[error("the answer names no issuer, and the server says that its answers do")]
    NoIssuer,
    /// The server refuses, with an error code of RFC 6749 or one word for any other.
    #[error("the authorization server refused: {0}")]
    Denied(&'static str),
    /// The same where the scope `offline_access` may be what is refused: the user's next authorization leaves it out.
    #[error(
        "the authorization server refused: {0}; the user's next attempt leaves out `offline_access`"
    )]
    Offline(&'static str),
    /// The same where the registration of the gateway may have to name the scopes: the next one does.
    #[error(
        "the authorization server refused: {0}; the next attempt registers the gateway with these scopes"
    )]
    Scopes(&'static str),
    /// Neither a code nor an error.
    #[error("the answer holds no code")]
    NoCode,
    /// The code could not be redeemed, or the grant not kept.
    #[error(transparent)]
    Failed(TokenFailure),
}

impl CallbackRefusal {
    /// One word for the audit record.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::OtherIssuer => "other_issuer",
            Self::NoIssuer => "no_issuer",
            Self::Denied(code) | Self::Offline(code) | Self::Scopes(code) => code,
            Self::NoCode => "no_code",
            Self::Failed(failure) => failure.outcome,
        }
    }
}

/// The code of a valid answer. `iss` is compared byte for byte, and first. Spec: SPEC B-06
///
/// # Errors
/// [`CallbackRefusal`].
pub(super) fn check(
    pending: &PendingRecord,
    answer: &CallbackAnswer<'_>,
) -> Result<Secret, CallbackRefusal> {
    match answer.iss {
        Some(iss) if iss != pending.issuer => return Err(CallbackRefusal::OtherIssuer),
        None if pending.names_issuer => return Err(CallbackRefusal::NoIssuer),
        _ => {}
    }
    if let Some(code) = answer.error {
        let known = known_error(code).unwrap_or("another error");
        return Err(CallbackRefusal::Denied(known));
    }
    let code = answer.code.filter(|code| !code.is_empty());
    code.map(Secret::new).ok_or(CallbackRefusal::NoCode)
}

/// Error codes of authorization endpoints. Spec: RFC 6749 §4.1.2.1; RFC 8707 §2; `OpenID` Connect Core 1.0 §3.1.2.6
const KNOWN: [&str; 14] = [
    "access_denied",
    "invalid_request",
    "unauthorized_client",
    "unsupported_response_type",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "invalid_target",
    "interaction_required",
    "login_required",
    "account_selection_required",
    "consent_required",
    "invalid_request_uri",
    "request_not_supported",
];

/// `code`, if it is an error code of authorization endpoints; the text of any other must not reach a page or the log.
#[must_use]
pub fn known_error(code: &str) -> Option<&'static str> {
    KNOWN.into_iter().find(|known| *known == code)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pending(names_issuer: bool) -> PendingRecord {
        PendingRecord {
            upstream: "up".to_owned(),
            issuer: "https://as.test".to_owned(),
            token_endpoint: "https://as.test/token".to_owned(),
            revocation_endpoint: None,
            resource: "https://up.test/mcp".to_owned(),
            client_id: "client".to_owned(),
            auth_method: None,
            names_issuer,
            redirect_uri: "https://gw.test/connect/callback/document".to_owned(),
            scopes: Vec::new(),
            verifier: None,
            nonce: None,
            cookie_digest: String::new(),
            program: None,
        }
    }

    // SPEC B-06: the scenarios of RFC 9207
    #[rstest]
    #[case::named(true, Some("https://as.test"), "code")]
    #[case::named_though_not_said(false, Some("https://as.test"), "code")]
    #[case::not_named(false, None, "code")]
    #[case::missing(true, None, "names no issuer")]
    #[case::other(true, Some("https://evil.test"), "another issuer")]
    #[case::other_though_not_said(false, Some("https://evil.test"), "another issuer")]
    #[case::slash(true, Some("https://as.test/"), "another issuer")]
    #[case::case(true, Some("https://AS.test"), "another issuer")]
    fn answer_of_another_issuer_is_refused(
        #[case] names_issuer: bool,
        #[case] iss: Option<&str>,
        #[case] expected: &str,
    ) {
        let answer = CallbackAnswer {
            code: Some("code"),
            iss,
            error: None,
        };
        let said = match check(&pending(names_issuer), &answer) {
            Ok(code) => code.expose().to_owned(),
            Err(refusal) => refusal.to_string(),
        };
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn debug_output_hides_the_code() {
        let answer = CallbackAnswer {
            code: Some("hunter2"),
            ..CallbackAnswer::default()
        };
        assert!(!format!("{answer:?}").contains("hunter2"));
    }

    #[test]
    fn error_of_another_issuer_is_not_read() {
        let answer = CallbackAnswer {
            iss: Some("https://evil.test"),
            error: Some("access_denied"),
            code: None,
        };
        let refused = check(&pending(false), &answer).unwrap_err();
        assert!(matches!(refused, CallbackRefusal::OtherIssuer));
    }

    #[rstest]
    #[case::denied(Some("access_denied"), Some("code"), "access_denied")]
    #[case::of_openid(Some("interaction_required"), None, "interaction_required")]
    #[case::unknown(Some("<script>"), None, "another error")]
    #[case::empty(None, Some(""), "no code")]
    #[case::nothing(None, None, "no code")]
    fn answer_without_a_code_is_refused(
        #[case] error: Option<&str>,
        #[case] code: Option<&str>,
        #[case] expected: &str,
    ) {
        let answer = CallbackAnswer {
            code,
            iss: None,
            error,
        };
        let said = check(&pending(false), &answer).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}
