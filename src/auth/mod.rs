//! The resource server: authenticates callers, and refuses requests without a valid token.
//!
//! Spec: RFC 6750, RFC 7662, RFC 9068, RFC 9728; MCP 2025-11-25, Authorization; SPEC §8. It knows tokens and
//! scopes of endpoints; what a caller may do with single tools is `policy`'s.

mod asking;
mod bearer;
mod cache;
mod caller_tokens;
mod challenge;
mod claims;
mod discovery;
mod fetch;
mod introspection;
mod issuer;
mod jwt;
mod key_set;
mod login;
mod metadata;
mod refusals;
mod refused;
mod reject;
#[cfg(test)]
mod samples;
mod scope;
mod setup_error;
mod status;
#[cfg(test)]
mod tests;
mod token_policy;
mod verification;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use self::bearer::{MalformedCredentials, PresentedToken};
use self::cache::{TokenCache, TokenKey};
use self::caller_tokens::CallerTokens;
pub use self::challenge::DeniedResponse;
use self::fetch::IssuerClients;
use self::issuer::Issuer;
pub use self::login::{IdTokenCheck, LoginRefusal, PersonLogin};
pub use self::metadata::{accepts_issuer, metadata};
use self::refusals::RefusalLines;
use self::refused::RefusedTokens;
use self::reject::{RejectReason, TokenRefusal};
use self::scope::ScopeHierarchy;
pub use self::setup_error::AuthError;
use crate::call::Principal;
use crate::clock::SharedClock;
use crate::config;
use crate::egress::EgressRules;
use crate::endpoint::Endpoint;
use crate::runtime::lifecycle::TaskSpawner;
use crate::status::IssuerStatus;
use crate::telemetry::metrics::{COUNTERS, LABELED};

/// Authenticates callers.
#[derive(Debug)]
pub struct Authenticator {
    /// The principal of all callers, if no token is required.
    anonymous: Option<Arc<Principal>>,
    issuers: Vec<Arc<Issuer>>,
    cache: TokenCache,
    refused: RefusedTokens,
    refusal_lines: RefusalLines,
    /// Scopes that the configuration names outside endpoints.
    known_scopes: BTreeSet<String>,
    hierarchy: ScopeHierarchy,
    /// The tokens of callers, if an upstream exchanges them.
    callers: Option<CallerTokens>,
    clock: SharedClock,
    tasks: TaskSpawner,
}

impl Authenticator {
    /// Reads key files, and starts to fetch the keys of the other issuers in the background. What their documents name on
    /// other origins is public, or allowed by `egress`. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A key file cannot be used, or this machine has no trust anchors.
    pub fn new(
        config: &config::AuthConfig,
        egress: &config::EgressConfig,
        clock: SharedClock,
        tasks: TaskSpawner,
    ) -> Result<Arc<Self>, AuthError> {
        let mut shared: Option<IssuerClients> = None;
        let mut fetcher = || match &shared {
            Some(fetcher) => Ok(fetcher.clone()),
            None => Ok(shared
                .insert(IssuerClients::new(EgressRules::new(egress))?)
                .clone()),
        };
        let issuers = config
            .issuers
            .iter()
            .map(|issuer| Issuer::new(issuer, &mut fetcher).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        // An issuer with introspection may have no keys at all.
        for issuer in issuers.iter().filter(|one| one.introspection.is_none()) {
            issuer.refresh_stale(&tasks);
        }
        let known_scopes = config
            .tool_scopes
            .iter()
            .flat_map(|rule| &rule.scopes)
            .chain(&config.required_scopes)
            .chain(&config.login_scopes)
            .cloned()
            .collect();
        let anonymous = match config.mode {
            config::AuthMode::None => Some(Arc::new(Principal::anonymous())),
            config::AuthMode::OAuth => None,
        };
        Ok(Arc::new(Self {
            anonymous,
            issuers,
            cache: TokenCache::new(),
            refused: RefusedTokens::new(),
            refusal_lines: RefusalLines::default(),
            known_scopes,
            hierarchy: ScopeHierarchy::new(&config.scope_implies),
            callers: config.keeps_tokens.then(CallerTokens::default),
            clock,
            tasks,
        }))
    }

    /// Authenticates the caller of a request from the client address `from` on `endpoint`, and checks the
    /// endpoint's required scopes. A cached token, verified within the last minutes, needs no waiting.
    ///
    /// # Errors
    /// [`DeniedResponse`]: the refusal to send. The request must not be processed any further.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; a fetch of keys that it has started goes on.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        from: IpAddr,
        endpoint: &Endpoint,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        let result = match &self.anonymous {
            Some(anonymous) => return Ok(Arc::clone(anonymous)),
            None => {
                self.authenticate_token(headers, query, from, endpoint)
                    .await
            }
        };
        if let Err(denied) = &result {
            LABELED.auth_refused.add(denied.reason, 1);
        }
        result
    }

