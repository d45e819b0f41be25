//! `UpstreamAccount`: what all tokens of one upstream have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use url::Url;

use super::account_log::AccountLog;
use super::client_key::{ClientKeyError, ClientProof};
use super::discovery::{DiscoveredServer, DiscoveryHints};
use super::documents::{ClientsError, DocumentClients, MAX_SHOWN};
use super::endpoint_check::{PROBE_LIMIT, may_ask};
use super::exchange::{self, ExchangeRequest};
use super::extension_grant::RequestingClient;
use super::failure::TokenFailure;
use super::held_token::PlacedToken;
use super::identity_assertion::AssertedRequest;
use super::server_lookup::ServerLookup;
use super::token_endpoint::{self, IssuedToken, TokenGrant, TokenRequest};
use super::token_subject::{TokenSubject, WantedToken};
use crate::call::CallerAccess;
use crate::cause::ErrorCause;
use crate::config::{AccountConfig, AccountKind};
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;
use crate::telemetry::metrics::token_request_ended;
use crate::telemetry::redact::shown;
use crate::telemetry::trace::StepSpan;

/// Time limit for discovery and the token request together.
const LIMIT: Duration = Duration::from_secs(20);

/// Why an account cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AccountSetupError {
    /// `private_key` cannot be used.
    #[error(transparent)]
    Key(#[from] ClientKeyError),
    /// `issuer` is no URL.
    #[error("the issuer is no URL")]
    Issuer,
    /// The HTTP clients cannot be built.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// A child's `resource` is no URL.
    #[error("the resource is no URL")]
    Resource,
}

/// The account, or the accounts, of one upstream.
#[derive(Debug)]
pub struct UpstreamAccount {
    pub(super) upstream: Arc<str>,
    pub(super) config: AccountConfig,
    pub(super) tasks: TaskSpawner,
    /// Configured headers, sent with every token.
    fixed: HeaderMap,
    clients: DocumentClients,
    proof: ClientProof,
    lookup: ServerLookup,
    log: AccountLog,
    /// Whether the log has already reported an exchanged token with another audience.
    audience_is_told: AtomicBool,
    /// How many tokens have been held so far, of all callers together.
    tokens: AtomicU64,
}

/// A token, and the scopes that were requested.
#[derive(Debug)]
pub(super) struct ObtainedToken {
    pub(super) issued: IssuedToken,
    pub(super) scopes: Vec<String>,
}

