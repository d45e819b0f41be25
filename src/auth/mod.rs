//! The resource server: who is calling, and the refusal when nobody we know is.
//!
//! Spec: RFC 6750, RFC 9068, RFC 9728; MCP 2025-11-25, Authorization; SPEC §8. It knows tokens and
//! scopes of endpoints; what a caller may do with single tools is `policy`'s.

mod bearer;
mod cache;
mod challenge;
mod claims;
mod discovery;
mod fetch;
mod issuer;
mod jwt;
mod key_set;
mod metadata;
#[cfg(test)]
mod samples;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use self::bearer::{Malformed, Presented};
use self::cache::{TokenCache, TokenKey, Verified};
pub use self::challenge::Denied;
use self::fetch::Fetcher;
use self::issuer::Issuer;
use self::jwt::{Reject, Terms, Token};
pub use self::metadata::metadata;
use self::scope::Hierarchy;
use crate::call::Principal;
use crate::clock::SharedClock;
use crate::config;
use crate::endpoint::Endpoint;
use crate::lifecycle::Tasks;
use crate::telemetry::metrics::{COUNTERS, LABELED};

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// A key file is missing or holds no keys.
    #[error("the keys of {issuer} cannot be loaded")]
    Keys {
        /// Whose keys.
        issuer: String,
        /// What is wrong with them.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The client for issuers' documents cannot be built: no trust anchors, for instance.
    #[error("no client for the documents of issuers")]
    Client(#[from] reqwest::Error),
}

/// Tells who is calling.
#[derive(Debug)]
pub struct Authenticator {
    /// Everybody, when no token is asked for.
    anonymous: Option<Arc<Principal>>,
    issuers: Vec<Arc<Issuer>>,
    cache: TokenCache,
    /// Scopes that the configuration names outside endpoints.
    known_scopes: BTreeSet<String>,
    hierarchy: Hierarchy,
    clock: SharedClock,
    tasks: Tasks,
}

impl Authenticator {
    /// Reads key files, and starts to fetch the keys of the other issuers in the background. Needs
    /// a Tokio runtime.
    ///
    /// # Errors
    /// A key file cannot be used, or this machine has no trust anchors.
    pub fn new(
        config: &config::Auth,
        clock: SharedClock,
        tasks: Tasks,
    ) -> Result<Arc<Self>, AuthError> {
        let mut shared: Option<Fetcher> = None;
        let mut fetcher = || match &shared {
            Some(fetcher) => Ok(fetcher.clone()),
            None => Ok(shared.insert(Fetcher::new()?).clone()),
        };
        let issuers = config
            .issuers
            .iter()
            .map(|issuer| Issuer::new(issuer, &mut fetcher).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        for issuer in &issuers {
            issuer.refresh_stale(&tasks);
        }
        let known_scopes = config
            .tool_scopes
            .iter()
            .flat_map(|rule| &rule.scopes)
            .chain(&config.required_scopes)
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
            known_scopes,
            hierarchy: Hierarchy::new(&config.scope_implies),
            clock,
            tasks,
        }))
    }

    /// Names the caller of a request on `endpoint`, and checks the scopes that every request there
    /// needs. A token that was verified within the last minutes is not verified again, and then
    /// nothing is waited for.
    ///
    /// # Errors
    /// The request has to be refused as [`Denied`] says; nothing else of it may be looked at.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; a fetch of keys that it has started goes on.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        endpoint: &Endpoint,
    ) -> Result<Arc<Principal>, Denied> {
        let result = match &self.anonymous {
            Some(anonymous) => return Ok(Arc::clone(anonymous)),
            None => self.judge(headers, query, endpoint).await,
        };
        if let Err(denied) = &result {
            LABELED.auth_refused.add(denied.reason, 1);
        }
        result
    }

    async fn judge(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        endpoint: &Endpoint,
    ) -> Result<Arc<Principal>, Denied> {
        let token = match bearer::find(headers, query) {
            Ok(Presented::Token(token)) => token,
            Ok(Presented::Nothing) => return Err(Denied::no_token(endpoint)),
            Err(malformed) => return Err(refuse_malformed(endpoint, malformed)),
        };
        let key = TokenKey::of(&endpoint.name, token);
        let now = self.clock.now();
        let principal = match self.recall(&key, now) {
            Some(principal) => {
                COUNTERS.token_cache_hits.add(1);
                principal
            }
            None => Box::pin(self.verify_anew(token, endpoint, key, now)).await?,
        };
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

    /// A caller whose token was verified with keys that are still the issuer's.
    fn recall(&self, key: &TokenKey, now: Duration) -> Option<Arc<Principal>> {
        let verified = self.cache.get(key, now)?;
        let issuer = self.issuers.get(verified.issuer)?;
        (issuer.generation() == verified.generation).then_some(verified.principal)
    }

    async fn verify_anew(
        &self,
        token: &[u8],
        endpoint: &Endpoint,
        key: TokenKey,
        now: Duration,
    ) -> Result<Arc<Principal>, Denied> {
        COUNTERS.token_cache_misses.add(1);
        let token =
            bearer::b64token(token).ok_or_else(|| refuse_malformed(endpoint, Malformed::Syntax))?;
        match self.verify(token, endpoint, now).await {
            Ok(verified) => {
                let principal = Arc::clone(&verified.principal);
                self.cache.put(key, verified, now);
                Ok(principal)
            }
            Err(Failure::Rejected(reject)) => Err(refuse_token(endpoint, reject)),
            Err(Failure::NoKeys) => Err(Denied::keys_unavailable()),
        }
    }

    async fn verify(
        &self,
        token: &str,
        endpoint: &Endpoint,
        now: Duration,
    ) -> Result<Verified, Failure> {
        let token = Token::read(token)?;
        let claims = token.claims()?;
        // The claim picks whose rules and keys apply; it is believed once they agree. SPEC A-21
        let named = claims.text("iss").map_err(Reject::from)?;
        let (position, issuer) = self
            .issuers
            .iter()
            .enumerate()
            .find(|(_, issuer)| Some(issuer.id.as_str()) == named.as_deref())
            .filter(|(_, issuer)| metadata::accepts_issuer(endpoint, &issuer.id))
            .ok_or(Reject::Issuer)?;
        let terms = Terms {
            issuer: &issuer.id,
            resource: &endpoint.resource,
            audiences: [&endpoint.audiences, &issuer.audiences],
            subject_claim: &issuer.subject_claim,
            hierarchy: &self.hierarchy,
            now: now.as_secs_f64(),
        };
        let principal = jwt::check(&token.header, &claims, &terms)?;
        let generation = self.verify_signature(issuer, &token).await?;
        Ok(Verified {
            principal: Arc::new(principal),
            issuer: position,
            generation,
        })
    }

    /// Verifies the signature, if need be with keys fetched for it, and tells their generation.
    async fn verify_signature(
        &self,
        issuer: &Arc<Issuer>,
        token: &Token<'_>,
    ) -> Result<u64, Failure> {
        issuer.refresh_stale(&self.tasks);
        // Read before the keys: if they change in between, the entry is stale from the start.
        let generation = issuer.generation();
        if let Some(keys) = issuer.keys() {
            match keys.set.verify(token) {
                Err(Reject::UnknownKey) => {}
                result => return Ok(result.map(|()| generation)?),
            }
        }
        issuer.refresh(&self.tasks).await;
        let generation = issuer.generation();
        let keys = issuer.keys().ok_or(Failure::NoKeys)?;
        Ok(keys.set.verify(token).map(|()| generation)?)
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
    ) -> Denied {
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
        Denied::insufficient_scope(endpoint, &all)
    }
}

/// Why a token was not verified.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Rejected(Reject),
    NoKeys,
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Self::Rejected(reject)
    }
}

fn refuse_malformed(endpoint: &Endpoint, malformed: Malformed) -> Denied {
    let error = challenge::Error {
        status: StatusCode::BAD_REQUEST,
        code: "invalid_request",
        description: malformed.description(),
        reason: malformed.reason(),
    };
    Denied::refused(endpoint, &error)
}

fn refuse_token(endpoint: &Endpoint, reject: Reject) -> Denied {
    let error = challenge::Error {
        status: StatusCode::UNAUTHORIZED,
        code: "invalid_token",
        description: reject.description(),
        reason: reject.reason(),
    };
    Denied::refused(endpoint, &error)
}
