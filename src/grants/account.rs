//! `UpstreamAccount`: what all tokens of one upstream have in common.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use url::Url;

use super::client_key::{ClientKeyError, ClientProof};
use super::discovery::{self, Discovered};
use super::documents::{ClientsError, DocumentClients, MAX_SHOWN};
use super::exchange::{self, ExchangeRequest};
use super::extension_grant::RequestingClient;
use super::failure::TokenFailure;
use super::identity_assertion::AssertedRequest;
use super::token_endpoint::{self, IssuedToken, TokenRequest};
use super::token_subject::{TokenSubject, Wanted};
use crate::call::{CallerAccess, OwnerKey};
use crate::cause::{ErrorCause, LastCause};
use crate::config::{AccountConfig, AccountKind};
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;
use crate::sync::shared_failure::SharedFailure;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::token_request_ended;
use crate::telemetry::redact::shown;

/// For how long what was found out is believed.
const BELIEVED: Duration = Duration::from_hours(1);
/// What was found since is kept when the upstream refuses the token of a caller.
const JUST_FOUND: Duration = Duration::from_mins(1);
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
    /// Nobody's identity can be asserted.
    #[error("there is no login at an identity provider")]
    NoLogin,
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
    /// What was found out of each server.
    servers: Mutex<HashMap<String, Arc<KnownServer>>>,
    /// The first server that the upstream named. Spec: SPEC B-10
    pinned: Mutex<Option<String>>,
    cause: LastCause,
    lines: LineLimit<&'static str>,
    /// Whether the log has said that an exchanged token has another audience.
    audience_is_told: AtomicBool,
}

/// What was found out of one authorization server.
#[derive(Debug, Default)]
struct KnownServer {
    /// The last find, and when it was made.
    found: Mutex<Option<(Arc<Discovered>, Instant)>>,
    /// Callers whose tokens are exchanged wait for the same search.
    search: SharedFailure<TokenFailure>,
}

/// A token, and the scopes that were asked for.
#[derive(Debug)]
pub(super) struct Obtained {
    pub(super) issued: IssuedToken,
    pub(super) scopes: Vec<String>,
}

