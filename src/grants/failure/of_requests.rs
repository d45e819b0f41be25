//! Failures of discovery and of token requests, with what an operator can do.

use std::borrow::Cow;

use url::Url;

use super::super::discovery_error::DiscoveryError;
use super::super::documents::DocumentError;
use super::super::token_endpoint::TokenError;
use super::{
    LOOK_BETWEEN, NO_ANSWER, NO_PLACE, NO_PROVIDER, NO_TOKEN, PROVIDER_SILENT, TokenFailure,
};
use crate::cause::chain;
use crate::egress::EgressRefusal;

impl DiscoveryError {
    /// Converts the error to a failure of the account at `upstream`.
    pub(in crate::grants) fn into_failure(self, upstream: &Url) -> TokenFailure {
        let detail = chain(&self);
        let failure = |public, remedy, may_pass| {
            TokenFailure::new(public, "metadata", remedy, may_pass, &detail)
        };
        let is_upstream = |url: &Url| url.origin() == upstream.origin();
        match &self {
            Self::Fetch {
                source: DocumentError::Refused(refusal),
                url,
            } => failure(NO_PLACE, remedy_of_refusal(*refusal, url), false),
            Self::Fetch { source, url } if source.may_pass() => {
                let mut failure = failure(NO_ANSWER, Cow::Borrowed(LOOK_BETWEEN), true);
                failure.outcome = "unreachable";
                failure.is_of_upstream = is_upstream(url);
                failure
            }
            Self::Fetch { url, .. } | Self::Document { url, .. } => {
                let key = if is_upstream(url) {
                    "issuer` and `resource"
                } else {
                    "issuer"
                };
                let remedy = format!(
                    "ask for this address from this machine, for instance with curl: no metadata is there. `{key}` \
                     of [upstreams.<name>.auth] can say what it should"
                );
                failure(NO_PLACE, remedy.into(), true)
            }
            Self::OtherResource { found, .. } => {
                let remedy = format!(
                    "let the upstream publish its own URL; if {found:?} is right for it, write it as `resource` into \
                     [upstreams.<name>.auth]"
                );
                failure(NO_PLACE, remedy.into(), false)
            }
            Self::OtherIssuer { found, .. } => {
                let remedy = format!(
                    "if {found:?} is the server that you trust, write exactly this as `issuer` into \
                     [upstreams.<name>.auth]"
                );
                failure(NO_PLACE, remedy.into(), false)
            }
            Self::NoMetadata | Self::Challenge { .. } | Self::Issuer { .. } => failure(
                NO_PLACE,
                "write `issuer` and `resource` into [upstreams.<name>.auth]".into(),
                false,
            ),
            Self::NoTokenEndpoint { .. } => failure(
                NO_PLACE,
                "let the authorization server publish its token endpoint".into(),
                false,
            ),
            Self::ForeignServer { named, .. } => {
                let remedy = format!(
                    "credentials go to the server alone that they are of; if {named:?} is right, register the gateway \
                     there and write its `issuer`, `client_id` and secret"
                );
                failure(NO_PLACE, remedy.into(), false)
            }
        }
    }
}

impl DiscoveryError {
    /// Converts the error to a failure at the identity provider. Its remedies name the keys of the login alone: those of
    /// the upstream say where the upstream's secret goes.
    pub(in crate::grants) fn into_provider_failure(self) -> TokenFailure {
        let detail = chain(&self);
        let failure = |public, remedy, may_pass| {
            TokenFailure::new(public, "metadata", remedy, may_pass, &detail)
        };
        match &self {
            Self::Fetch {
                source: DocumentError::Refused(refusal),
                url,
            } => failure(NO_PROVIDER, remedy_of_refusal(*refusal, url), false),
            Self::Fetch { source, .. } if source.may_pass() => {
                let remedy = "look whether the identity provider runs, and whether a firewall is between it and this machine";
                let mut failure = failure(PROVIDER_SILENT, remedy.into(), true);
                failure.outcome = "unreachable";
                failure
            }
            Self::OtherIssuer { found, .. } => {
                let remedy = format!(
                    "if {found:?} is the identity provider that you trust, write exactly this as `issuer` of [connect] \
                     login, and of its [[auth.issuers]]"
                );
                failure(NO_PROVIDER, remedy.into(), false)
            }
            Self::NoTokenEndpoint { .. } => failure(
                NO_PROVIDER,
                "let the identity provider publish its token endpoint".into(),
                false,
            ),
            _ => failure(
                NO_PROVIDER,
                "ask for this address from this machine, for instance with curl: no metadata of the identity provider is \
                 there. `issuer` of [connect] login says where it is"
                    .into(),
                true,
            ),
        }
    }
}

/// The remedy for a URL that the egress rules forbid; names the configuration key that allows the URL, if any.
fn remedy_of_refusal(refusal: EgressRefusal, url: &Url) -> Cow<'static, str> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match refusal {
        EgressRefusal::Credentials => "let the metadata name a URL without credentials".into(),
        EgressRefusal::Scheme => format!(
            "a learned URL has to be https; plain http is for loopback addresses that `egress.allow` names: \
             [egress] allow = [\"{host}\"]"
        )
        .into(),
        EgressRefusal::Host | EgressRefusal::Address => format!(
            "a learned URL has to lead to a public address; if this one is yours: [egress] allow = [\"{host}\"]"
        )
        .into(),
    }
}

