//! `UpstreamAccount`: what all tokens of one upstream have in common.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use url::Url;

use super::client_key::{ClientKeyError, ClientProof};
use super::discovery::{self, Discovered};
use super::documents::{ClientsError, DocumentClients};
use super::failure::TokenFailure;
use super::token_endpoint::{self, IssuedToken, TokenRequest};
use crate::cause::{ErrorCause, LastCause};
use crate::config::{AccountConfig, AccountKind};
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::token_request_ended;

/// For how long what was found out is believed.
const BELIEVED: Duration = Duration::from_hours(1);
/// For the search and the token request together.
const LIMIT: Duration = Duration::from_secs(20);

/// Why an account cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AccountSetupError {
    /// `private_key` cannot be used.
    #[error(transparent)]
    Key(#[from] ClientKeyError),
    /// There is no HTTP client for it.
    #[error(transparent)]
    Clients(#[from] ClientsError),
}

/// The account, or the accounts, of one upstream.
#[derive(Debug)]
pub struct UpstreamAccount {
    pub(super) upstream: Arc<str>,
    pub(super) config: AccountConfig,
    pub(super) tasks: TaskSpawner,
    url: Url,
    /// Configured headers, which go with every token.
    fixed: HeaderMap,
    clients: DocumentClients,
    proof: ClientProof,
    /// What was found out, and when.
    found: Mutex<Option<(Arc<Discovered>, Instant)>>,
    /// The first server that the upstream named. Spec: SPEC B-10
    pinned: Mutex<Option<String>>,
    cause: LastCause,
    lines: LineLimit<&'static str>,
}

/// A token, and the scopes that were asked for.
#[derive(Debug)]
pub(super) struct Obtained {
    pub(super) issued: IssuedToken,
    pub(super) scopes: Vec<String>,
}

impl UpstreamAccount {
    /// The account at `upstream`, whose MCP endpoint is `url`. `fixed` are its configured headers.
    ///
    /// # Errors
    /// `private_key` cannot be used.
    pub fn new(
        upstream: Arc<str>,
        url: Url,
        config: AccountConfig,
        (clients, fixed): (DocumentClients, HeaderMap),
        tasks: TaskSpawner,
    ) -> Result<Arc<Self>, AccountSetupError> {
        Ok(Arc::new(Self {
            proof: ClientProof::new(&config.client_key)?,
            upstream,
            config,
            tasks,
            url,
            fixed,
            clients,
            found: Mutex::default(),
            pinned: Mutex::default(),
            cause: LastCause::default(),
            lines: LineLimit::default(),
        }))
    }

    /// How the gateway comes by a token.
    #[must_use]
    pub fn kind(&self) -> AccountKind {
        self.config.kind
    }

    /// Why the last token could not be had, or was refused; `None` once one was.
    #[must_use]
    pub fn last_cause(&self) -> Option<ErrorCause> {
        self.cause.snapshot()
    }

    /// Asks for a token, and for where to ask if that is not known.
    ///
    /// # Errors
    /// [`TokenFailure`], which was logged.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub(super) async fn obtain(&self, further: &[String]) -> Result<Obtained, TokenFailure> {
        let began = Instant::now();
        let outcome = tokio::time::timeout(LIMIT, self.ask(further)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(TokenFailure::slow(LIMIT)));
        let word = outcome
            .as_ref()
            .map_or_else(|failure| failure.outcome, |_| "ok");
        token_request_ended(
            &self.upstream,
            self.config.kind.as_str(),
            word,
            began.elapsed(),
        );
        match &outcome {
            Ok(obtained) => self.succeeded(obtained),
            Err(failure) => self.failed(failure),
        }
        outcome
    }

    async fn ask(&self, further: &[String]) -> Result<Obtained, TokenFailure> {
        let found = self.discovered().await?;
        let mut scopes = found.scopes.clone();
        for scope in further {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        let request = TokenRequest {
            server: &found.server,
            client_id: &self.config.client_id,
            proof: &self.proof,
            scopes: &scopes,
            resource: &found.resource,
        };
        let trusted = self.trusted_issuer();
        match token_endpoint::request(&self.clients, &request, trusted.as_ref()).await {
            Ok(issued) => Ok(Obtained { issued, scopes }),
            Err(error) => {
                // What was found out may no longer hold.
                self.forget();
                Err(error.into_failure(&found.server.token_endpoint))
            }
        }
    }

    fn trusted_issuer(&self) -> Option<Url> {
        self.config
            .issuer
            .as_deref()
            .and_then(|issuer| Url::parse(issuer).ok())
    }

    async fn discovered(&self) -> Result<Arc<Discovered>, TokenFailure> {
        let pinned = lock(&self.pinned).clone();
        let issuer = self.config.issuer.as_deref().or(pinned.as_deref());
        let known = lock(&self.found).clone();
        if let Some((found, at)) = known
            && at.elapsed() < BELIEVED
        {
            return Ok(found);
        }
        let found = discovery::discover(&self.clients, &self.url, &self.config, issuer).await;
        let found = Arc::new(found.map_err(|error| error.into_failure(&self.url))?);
        let server = found.server.issuer.clone();
        tracing::info!(
            upstream = %self.upstream, issuer = %server, resource = %found.resource,
            "found where tokens for an upstream are to be had"
        );
        // Spec: SPEC B-10
        lock(&self.pinned).get_or_insert(server);
        *lock(&self.found) = Some((Arc::clone(&found), Instant::now()));
        Ok(found)
    }

    /// Finds out again where to ask before the next token request.
    pub(super) fn forget(&self) {
        *lock(&self.found) = None;
    }

    /// The headers of requests with `token`.
    pub(super) fn headers(&self, token: &Secret) -> Option<HeaderMap> {
        let text = format!("{}{}", self.config.prefix, token.expose());
        let mut value = HeaderValue::try_from(text).ok()?;
        value.set_sensitive(true);
        let mut headers = self.fixed.clone();
        headers.insert(self.config.header.clone(), value);
        Some(headers)
    }

    fn succeeded(&self, obtained: &Obtained) {
        if self.cause.snapshot().is_some() {
            tracing::info!(upstream = %self.upstream, "the account of an upstream can be used again");
        }
        self.cause.clear();
        let missing =
            |granted: &&Vec<String>| obtained.scopes.iter().any(|scope| !granted.contains(scope));
        if let Some(granted) = obtained.issued.scopes.as_ref().filter(missing)
            && self.lines.admit("scopes").is_some()
        {
            tracing::warn!(
                upstream = %self.upstream, asked = obtained.scopes.join(" "), granted = granted.join(" "),
                "the authorization server grants fewer scopes than were asked for"
            );
        }
    }

    fn failed(&self, failure: &TokenFailure) {
        let remedy = failure.remedy();
        self.cause.set(failure, Some(remedy.to_owned().into()));
        if let Some(muted) = self.lines.admit(failure.outcome) {
            let error: &(dyn std::error::Error + 'static) = failure;
            tracing::warn!(
                upstream = %self.upstream, kind = self.config.kind.as_str(), error, remedy, muted,
                "the account of an upstream cannot be used"
            );
        }
    }

    /// Notes that the upstream refuses a token that the authorization server gave.
    pub(super) fn refused(&self, status: u16) {
        let remedy = match status {
            403 => {
                "let the upstream allow this to the account, or write the scopes that it wants into `scopes`"
            }
            _ => {
                "look what the upstream wants a token for: `resource` and `issuer` of \
                 [upstreams.<name>.auth] say what it is given"
            }
        };
        let text =
            format!("the upstream answers with HTTP status {status} to a token of its account");
        self.cause.set_text(&text, Some(remedy.into()));
        let what = if status == 403 { "403" } else { "401" };
        if let Some(muted) = self.lines.admit(what) {
            tracing::warn!(upstream = %self.upstream, status, remedy, muted, "an upstream refuses its account");
        }
    }
}
