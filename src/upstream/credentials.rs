//! Credentials of upstreams: asked for with every request, and kept by no connection.
//! Spec: SPEC A-22; DESIGN §6.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use moka::sync::Cache;

use super::account::Account;
use super::carrier::http::client_error::ClientError;
use super::carrier::http::exchange_error::ExchangeError;
use crate::call::{AccessKey, CallerAccess, OwnerKey};
use crate::grants::{Challenge, HeldToken, Renewal, TokenFailure, TokenSource, UpstreamAccount};
use crate::secret::Secret;

/// Callers of one upstream whose exchanged tokens are held at most.
const CALLERS: u64 = 16_384;
/// How long an exchanged token is held after its last use.
const IDLE: Duration = Duration::from_hours(1);

/// The credentials of one upstream.
pub trait Credentials: Send + Sync + std::fmt::Debug {
    /// The account whose credential requests for `owner` carry.
    fn account_of(&self, owner: OwnerKey) -> Account;

    /// The credential of one request of `requester`. Called for each request of every kind.
    fn for_request(&self, requester: &Requester) -> Credential<'_>;

    /// Goes up with each change of the account of `owner`, where a token of [`for_request`](Self::for_request) may be sent
    /// again until the next change; read before the token is. `None` where each request asks for its own.
    fn generation(&self, _owner: OwnerKey) -> Option<u64> {
        None
    }

    /// The credential of a request that only asks whether the upstream is there.
    fn for_check(&self, requester: &Requester) -> Credential<'_> {
        self.for_request(requester)
    }

    /// The token for a child, where [`for_request`](Self::for_request) gave `due`, whose refresh it has begun: the child
    /// keeps its token, so that the next one is waited for.
    fn for_child(
        &self,
        _requester: &Requester,
        due: Arc<HeldToken>,
    ) -> BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>> {
        ready(Ok(due)).boxed()
    }

    /// Handles a 401 or 403 to a request with `used`: returns whether there is another credential by now.
    fn refused(
        &self,
        _requester: &Requester,
        _used: Arc<HeldToken>,
        _status: StatusCode,
        _challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        ready(Ok(Renewal::Stands)).boxed()
    }

    /// A request was answered well with `used`, which [is on trial](HeldToken::is_on_trial).
    fn accepted(&self, _account: Account, _used: Arc<HeldToken>) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// The account and the caller of a request.
#[derive(Debug, Clone)]
pub struct Requester {
    /// The account whose credential it carries.
    pub account: Account,
    /// The caller whose tokens can be exchanged; `None` where none is known.
    pub caller: Option<Arc<CallerAccess>>,
}

/// Credential headers of one request. A header that the request already has is left as it is.
pub enum Credential<'a> {
    /// Constant while the gateway runs.
    Ready(&'a HeaderMap),
    /// A token that is good now.
    Held(Arc<HeldToken>),
    /// A token that has to be waited for, as it is being refreshed.
    Awaited(BoxFuture<'a, Result<Arc<HeldToken>, ExchangeError>>),
}

/// The headers of the configuration, the same for everybody.
#[derive(Debug)]
pub(super) struct FixedHeaders(pub(super) HeaderMap);

/// The headers of `configured`.
///
/// # Errors
/// [`ClientError::Header`] for one that cannot be sent.
pub(super) fn fixed_headers(configured: &[(String, Secret)]) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        let bad = || ClientError::Header(name.clone());
        let name: HeaderName = name.parse().map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

impl Credentials for FixedHeaders {
    fn account_of(&self, _owner: OwnerKey) -> Account {
        Account::Common
    }

    fn for_request(&self, _requester: &Requester) -> Credential<'_> {
        Credential::Ready(&self.0)
    }
}

/// Tokens of the one account that all callers share.
#[derive(Debug)]
pub(super) struct CommonTokens(pub(super) Arc<TokenSource>);

