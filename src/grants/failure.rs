//! Why an account cannot be used, for callers and for operators.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::discovery_error::DiscoveryError;
use super::documents::DocumentError;
use super::token_endpoint::TokenError;
use crate::cause::chain;
use crate::egress::EgressRefusal;

/// Why a token cannot be had. Cloning is cheap.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{public}")]
pub struct TokenFailure {
    /// Text for every caller: no addresses, no words of servers.
    public: &'static str,
    /// The remedy for the operator.
    remedy: Cow<'static, str>,
    /// One word for metrics.
    pub(super) outcome: &'static str,
    /// Whether a retry may succeed.
    pub(super) may_pass: bool,
    /// `Retry-After` of the server.
    pub(super) retry_after: Option<Duration>,
    /// Whether the upstream itself does not answer.
    is_of_upstream: bool,
    /// Whether the caller's user can solve it on the connect page.
    asks_user: bool,
    #[source]
    detail: FailureDetail,
}

/// What happened, for the log; it may name addresses.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.text)]
struct FailureDetail(Arc<DetailParts>);

/// Behind one pointer, since failures are part of many results.
#[derive(Debug)]
struct DetailParts {
    text: Box<str>,
    /// Connection number of the account that works but lacks scopes for this request.
    insufficient: Option<i64>,
}

impl FailureDetail {
    fn new(text: &str, insufficient: Option<i64>) -> Self {
        Self(Arc::new(DetailParts {
            text: text.into(),
            insufficient,
        }))
    }
}

pub(super) const NO_TOKEN: &str = "the authorization server gives the gateway no token for it";
pub(super) const NO_ANSWER: &str = "the authorization server for its tokens does not answer";
pub(super) const NO_PLACE: &str = "the gateway does not know where to get a token for it";