    async fn authenticate_token(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        from: IpAddr,
        endpoint: &Endpoint,
    ) -> Result<Arc<Principal>, DeniedResponse> {
        let token = match bearer::find(headers, query) {
            Ok(PresentedToken::Token(token)) => token,
            Ok(PresentedToken::Nothing) => return Err(DeniedResponse::no_token(endpoint)),
            Err(malformed) => return Err(self.refuse_credentials(endpoint, malformed)),
        };
        let key = TokenKey::of(&endpoint.resource, token);
        let now = self.clock.now();
        let principal = match self.recall(&key, now) {
            Some(judged) => {
                COUNTERS.token_cache_hits.add(1);
                judged.map_err(|refusal| self.refuse(token, endpoint, refusal, None))?
            }
            None => Box::pin(self.verify_uncached(token, from, endpoint, key, now)).await?,
        };
        caller_tokens::bring(&principal, token, now);
        let required = &endpoint.required_scopes;
        if required
            .iter()
            .all(|scope| principal.scopes().contains(scope))
        {
            Ok(principal)
        } else {
            Err(self.insufficient_scope(endpoint, &[], &principal))
        }
    }

    /// The cached finding about a token, if it was verified with the issuer's present keys.
    fn recall(
        &self,
        key: &TokenKey,
        now: Duration,
    ) -> Option<Result<Arc<Principal>, TokenRefusal>> {
        let Some(verified) = self.cache.get(key, now) else {
            return self.refused.get(key, now).map(Err);
        };
        let issuer = self.issuers.get(verified.issuer)?;
        let is_current = issuer.generation() == verified.generation;
        is_current.then_some(Ok(verified.principal))
    }

    /// Each issuer, as configured, and why its keys or its answers about tokens cannot be had; `None` while
    /// they can.
    #[cfg(test)]
    fn last_causes(&self) -> impl Iterator<Item = (&str, Option<crate::cause::ErrorCause>)> {
        self.issuers
            .iter()
            .map(|issuer| (issuer.id.as_str(), issuer.last_cause()))
    }

    /// Loads the keys of every issuer and asks those with `introspection` about a made-up token, for `check --online`.
    /// The results are in [`status`](Self::status). Takes 10 s for each 16 issuers at most.
    ///
    /// # Cancel safety
    /// Loading goes on in the background.
    pub async fn ask_issuers(&self) {
        asking::ask_issuers(&self.issuers, &self.tasks).await;
    }

    /// Every issuer for `/status`, in the order of the configuration.
    #[must_use]
    pub fn status(&self) -> Vec<IssuerStatus> {
        let all = self.issuers.iter();
        all.map(|issuer| status::issuer_status(issuer)).collect()
    }

    /// The claim that names the subject in access tokens of `issuer`.
    #[must_use]
    pub fn subject_claim(&self, issuer: &str) -> Option<&str> {
        let found = self.issuers.iter().find(|one| one.id == issuer);
        found.map(|issuer| issuer.subject_claim.as_str())
    }

    /// The time by which tokens are judged, since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The refusal of a call that needs scopes which the caller's token does not grant: names
    /// the endpoint's scopes, those `needed`, and those the token has that our configuration
    /// names, since some clients ask only for what the challenge says (DESIGN §7).
    #[must_use]
    pub fn insufficient_scope(
        &self,
        endpoint: &Endpoint,
        needed: &[String],
        principal: &Principal,
    ) -> DeniedResponse {
        let wanted: Vec<String> = [&endpoint.required_scopes, needed].concat();
        self.note_missing_scope(endpoint, &wanted, principal);
        let kept = principal
            .scopes()
            .iter()
            .filter(|scope| self.known_scopes.contains(*scope));
        let mut all: Vec<String> = Vec::new();
        for scope in endpoint.required_scopes.iter().chain(needed).chain(kept) {
            if !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        DeniedResponse::insufficient_scope(endpoint, &all)
    }
}

fn refuse_malformed(endpoint: &Endpoint, malformed: MalformedCredentials) -> DeniedResponse {
    let error = challenge::ChallengeError {
        status: StatusCode::BAD_REQUEST,
        code: "invalid_request",
        description: malformed.description(),
        reason: malformed.reason(),
    };
    DeniedResponse::refused(endpoint, &error)
}

fn refuse_token(endpoint: &Endpoint, reject: RejectReason) -> DeniedResponse {
    let error = challenge::ChallengeError {
        status: StatusCode::UNAUTHORIZED,
        code: "invalid_token",
        description: reject.description(),
        reason: reject.reason(),
    };
    DeniedResponse::refused(endpoint, &error)
}
