//! Why an account cannot be used, for callers and for operators.

mod of_requests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::chain;
use crate::database::DatabaseError;

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
/// The same at the identity provider.
const NO_ASSERTION: &str = "the identity provider gives the gateway no assertion for it";
const PROVIDER_SILENT: &str = "the identity provider does not answer";
const NO_PROVIDER: &str = "the gateway does not know where its identity provider gives assertions";

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
    pub(super) fn no_database(error: &(dyn std::error::Error + 'static)) -> Self {
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
            "run the gateway where it can use Landlock (the kernel, and filters of system calls), or accept with `stdio.trust_children = true` that children can \
             read each other's credentials",
            false,
            "Landlock cannot be used: children could read the credential in each other's environment",
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

    /// Rewords the refusal of an assertion of the identity provider by the upstream's authorization server.
    pub(super) fn of_assertion(mut self) -> Self {
        if matches!(self.outcome, "invalid_grant" | "access_denied") {
            self.remedy = "let the authorization server of the upstream trust the identity provider, and look into the \
                           log there: the assertion has to name the `client_id` of [upstreams.<name>.auth]"
                .into();
        }
        self
    }

    /// Rewords a failure of a token request to the identity provider, where the gateway is the client of the login.
    pub(super) fn at_provider(mut self) -> Self {
        self.public = match self.public {
            NO_ANSWER => PROVIDER_SILENT,
            NO_PLACE => NO_PROVIDER,
            _ => NO_ASSERTION,
        };
        self.remedy = match self.outcome {
            "invalid_grant" | "invalid_token" => {
                "none if the login has ended: it has to be made again. Else look into the log of the identity provider"
                    .into()
            }
            "invalid_target" => {
                "let the identity provider know the authorization server of the upstream, and its `resource`".into()
            }
            "invalid_client" | "client_auth" => {
                "correct `client_id` and `client_secret` or `private_key` of [connect] login: the identity provider does \
                 not know this client, or not with this proof"
                    .into()
            }
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

/// The remedy for a code that a server does not accept, from an account or a login.
pub(super) fn remedy_of_refused_code(redirect_uri: &str) -> String {
    format!(
        "none where it happens once: the code was used before, or is too old. Else compare the redirect URI that the \
         client has at the server: {redirect_uri}"
    )
}

impl From<DatabaseError> for TokenFailure {
    fn from(error: DatabaseError) -> Self {
        Self::no_database(&error)
    }
}