impl TokenFailure {
    /// What every caller may be told.
    #[must_use]
    pub fn public(&self) -> &'static str {
        self.public
    }

    /// The remedy for the operator.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Whether the upstream itself does not answer, which says nothing about the account.
    #[must_use]
    pub fn is_of_upstream(&self) -> bool {
        self.is_of_upstream
    }

    /// Whether the next call may succeed.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }

    /// The caller has no account at the upstream.
    #[must_use]
    pub fn not_connected() -> Self {
        let mut failure = Self::new(
            "the caller has not connected an account there",
            "not_connected",
            "its user opens /connect at this gateway",
            false,
            "there is no grant of this caller",
        );
        failure.asks_user = true;
        failure
    }

    /// The upstream refused the caller's key or token.
    #[must_use]
    pub fn refused() -> Self {
        let mut failure = Self::new(
            "it refuses what the caller connected there",
            "refused",
            "its user opens /connect at this gateway and connects again",
            false,
            "the upstream answered with HTTP status 401",
        );
        failure.asks_user = true;
        failure
    }

    /// The caller's account was replaced after the connection was opened.
    #[must_use]
    pub fn replaced() -> Self {
        Self::new(
            "the caller's account there was changed meanwhile",
            "replaced",
            "",
            true,
            "the connection belongs to an account that was replaced",
        )
    }

    /// The authorization server, or the upstream, no longer accepts the caller's account.
    #[must_use]
    pub(super) fn account_ended(detail: &str) -> Self {
        let mut failure = Self::new(
            "the caller's account there has ended, or is not accepted any more",
            "ended",
            "its user opens /connect at this gateway, and connects the account again",
            false,
            detail,
        );
        failure.asks_user = true;
        failure
    }

    /// The request needs scopes that the caller's account does not have.
    #[must_use]
    pub(super) fn needs_scopes(scopes: &str, connection: i64) -> Self {
        let mut failure = Self::new(
            "the upstream wants the user to grant more",
            "scopes",
            "its user opens /connect at this gateway, and grants the scopes that the upstream asks for",
            false,
            "",
        );
        let text = format!("the upstream asks for the scopes {scopes}");
        failure.detail = FailureDetail::new(&text, Some(connection));
        failure.asks_user = true;
        failure
    }

    /// Whether the caller's user can solve it: the request was not accepted with any credential, and has not run.
    #[must_use]
    pub fn asks_user(&self) -> bool {
        self.asks_user
    }

    /// Connection number of the account that works but lacks scopes for this request: its user has to connect again.
    #[must_use]
    pub fn insufficient(&self) -> Option<i64> {
        self.detail.0.insufficient
    }

    /// The database fails, so that it is unknown whether the caller has an account.
    #[must_use]
    pub fn no_database(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(
            "the gateway cannot look for the caller's account",
            "database",
            "look whether the database of `[database]` answers",
            true,
            &chain(error),
        )
    }

    /// The gateway is stopping and sends no more token requests.
    pub(super) fn stopping() -> Self {
        Self::new(
            "the gateway stops",
            "stopping",
            "",
            true,
            "nothing is asked any more",
        )
    }

    /// The task of the token request ended without an outcome.
    pub(super) fn unfinished() -> Self {
        let detail = "the token request ended without an outcome";
        Self::new(
            NO_TOKEN,
            "unfinished",
            "report this as a fault",
            true,
            detail,
        )
    }

    /// Children of callers cannot be kept apart on this machine, so that none gets a credential.
    #[must_use]
    pub fn children_not_isolated() -> Self {
        Self::new(
            "the gateway cannot keep its credential from the other programs that it runs",
            "not_isolated",
            "run the gateway on a kernel with Landlock, or accept with `stdio.trust_children = true` that children can \
             read each other's credentials",
            false,
            "this kernel has no Landlock: children could read the credential in each other's environment",
        )
    }

    /// The request has no caller whose token could be exchanged.
    #[must_use]
    pub fn no_caller() -> Self {
        Self::new(
            "it is reached with the account of a caller, and no caller asks",
            "no_caller",
            "none: each caller's requests carry a token that was exchanged for the caller's own",
            true,
            "no caller's token to exchange",
        )
    }

    /// The caller's token has expired, and no later request has brought another.
    pub(super) fn caller_token_ended() -> Self {
        Self::new(
            "the caller's token has ended, and the next request has to bring another one",
            "caller_token_ended",
            "none: the caller's next request brings another token",
            true,
            "no caller's token to exchange",
        )
    }

    /// Rewords the refusal of a code that a browser brought to `redirect_uri`: no caller's token has to do with it.
    pub(super) fn of_code(mut self, redirect_uri: &str) -> Self {
        if self.outcome == "invalid_grant" {
            self.remedy = remedy_of_refused_code(redirect_uri).into();
        }
        self
    }

    /// Rewords a failure of a request to the identity provider, where the gateway is the client of the login.
    pub(super) fn at_provider(mut self) -> Self {
        self.public = match self.public {
            NO_ANSWER => "the identity provider does not answer",
            NO_PLACE => "the gateway does not know where its identity provider gives assertions",
            _ => "the identity provider gives the gateway no assertion for it",
        };
        self.remedy = match self.outcome {
            "invalid_grant" | "invalid_token" => {
                "none if the login has ended: it has to be made again. Else look into the log of the identity provider"
                    .into()
            }
            "invalid_target" => {
                "let the identity provider know the authorization server of the upstream, and its `resource`".into()
            }
            "invalid_client" => "correct the client of the login at the identity provider, and its proof".into(),
            "unauthorized_client" | "unsupported_grant_type" | "access_denied" | "token_type" => {
                "let the identity provider give the client of the login identity assertions (ID-JAG) for the \
                 authorization server of the upstream"
                    .into()
            }
            _ => Cow::Owned(format!("at the identity provider: {}", self.remedy)),
        };
        self.is_of_upstream = false;
        self
    }

    /// The connection carries a token of the same caller with other scopes.
    #[must_use]
    pub fn other_scopes() -> Self {
        Self::new(
            "the session was opened with a token of other scopes: initialize again",
            "other_scopes",
            "none: a child has one token, and so has a session over `transport` \"sse\" and \"websocket\"; \"streamable\" \
             has one for each request",
            false,
            "a connection has one token for all its messages",
        )
    }

    /// Whether exchanging another token of the caller may succeed.
    pub(super) fn is_of_caller(&self) -> bool {
        matches!(
            self.outcome,
            "invalid_grant"
                | "invalid_token"
                | "invalid_request"
                | "access_denied"
                | "invalid_scope"
                | "invalid_target"
        )
    }

    /// Discovery and token request exceeded their time limit.
    pub(super) fn slow(limit: Duration) -> Self {
        let detail = format!("no token within {limit:?}");
        Self::new(NO_ANSWER, "timeout", LOOK_BETWEEN, true, &detail)
    }

    /// The token has bytes that no header, or no variable, can carry.
    pub(super) fn unsendable() -> Self {
        let remedy = "look into the log of the authorization server";
        let detail = "the token has characters that no header or variable can carry";
        Self::new(NO_TOKEN, "unreadable", remedy, false, detail)
    }

    pub(super) fn new(
        public: &'static str,
        outcome: &'static str,
        remedy: impl Into<Cow<'static, str>>,
        may_pass: bool,
        detail: &str,
    ) -> Self {
        Self {
            public,
            remedy: remedy.into(),
            outcome,
            may_pass,
            retry_after: None,
            is_of_upstream: false,
            asks_user: false,
            detail: FailureDetail::new(detail, None),
        }
    }
}

const LOOK_BETWEEN: &str = "look whether the authorization server runs, and whether a firewall is between it and this machine";

impl DiscoveryError {
    /// Converts the error to a failure of the account at `upstream`.
    pub(super) fn into_failure(self, upstream: &Url) -> TokenFailure {
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

/// The remedy for a URL that the egress rules forbid; names the configuration key that allows the URL, if any.
pub(super) fn remedy_of_refusal(refusal: EgressRefusal, url: &Url) -> Cow<'static, str> {
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
    pub(super) fn word(&self) -> &'static str {
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
    pub(super) fn into_failure(self, endpoint: &Url) -> TokenFailure {
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

/// The remedy for a code that a server does not accept, from an account or a login.
pub(super) fn remedy_of_refused_code(redirect_uri: &str) -> String {
    format!(
        "none where it happens once: the code was used before, or is too old. Else compare the redirect URI that the \
         client has at the server: {redirect_uri}"
    )
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
    use super::super::LoginFailure;
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