impl Credentials for CommonTokens {
    fn account_of(&self, _owner: OwnerKey) -> Account {
        Account::Common
    }

    fn for_request(&self, _requester: &Requester) -> Credential<'_> {
        of_source(&self.0)
    }

    fn for_child(
        &self,
        _requester: &Requester,
        due: Arc<HeldToken>,
    ) -> BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>> {
        next_of(Some(Arc::clone(&self.0)), due)
    }

    fn refused(
        &self,
        _requester: &Requester,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        Arc::clone(&self.0)
            .answered(used, status, challenge)
            .boxed()
    }
}

/// Tokens that callers' own are exchanged for: one source for each caller with the same scopes. In memory alone.
#[derive(Debug)]
pub(super) struct ExchangedTokens {
    account: Arc<UpstreamAccount>,
    sources: Cache<AccessKey, Arc<TokenSource>>,
}

impl ExchangedTokens {
    /// The tokens for `account`.
    pub(super) fn new(account: Arc<UpstreamAccount>) -> Self {
        let sources = Cache::builder().max_capacity(CALLERS).time_to_idle(IDLE);
        Self {
            account,
            sources: sources.build(),
        }
    }

    fn source(&self, caller: &Arc<CallerAccess>) -> Arc<TokenSource> {
        self.sources.get_with_by_ref(caller.key(), || {
            TokenSource::of_caller(Arc::clone(&self.account), Arc::clone(caller))
        })
    }
}

impl Credentials for ExchangedTokens {
    fn account_of(&self, owner: OwnerKey) -> Account {
        Account::Principal(owner)
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        match &requester.caller {
            Some(caller) => of_source(&self.source(caller)),
            None => no_credential(TokenFailure::no_caller()),
        }
    }

    fn for_child(
        &self,
        requester: &Requester,
        due: Arc<HeldToken>,
    ) -> BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>> {
        let source = requester.caller.as_ref().map(|caller| self.source(caller));
        next_of(source, due)
    }

    /// No caller is there: a refusal tells as much as any other answer.
    fn for_check(&self, _requester: &Requester) -> Credential<'_> {
        Credential::Ready(self.account.fixed_headers())
    }

    fn refused(
        &self,
        requester: &Requester,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        match &requester.caller {
            Some(caller) => self
                .source(caller)
                .answered(used, status, challenge)
                .boxed(),
            None => ready(Ok(Renewal::Stands)).boxed(),
        }
    }
}

/// No credentials: those of callers whose children cannot be kept apart.
#[derive(Debug)]
pub(super) struct WithheldTokens;

impl Credentials for WithheldTokens {
    fn account_of(&self, owner: OwnerKey) -> Account {
        Account::Principal(owner)
    }

    fn for_request(&self, _requester: &Requester) -> Credential<'_> {
        no_credential(TokenFailure::children_not_isolated())
    }
}

/// No credential, for the reason `failure`.
pub(super) fn no_credential(failure: TokenFailure) -> Credential<'static> {
    Credential::Awaited(ready(Err(failure.into())).boxed())
}

/// The token for a child in place of `due`, which is of `source`.
pub(super) fn next_of(
    source: Option<Arc<TokenSource>>,
    due: Arc<HeldToken>,
) -> BoxFuture<'static, Result<Arc<HeldToken>, ExchangeError>> {
    let next = async move {
        Ok(match source {
            Some(source) => source.next(due).await,
            None => due,
        })
    };
    next.boxed()
}

/// The token of `source`, waited for only if none is good.
pub(super) fn of_source(source: &Arc<TokenSource>) -> Credential<'static> {
    if let Some(token) = source.held() {
        return Credential::Held(token);
    }
    let token = Arc::clone(source).token();
    Credential::Awaited(async { Ok(token.await?) }.boxed())
}

impl std::fmt::Debug for Credential<'_> {
    /// Shows no credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Held(_) => "Held",
            Self::Awaited(_) => "Awaited",
        })
    }
}
