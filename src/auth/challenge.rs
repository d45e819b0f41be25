//! Refusals of the resource server and their `WWW-Authenticate` challenges.
//!
//! Spec: RFC 6750 §3, RFC 9728 §5.1; SPEC A-10…A-16. One challenge, one scheme, every parameter a
//! quoted string.

use http::{HeaderValue, StatusCode};

use crate::endpoint::Endpoint;

/// A request that stops here.
#[derive(Debug, Clone)]
pub struct DeniedResponse {
    /// 400 for malformed credentials, 401 for a missing or bad token, 403 for missing scopes, 503
    /// while an issuer cannot be asked and the token can therefore not be judged.
    pub status: StatusCode,
    /// The value of `WWW-Authenticate`; absent with 503.
    pub challenge: Option<HeaderValue>,
    /// Why, for logs and metrics: one of a small set of words.
    pub reason: &'static str,
}

/// The parameters of a challenge besides the address of the metadata.
pub(super) struct ChallengeError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) description: &'static str,
    pub(super) reason: &'static str,
}

impl DeniedResponse {
    /// The request had no token: the challenge has no error code. Spec: RFC 6750 §3.1
    pub(super) fn no_token(endpoint: &Endpoint) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            challenge: challenge(endpoint, &endpoint.scopes_at_login(), None),
            reason: "no_token",
        }
    }

    /// The presented credentials are not accepted.
    pub(super) fn refused(endpoint: &Endpoint, error: &ChallengeError) -> Self {
        Self {
            status: error.status,
            challenge: challenge(endpoint, &endpoint.scopes_at_login(), Some(error)),
            reason: error.reason,
        }
    }

    /// The token is good but grants too little; `scopes` is everything the client should ask for.
    pub(super) fn insufficient_scope(endpoint: &Endpoint, scopes: &[String]) -> Self {
        let error = ChallengeError {
            status: StatusCode::FORBIDDEN,
            code: "insufficient_scope",
            description: "the token lacks a scope that this request needs",
            reason: "insufficient_scope",
        };
        Self {
            status: error.status,
            challenge: challenge(endpoint, scopes, Some(&error)),
            reason: error.reason,
        }
    }

    /// The token cannot be judged now: its issuer does not answer, or cannot be asked.
    pub(super) fn unavailable(reason: &'static str) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            challenge: None,
            reason,
        }
    }
}

fn challenge(
    endpoint: &Endpoint,
    scopes: &[String],
    error: Option<&ChallengeError>,
) -> Option<HeaderValue> {
    let mut text = String::from("Bearer ");
    if let Some(error) = error {
        parameter(&mut text, "error", error.code);
        parameter(&mut text, "error_description", error.description);
    }
    parameter(&mut text, "resource_metadata", &endpoint.metadata_url);
    if !scopes.is_empty() {
        parameter(&mut text, "scope", &scopes.join(" "));
    }
    HeaderValue::try_from(text).ok()
}

/// Appends `name="value"`. Characters that a quoted string cannot hold are left out: no value of ours has any.
/// Spec: RFC 9110 §5.6.4
fn parameter(text: &mut String, name: &str, value: &str) {
    if text.ends_with('"') {
        text.push_str(", ");
    }
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars().filter(|c| matches!(c, ' '..='~')) {
        if c == '"' || c == '\\' {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::super::samples::endpoint;
    use super::*;

    fn shown(denied: &DeniedResponse) -> &str {
        denied
            .challenge
            .as_ref()
            .and_then(|value| value.to_str().ok())
            .expect("a challenge")
    }

    // SPEC A-10
    #[test]
    fn without_a_token_the_challenge_names_no_error() {
        let denied = DeniedResponse::no_token(&endpoint());
        assert_eq!(denied.status, StatusCode::UNAUTHORIZED);
        assert_eq!(
            shown(&denied),
            "Bearer resource_metadata=\"https://gw.test/.well-known/oauth-protected-resource/mcp\", \
             scope=\"mcp:tools\""
        );
    }

    #[test]
    fn an_endpoint_without_scopes_asks_for_none() {
        let mut endpoint = endpoint();
        endpoint.required_scopes.clear();
        assert!(!shown(&DeniedResponse::no_token(&endpoint)).contains("scope"));
    }

    // A client registers and signs in with what the first challenge names. Spec: RFC 6750 §3
    #[test]
    fn the_login_scopes_follow_the_required_ones() {
        let mut endpoint = endpoint();
        endpoint.login_scopes = vec!["mcp:admin".to_owned(), "mcp:tools".to_owned()];
        let text = DeniedResponse::no_token(&endpoint);
        assert!(shown(&text).ends_with("scope=\"mcp:tools mcp:admin\""));
    }

    // SPEC A-11
    #[test]
    fn missing_scopes_are_all_named_at_once() {
        let scopes = ["mcp:tools".to_owned(), "mcp:admin".to_owned()];
        let denied = DeniedResponse::insufficient_scope(&endpoint(), &scopes);
        assert_eq!(denied.status, StatusCode::FORBIDDEN);
        let text = shown(&denied);
        assert!(
            text.starts_with("Bearer error=\"insufficient_scope\", "),
            "{text}"
        );
        assert!(text.ends_with("scope=\"mcp:tools mcp:admin\""), "{text}");
    }

    // SPEC A-16
    #[test]
    fn quotes_backslashes_and_controls_cannot_break_out_of_a_parameter() {
        let mut endpoint = endpoint();
        endpoint.metadata_url = "https://gw.test/\"x\\y\r\n\u{e9}".to_owned();
        endpoint.required_scopes.clear();
        assert_eq!(
            shown(&DeniedResponse::no_token(&endpoint)),
            "Bearer resource_metadata=\"https://gw.test/\\\"x\\\\y\""
        );
    }
}