impl UpstreamAccount {
    /// The account at `upstream`, whose MCP endpoint is `url`; of a child, what its tokens are for. `fixed` are its
    /// configured headers.
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
            lookup: ServerLookup::new(Arc::clone(&upstream), url, true),
            log: AccountLog::new(Arc::clone(&upstream), config.kind),
            upstream,
            config,
            tasks,
            fixed,
            clients,
            audience_is_told: AtomicBool::new(false),
            tokens: AtomicU64::new(0),
        }))
    }

    /// How many tokens have been held so far, of all callers together: none was replaced while this is the same.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Counts a token that is held from now on.
    pub(super) fn count_token(&self) {
        self.tokens.fetch_add(1, Ordering::Release);
    }

    /// How the gateway obtains tokens.
    #[must_use]
    pub fn kind(&self) -> AccountKind {
        self.config.kind
    }

    /// Why the last token request failed, or why the upstream refused the token; `None` after the next success.
    #[must_use]
    pub fn last_cause(&self) -> Option<ErrorCause> {
        self.log.last_cause()
    }

    /// Finds out where tokens of callers would be requested, without a caller: at the configured issuer, else at that which
    /// the upstream names; for exchanges at each of `issuers`, whose tokens callers may have. Takes 8 s at most; [`last_cause`](Self::last_cause) has the outcome.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub async fn look(&self, issuers: &[String]) {
        let looked = tokio::time::timeout(PROBE_LIMIT, self.find_all(issuers)).await;
        let looked = looked.unwrap_or_else(|_| Err(TokenFailure::slow(PROBE_LIMIT)));
        if let Err(failure) = looked {
            self.log.failed(&failure, None);
        }
    }

    async fn find_all(&self, issuers: &[String]) -> Result<(), TokenFailure> {
        let of_callers = issuers.iter().map(|issuer| Some(issuer.as_str()));
        // Only exchanges are at the callers' issuers.
        let asked: Vec<_> = match (&self.config.issuer, self.config.kind) {
            (None, AccountKind::TokenExchange) => of_callers.collect(),
            _ => vec![None],
        };
        for caller_issuer in asked {
            let hints = DiscoveryHints {
                caller_issuer,
                ..self.hints(None)
            };
            let found = self.lookup.find(&self.clients, &hints).await?;
            let trusted = hints.trusted();
            may_ask(
                &self.clients,
                &found.server.token_endpoint,
                trusted.as_ref(),
            )?;
        }
        Ok(())
    }

    /// Requests a token; runs the discovery first unless it is cached.
    ///
    /// # Errors
    /// [`TokenFailure`], which was logged.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub(super) async fn obtain(
        &self,
        wanted: WantedToken<'_>,
    ) -> Result<ObtainedToken, TokenFailure> {
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
            Ok(obtained) => self
                .log
                .succeeded(&obtained.scopes, obtained.issued.scopes.as_ref()),
            Err(failure) => self.log.failed(failure, wanted.subject.owner()),
        }
        outcome
    }

    async fn ask(&self, wanted: WantedToken<'_>) -> Result<ObtainedToken, TokenFailure> {
        let hints = self.hints(wanted.subject.caller());
        let found = self.lookup.find(&self.clients, &hints).await?;
        let mut scopes = found.scopes.clone();
        for scope in wanted.further {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        let is_gateway = matches!(wanted.subject, TokenSubject::Gateway);
        let host = found.server.token_endpoint.host_str().unwrap_or_default();
        let kind = self.config.kind.as_str();
        let span = StepSpan::token_request(host, Some((&self.upstream, kind)));
        let issued = self.request(wanted.subject, &found, &scopes).await;
        span.end(
            issued
                .as_ref()
                .map_or_else(|failure| failure.outcome, |_| "ok"),
        );
        match issued {
            Ok(issued) => {
                if !is_gateway {
                    self.note_audience(&issued, &found);
                }
                Ok(ObtainedToken { issued, scopes })
            }
            Err(failure) => {
                // The cached discovery may be stale; the refusal of one caller's token is no evidence of that.
                if is_gateway {
                    self.forget();
                } else if !failure.is_of_caller() {
                    self.lookup.forget_once_a_minute();
                }
                Err(failure)
            }
        }
    }

    /// Makes the token request.
    async fn request(
        &self,
        subject: TokenSubject<'_>,
        found: &DiscoveredServer,
        scopes: &[String],
    ) -> Result<IssuedToken, TokenFailure> {
        let (clients, server) = (&self.clients, &found.server);
        let trusted = self.hints(subject.caller()).trusted();
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
                    resource: Some(&found.resource),
                    grant: TokenGrant::Client,
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
                    found,
                    scopes,
                };
                return provider.token(clients, owner, &request).await;
            }
        };
        issued.map_err(|error| error.into_failure(&server.token_endpoint))
    }

    fn hints<'a>(&'a self, caller: Option<&'a CallerAccess>) -> DiscoveryHints<'a> {
        DiscoveryHints {
            issuer: self.config.issuer.as_deref(),
            caller_issuer: caller.map(CallerAccess::issuer),
            resource: self.config.resource.as_deref(),
            scopes: &self.config.scopes,
        }
    }

    /// Drops the cached discovery: the next token request looks the server up again.
    pub(super) fn forget(&self) {
        self.lookup.forget();
    }

    /// [`forget`](Self::forget), except what was found less than a minute ago.
    pub(super) fn forget_old(&self) {
        self.lookup.forget_old();
    }

    /// Logs once that an exchanged JWT does not name the upstream in `aud`. The token is used: the upstream decides.
    fn note_audience(&self, issued: &IssuedToken, found: &DiscoveredServer) {
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

    /// The configured headers, sent with every token.
    #[must_use]
    pub fn fixed_headers(&self) -> &HeaderMap {
        &self.fixed
    }

    /// `token` where it goes; `None` where it cannot.
    pub(super) fn placed(&self, token: &Secret) -> Option<PlacedToken> {
        PlacedToken::new(&self.fixed, &self.config.place, token)
    }

    /// Records that the upstream refused a token issued by the authorization server.
    pub(super) fn refused(&self, status: u16) {
        self.log.refused(status);
    }
}