impl TokenError {
    /// The word for metrics.
    pub(in crate::grants) fn word(&self) -> &'static str {
        match self {
            Self::Request(DocumentError::Refused(_)) => "refused",
            Self::Request(DocumentError::Transport(error)) if error.is_timeout() => "timeout",
            Self::Request(DocumentError::Transport(_)) => "unreachable",
            Self::Request(_) | Self::Unreadable { .. } => "unreadable",
            Self::Busy { .. } => "busy",
            Self::OAuth { code, .. } => code,
            Self::NotBearer => "not_bearer",
            Self::OtherTokenType { .. } => "token_type",
            Self::ClientAuth { .. } | Self::Assertion => "client_auth",
            Self::RedirectUri { .. } => "metadata",
        }
    }

    /// Converts the error to a failure of the account.
    pub(in crate::grants) fn into_failure(self, endpoint: &Url) -> TokenFailure {
        let detail = format!("{}, of {endpoint}", chain(&self));
        let outcome = self.word();
        let failure = |public, remedy: Cow<'static, str>, may_pass| {
            TokenFailure::new(public, outcome, remedy, may_pass, &detail)
        };
        match &self {
            Self::Request(DocumentError::Refused(refusal)) => {
                failure(NO_PLACE, remedy_of_refusal(*refusal, endpoint), false)
            }
            Self::Request(DocumentError::Transport(_)) => {
                failure(NO_ANSWER, LOOK_BETWEEN.into(), true)
            }
            Self::Request(_) | Self::Unreadable { .. } => failure(
                NO_TOKEN,
                "look what answers at the token endpoint, and into the log of the authorization server".into(),
                true,
            ),
            Self::Busy { retry_after, .. } => {
                let mut failure = failure(
                    NO_ANSWER,
                    "look into the log of the authorization server".into(),
                    true,
                );
                failure.retry_after = *retry_after;
                failure
            }
            Self::OAuth { code, .. } => failure(NO_TOKEN, remedy_of_code(code).into(), false),
            Self::NotBearer => failure(
                NO_TOKEN,
                "let the authorization server give Bearer tokens to this client".into(),
                false,
            ),
            Self::OtherTokenType { .. } => failure(
                NO_TOKEN,
                "let the authorization server give this client access tokens for an exchange".into(),
                false,
            ),
            Self::ClientAuth { .. } => failure(
                NO_TOKEN,
                "register the gateway with a way to prove itself that the server has: `client_secret` or `private_key`"
                    .into(),
                false,
            ),
            Self::RedirectUri { .. } => failure(
                NO_TOKEN,
                "correct `server.public_url`: codes are sent to a path below it".into(),
                false,
            ),
            Self::Assertion => failure(
                NO_TOKEN,
                "look at `private_key`: no assertion could be signed with it".into(),
                false,
            ),
        }
    }
}

/// The remedy for an error of RFC 6749 §5.2, RFC 8693 §2.2.2 or RFC 8707 §2.
fn remedy_of_code(code: &str) -> &'static str {
    match code {
        "invalid_client" => {
            "correct `client_id`, `client_secret` or `private_key` of [upstreams.<name>.auth]: the authorization server \
             does not know this client, or not with this proof (Keycloak says so of an unknown `audience`, too)"
        }
        "unauthorized_client" => "let the authorization server allow this grant type to the client",
        "unsupported_grant_type" => {
            "let the authorization server support this grant type, or use another `kind`"
        }
        "invalid_scope" => {
            "correct `scopes` of [upstreams.<name>.auth], or let the client have these"
        }
        "not_allowed" => {
            "let the authorization server give this user and this client refresh tokens that outlast the login: in Keycloak \
             both need the role `offline_access`, which a client without *Full scope allowed* has by its client scope of \
             that name"
        }
        "invalid_target" => {
            "let the authorization server know the resource, or write `resource` (for an exchange also `audience`) as it \
             knows it"
        }
        "invalid_grant" | "invalid_token" => {
            "look into the log of the authorization server: it does not take the caller's token, which may have been \
             revoked, or may not be meant for an exchange by this client"
        }
        "access_denied" => {
            "let the authorization server allow this client to exchange callers' tokens: some want its client id in \
             their audience"
        }
        _ => {
            "look into the log of the authorization server; `resource`, `audience` and `scopes` say what is asked for"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::LoginFailure;
    use super::*;

    #[test]
    fn refused_code_has_a_remedy_of_its_own() {
        let refused = || TokenError::OAuth {
            code: "invalid_grant",
            description: String::new(),
        };
        let endpoint = Url::parse("https://as.test/token").unwrap();
        let exchange = refused().into_failure(&endpoint);
        assert!(exchange.remedy().contains("caller's token"));
        let code = exchange.of_code("https://gw.test/connect/up/callback");
        let of_login = LoginFailure::of_token_request(&refused(), &endpoint);
        for (remedy, redirect_uri) in [
            (code.remedy(), "https://gw.test/connect/up/callback"),
            (of_login.remedy(), "<public_url>/connect/callback/login"),
        ] {
            assert!(remedy.contains("was used before"), "{remedy}");
            assert!(remedy.ends_with(redirect_uri), "{remedy}");
        }
        let busy = TokenError::NotBearer.into_failure(&endpoint);
        let remedy = busy.remedy().to_owned();
        assert_eq!(busy.of_code("https://gw.test").remedy(), remedy);
    }
}
