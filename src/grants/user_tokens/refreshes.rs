//! `TokenRefreshes`: the refreshes of all principals at one upstream, one at a time for each grant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use moka::sync::Cache;
use tokio::time::Instant;

use super::super::failure::TokenFailure;
use super::super::source_state::{Outcome, pause};
use super::super::user_account::UserAccount;
use super::held_grants::{HeldGrants, MAX_HELD};
use super::refresh::{RefreshCause, RefreshFailure, UnstoredGrant, refresh};
use super::state::PrincipalState;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::lock::lock;
use crate::secret::Secret;
use crate::sync::single_flight::{Follower, Joined, SingleFlight};
use crate::telemetry::chain::chain;
use crate::telemetry::metrics::grant_refresh_ended;
use crate::telemetry::request_tag;
use crate::telemetry::trace;
use crate::vault::{GrantKey, StoredGrant};

/// Refreshes the grants of principals, and holds the headers made from them.
#[derive(Debug)]
pub(super) struct TokenRefreshes {
    account: Arc<UserAccount>,
    pub(super) held: HeldGrants,
    states: Cache<GrantKey, Arc<Mutex<PrincipalState>>>,
    running: SingleFlight<GrantKey, Outcome>,
    /// Grants whose next token waits for the database, with the failure for those who need it.
    unstored: Mutex<HashMap<GrantKey, TokenFailure>>,
}

impl TokenRefreshes {
    pub(super) fn new(account: Arc<UserAccount>) -> Self {
        Self {
            held: HeldGrants::new(Arc::clone(&account)),
            account,
            states: Cache::new(MAX_HELD),
            running: SingleFlight::default(),
            unstored: Mutex::default(),
        }
    }

    /// The token requests of `key`.
    pub(super) fn state(&self, key: &GrantKey) -> Arc<Mutex<PrincipalState>> {
        self.states.get_with_by_ref(key, Arc::default)
    }

    /// The token requests of `key`, where there were any.
    pub(super) fn known_state(&self, key: &GrantKey) -> Option<Arc<Mutex<PrincipalState>>> {
        self.states.get(key)
    }

    /// The refresh of `key` that is under way.
    pub(super) fn running(&self, key: &GrantKey) -> Option<Follower<Outcome>> {
        self.running.follow(key)
    }

    /// Starts a refresh in the background, unless one failed a moment ago.
    pub(super) fn refresh_ahead(self: &Arc<Self>, grant: &StoredGrant) {
        if lock(&self.state(&grant.key))
            .source
            .current_failure(None)
            .is_none()
        {
            drop(self.start(grant.key.clone(), grant, RefreshCause::Age));
        }
    }

    /// Waits for the refresh of the grant `seen`; starts one if none is under way.
    pub(super) async fn refreshed(
        self: &Arc<Self>,
        key: GrantKey,
        seen: &StoredGrant,
        cause: RefreshCause,
    ) -> Outcome {
        let outcome = self.start(key, seen, cause).result().await;
        outcome.unwrap_or_else(|| Err(TokenFailure::unfinished()))
    }

    fn start(
        self: &Arc<Self>,
        key: GrantKey,
        seen: &StoredGrant,
        cause: RefreshCause,
    ) -> Follower<Outcome> {
        match self.running.join(key.clone()) {
            Joined::Join(follower) => follower,
            Joined::Lead(leader) => {
                let follower = leader.follow();
                let own = Arc::clone(self);
                let seen = seen.record.access_token.clone();
                let refreshed = trace::keep(async move {
                    let outcome = own.run(&key, (seen.as_ref(), cause)).await;
                    leader.complete(outcome);
                });
                // A drain waits for this task: the response may hold the only copy of a refresh token.
                self.account.tasks.spawn(request_tag::keep(refreshed));
                follower
            }
        }
    }

    async fn run(
        self: &Arc<Self>,
        key: &GrantKey,
        seen: (Option<&Secret>, RefreshCause),
    ) -> Outcome {
        // The server has ended the refresh token that the database has.
        let unstored = lock(&self.unstored).get(key).cloned();
        if let Some(failure) = unstored {
            return Err(failure);
        }
        let began = Instant::now();
        let refreshed = refresh(&self.account, key, seen).await;
        let is_audited = matches!(refreshed, Err(RefreshFailure::Ended(_)));
        let outcome = match refreshed {
            Ok(()) => self.read(key).await,
            Err(RefreshFailure::Ended(failure) | RefreshFailure::Failed(failure)) => Err(failure),
            Err(RefreshFailure::Unstored(unstored, failure)) => {
                self.store_later(*unstored, failure.clone());
                Err(failure)
            }
        };
        let word = outcome
            .as_ref()
            .map_or_else(|failure| failure.outcome, |_| "ok");
        grant_refresh_ended(&key.upstream, word, began.elapsed());
        let state = self.state(key);
        let state = &mut lock(&state).source;
        match &outcome {
            Ok(_) => {
                state.failure = None;
                state.failures = 0;
            }
            Err(failure) => {
                let pause = pause(failure, state.failures);
                // One record for a server that is down, however often it is asked.
                if state.failures == 0 && !is_audited {
                    let record =
                        AccountRecord::new(AccountEvent::Refreshed, key.owner, &key.upstream);
                    let record = record.reason(AuditOutcome::Failed, failure.outcome);
                    self.account.audit.account(record);
                }
                // The failures of the next connection are counted, and audited, from the first one on.
                state.failures = if is_audited {
                    0
                } else {
                    state.failures.saturating_add(1)
                };
                state.failure = Some((failure.clone(), Instant::now() + pause, None));
                self.account.log.failed(failure, Some(key.owner));
            }
        }
        outcome
    }

    /// Has the next token of a grant written once the database answers again.
    fn store_later(self: &Arc<Self>, unstored: UnstoredGrant, failure: TokenFailure) {
        let own = Arc::clone(self);
        let why = chain(&failure);
        lock(&self.unstored).insert(unstored.key.clone(), failure);
        self.account.tasks.spawn(async move {
            unstored.store_later(&own.account, &why).await;
            lock(&own.unstored).remove(&unstored.key);
            lock(&own.state(&unstored.key)).source.failure = None;
        });
    }

    /// The token of the grant after a refresh.
    async fn read(&self, key: &GrantKey) -> Outcome {
        let grant = self.account.vault.grant(key).await?;
        let held = grant.map(|grant| self.held.of(&grant));
        let token = held.and_then(|held| held.token.clone());
        let good = token.filter(|token| !token.has_ended());
        good.ok_or_else(TokenFailure::not_connected)
    }
}
