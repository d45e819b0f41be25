//! `LoginFailure`: why a login for the connect pages failed, for the log.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::discovery_error::DiscoveryError;
use super::documents::{DocumentError, MAX_SHOWN};
use super::failure::remedy_of_refused_code;
use super::token_endpoint::TokenError;
use crate::cause::chain;
use crate::telemetry::redact::shown;

/// Why a login failed. Cloning is cheap. Its texts may name addresses: they are for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{detail}")]
pub struct LoginFailure {
    detail: Arc<str>,
    remedy: Cow<'static, str>,
    /// One word for logs.
    reason: &'static str,
}

const LOOK_BETWEEN: &str =
    "look whether the issuer runs, and whether a firewall is between it and this machine";
const LOOK_THERE: &str = "look into the log of the issuer";

impl LoginFailure {
    /// The remedy for the operator.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// One word for logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    fn new(reason: &'static str, detail: &str, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: detail.into(),
            remedy: remedy.into(),
            reason,
        }
    }

    /// The issuer did not answer within `limit`.
    pub(super) fn slow(limit: Duration) -> Self {
        let detail = format!("no answer within {limit:?}");
        Self::new("timeout", &detail, LOOK_BETWEEN)
    }

    /// The metadata names no authorization endpoint.
    pub(super) fn no_endpoint(issuer: &str) -> Self {
        let detail = format!(
            "the metadata of {issuer} names no authorization_endpoint that a browser could open"
        );
        let remedy = "let people log in at an issuer that has an authorization endpoint";
        Self::new("metadata", &detail, remedy)
    }

    /// The server lists PKCE methods, but not S256.
    pub(super) fn no_pkce(issuer: &str) -> Self {
        let detail = format!("{issuer} lists no code_challenge_method S256");
        let remedy = "let the issuer support PKCE with S256 (RFC 7636)";
        Self::new("metadata", &detail, remedy)
    }

    /// The answer is another issuer's, or does not name its issuer.
    pub(super) fn other_issuer(issuer: &str, named: Option<&str>) -> Self {
        let detail = match named {
            Some(named) => format!(
                "the answer names the issuer {:?}, and the login was at {issuer}",
                shown(named, MAX_SHOWN)
            ),
            None => format!("the answer names no issuer, which those of {issuer} do"),
        };
        let remedy =
            "none where it happens once: another server answered than the one that was asked";
        Self::new("issuer", &detail, remedy)
    }

    pub(super) fn of_discovery(error: &DiscoveryError) -> Self {
        let detail = chain(error);
        match error {
            DiscoveryError::Fetch {
                source: DocumentError::Refused(_),
                url,
            } => {
                let host = url.host_str().unwrap_or_default();
                let remedy = format!(
                    "what the issuer's metadata names on another origin has to be https and public; if this one is \
                     yours: [egress] allow = [\"{}\"]",
                    host.trim_start_matches('[').trim_end_matches(']')
                );
                Self::new("refused", &detail, remedy)
            }
            DiscoveryError::Fetch { source, .. } if source.may_pass() => {
                Self::new("unreachable", &detail, LOOK_BETWEEN)
            }
            _ => {
                let remedy = "look at the issuer's metadata: it has to name this `issuer`, byte for byte, and its token \
                              endpoint";
                Self::new("metadata", &detail, remedy)
            }
        }
    }

    pub(super) fn of_token_request(error: &TokenError, endpoint: &Url) -> Self {
        let detail = format!("{}, of {endpoint}", chain(error));
        let (reason, remedy) = match error {
            TokenError::OAuth { code, .. } => {
                return Self::new(code, &detail, remedy_of_code(code));
            }
            TokenError::ClientAuth { .. } | TokenError::Assertion => (
                "client_auth",
                "give `connect.login` what the issuer takes: `client_secret` or `private_key`",
            ),
            TokenError::OtherTokenType { .. } => ("token_type", LOOK_THERE),
            TokenError::NotBearer => ("not_bearer", "let the issuer give Bearer tokens"),
            TokenError::Unreadable { .. } => ("unreadable", LOOK_THERE),
            TokenError::Busy { .. } => ("busy", LOOK_THERE),
            TokenError::RedirectUri { .. } => ("redirect_uri", "correct `server.public_url`"),
            TokenError::Request(_) => ("unreachable", LOOK_BETWEEN),
        };
        Self::new(reason, &detail, remedy)
    }
}

/// The remedy for an error of RFC 6749 §5.2 or RFC 8707 §2.
fn remedy_of_code(code: &str) -> Cow<'static, str> {
    let remedy = match code {
        "invalid_client" => {
            "correct `client_id`, `client_secret` or `private_key` of `connect.login`: the issuer does not know this \
             client, or not with this proof"
        }
        "unauthorized_client" => {
            "let the issuer allow the grant type authorization_code to this client"
        }
        "invalid_grant" => {
            return remedy_of_refused_code("<public_url>/connect/callback/login").into();
        }
        "invalid_target" => "let the issuer know the endpoint's resource identifier",
        _ => LOOK_THERE,
    };
    remedy.into()
}