impl KnownServer {
    fn believed(&self) -> Option<Arc<Discovered>> {
        let found = lock(&self.found).clone();
        let found = found.filter(|(_, at)| at.elapsed() < BELIEVED);
        found.map(|(found, _)| found)
    }
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
            servers: Mutex::default(),
            pinned: Mutex::default(),
            cause: LastCause::default(),
            lines: LineLimit::default(),
            audience_is_told: AtomicBool::new(false),
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
    pub(super) async fn obtain(&self, wanted: Wanted<'_>) -> Result<Obtained, TokenFailure> {
        let began = Instant::now();
        let outcome = tokio::time::timeout(LIMIT, self.ask(wanted)).await;
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
            Err(failure) => self.failed(failure, wanted.subject.owner()),
        }
        outcome
    }

    async fn ask(&self, wanted: Wanted<'_>) -> Result<Obtained, TokenFailure> {
        let found = self.discovered(wanted.subject.caller()).await?;
        let mut scopes = found.scopes.clone();
        for scope in wanted.further {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        let is_gateway = matches!(wanted.subject, TokenSubject::Gateway);
        match self.request(wanted.subject, &found, &scopes).await {
            Ok(issued) => {
                if !is_gateway {
                    self.note_audience(&issued, &found);
                }
                Ok(Obtained { issued, scopes })
            }
            Err(failure) => {
                // The discovery may be out of date, but a refusal of one caller's token is no sign of that.
                if is_gateway || !failure.is_of_caller() {
                    self.forget();
                }
                Err(failure)
            }
        }
    }

    /// Makes the token request.
    async fn request(
        &self,
        subject: TokenSubject<'_>,
        found: &Discovered,
        scopes: &[String],
    ) -> Result<IssuedToken, TokenFailure> {
        let (clients, server) = (&self.clients, &found.server);
        let trusted = self.trusted_issuer(subject.caller());
        let client = RequestingClient {
            server,
            client_id: &self.config.client_id,
            proof: &self.proof,
            trusted: trusted.as_ref(),
        };
        let issued = match subject {
            TokenSubject::Gateway => {
                let request = TokenRequest {
                    server,
                    client_id: &self.config.client_id,
                    proof: &self.proof,
                    scopes,
                    resource: &found.resource,
                };
                token_endpoint::request(clients, &request, trusted.as_ref()).await
            }
            TokenSubject::Caller(_, token) => {
                let request = ExchangeRequest {
                    subject: &token.secret,
                    resource: &found.resource,
                    audience: self.config.audience.as_deref(),
                    scopes,
                };
                exchange::request(clients, &client, &request).await
            }
            TokenSubject::Person(provider, owner) => {
                let request = AssertedRequest {
                    client,
                    upstream: &self.url,
                    found,
                    scopes,
                };
                return provider.token(clients, owner, &request).await;
            }
        };
        issued.map_err(|error| error.into_failure(&server.token_endpoint))
    }

    /// The issuer whose origin the operator trusts: `issuer` of the account, else the caller's, which `[auth]` names.
    fn trusted_issuer(&self, caller: Option<&CallerAccess>) -> Option<Url> {
        let issuer = self.config.issuer.as_deref();
        let issuer = issuer.or_else(|| caller.map(CallerAccess::issuer));
        issuer.and_then(|issuer| Url::parse(issuer).ok())
    }

    async fn discovered(
        &self,
        caller: Option<&CallerAccess>,
    ) -> Result<Arc<Discovered>, TokenFailure> {
        let pinned = lock(&self.pinned).clone();
        let configured = self.config.issuer.as_deref();
        let issuer = configured.or_else(|| caller.map(CallerAccess::issuer));
        let issuer = issuer.or(pinned.as_deref());
        let server = {
            let mut servers = lock(&self.servers);
            let key = issuer.unwrap_or_default().to_owned();
            Arc::clone(servers.entry(key).or_default())
        };
        if let Some(found) = server.believed() {
            return Ok(found);
        }
        let attempt = server.search.attempt().await;
        if let Some(found) = server.believed() {
            return Ok(found);
        }
        if let Some(failure) = attempt.spared() {
            return Err(failure);
        }
        let trusted = self.trusted_issuer(caller);
        let (clients, config) = (&self.clients, &self.config);
        let found = discovery::discover(clients, &self.url, config, issuer, trusted.as_ref()).await;
        let found = match found.map_err(|error| error.into_failure(&self.url)) {
            Ok(found) => Arc::new(found),
            Err(failure) => {
                attempt.share(failure.clone());
                return Err(failure);
            }
        };
        let issuer = found.server.issuer.clone();
        tracing::info!(
            upstream = %self.upstream, %issuer, resource = %found.resource,
            "found where tokens for an upstream are to be had"
        );
        if caller.is_none() {
            // Spec: SPEC B-10
            lock(&self.pinned).get_or_insert(issuer);
        }
        *lock(&server.found) = Some((Arc::clone(&found), Instant::now()));
        Ok(found)
    }

    /// Finds out again where to ask before the next token request.
    pub(super) fn forget(&self) {
        for server in lock(&self.servers).values() {
            *lock(&server.found) = None;
        }
    }

    /// [`forget`](Self::forget) what was not found just now: callers whose tokens the upstream refuses, one after the
    /// other, make for one search a minute.
    pub(super) fn forget_old(&self) {
        for server in lock(&self.servers).values() {
            let mut found = lock(&server.found);
            *found = found.take().filter(|(_, at)| at.elapsed() < JUST_FOUND);
        }
    }

    /// Logs once that an exchanged JWT does not name the upstream in `aud`. The token is used: the upstream decides.
    fn note_audience(&self, issued: &IssuedToken, found: &Discovered) {
        let Some(audiences) = exchange::audiences(&issued.token) else {
            return;
        };
        let configured = self.config.audience.as_deref();
        let is_for = |audience: &String| {
            audience == &found.resource || configured == Some(audience.as_str())
        };
        if audiences.iter().any(is_for) || self.audience_is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let audiences = if audiences.is_empty() {
            "none".to_owned()
        } else {
            audiences.join(" ")
        };
        tracing::warn!(
            upstream = %self.upstream, resource = %found.resource, audience = &*shown(&audiences, MAX_SHOWN),
            "an exchanged token has another audience than the upstream: let the authorization server map it, or write \
             `resource` or `audience`"
        );
    }

    /// The configured headers, which go with every token.
    #[must_use]
    pub fn fixed_headers(&self) -> &HeaderMap {
        &self.fixed
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

    fn failed(&self, failure: &TokenFailure, owner: Option<OwnerKey>) {
        let remedy = failure.remedy();
        self.cause.set(failure, Some(remedy.to_owned().into()));
        if let Some(muted) = self.lines.admit(failure.outcome) {
            let error: &(dyn std::error::Error + 'static) = failure;
            let principal = owner.map(tracing::field::display);
            tracing::warn!(
                upstream = %self.upstream, kind = self.config.kind.as_str(), principal, error, remedy, muted,
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
                "look what the upstream wants a token for: `resource`, `audience` and `issuer` of \
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
