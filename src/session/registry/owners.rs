//! `SessionOwners`: the principals that have sessions, and their quotas over all replicas.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use crate::call::{OwnerKey, Principal};
use crate::session::gateway_task::OwnResults;
use crate::session::subscriptions::UriBytes;
use crate::session::{CallPermits, Session, lock};
use crate::store::events::SessionKey;
use crate::store::quotas::{CallerQuota, QuotaClaim};
use crate::sync::fast_maps::FastDashMap;

static GATEWAY: LazyLock<OwnerKey> = LazyLock::new(|| Principal::gateway().owner());

/// The quotas that replicas share.
#[derive(Debug)]
pub struct SharedQuotas {
    /// The quota of live sessions.
    pub sessions: Arc<CallerQuota>,
    /// The quota of bytes of kept task results.
    pub results: Arc<CallerQuota>,
}

/// Principals with sessions at this replica.
#[derive(Debug)]
pub struct SessionOwners {
    by_key: FastDashMap<OwnerKey, Arc<OwnerSessions>>,
    max_per_principal: usize,
    /// The quotas over all replicas, if there are several.
    in_sum: OnceLock<SharedQuotas>,
}

/// Sessions of one principal, and what is counted over all of them.
#[derive(Debug)]
pub(super) struct OwnerSessions {
    pub(super) sessions: Mutex<HashMap<SessionKey, Arc<Session>>>,
    pub(super) permits: Arc<CallPermits>,
    pub(super) results: Arc<OwnResults>,
    /// Bytes of the URIs that its sessions follow.
    pub(super) uris: Arc<UriBytes>,
}

impl OwnerSessions {
    pub(super) fn new(results: OwnResults) -> Self {
        Self {
            sessions: Mutex::default(),
            permits: Arc::default(),
            results: Arc::new(results),
            uris: Arc::default(),
        }
    }

    /// Whether the entry can be removed: no session is open, no request is about to open one or to wait
    /// for a permit, and no session that ends still keeps results. To be called under the lock of the map, where all clones
    /// are made: sessions in a clone that outlives its entry would not be counted with those in the next entry.
    pub(super) fn is_unused(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1
            && lock(&this.sessions).is_empty()
            && this.permits.are_idle()
            && this.results.is_free()
    }
}

impl SessionOwners {
    /// An empty list. Each principal may have `max_per_principal` live sessions.
    pub(super) fn new(max_per_principal: usize) -> Self {
        Self {
            by_key: FastDashMap::default(),
            max_per_principal,
            in_sum: OnceLock::new(),
        }
    }

    /// Applies `quotas` to callers that open their first session from now on. Only the first call has an effect.
    pub fn share_quotas(&self, quotas: SharedQuotas) {
        self.in_sum.get_or_init(|| quotas);
    }

    /// Whether quotas count the sessions of all replicas.
    pub(super) fn are_shared(&self) -> bool {
        self.in_sum.get().is_some()
    }

    /// Claims a place for a session of `owner` until it is opened. Waits for the shared store for a second at most, if the
    /// caller has so many sessions that those at other replicas matter. `None` if the quota is not shared.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim_place(&self, owner: OwnerKey) -> Option<QuotaClaim> {
        let quota = self.shared_quota(owner)?;
        let held = || {
            let found = self.by_key.get(&owner).map(|found| Arc::clone(&found));
            found.map_or(0, |found| lock(&found.sessions).len())
        };
        Some(quota.claim(owner, 1, held).await)
    }

    /// The quota of a caller's sessions over all replicas. Sessions of the gateway itself are not shared.
    fn shared_quota(&self, owner: OwnerKey) -> Option<&Arc<CallerQuota>> {
        let quotas = self.in_sum.get()?;
        (owner != *GATEWAY).then_some(&quotas.sessions)
    }

    /// Sessions that `owner` may have here.
    pub(super) fn most_sessions(&self, owner: OwnerKey) -> usize {
        let most = self.max_per_principal;
        let quota = self.shared_quota(owner);
        quota.map_or(most, |quota| quota.most(owner).min(most))
    }

    /// Notes how many sessions `owner` has here, with the one that was claimed by `claim`; under the lock of its sessions.
    pub(super) fn count_sessions(&self, owner: OwnerKey, count: usize, claim: Option<&QuotaClaim>) {
        if let Some(claim) = claim {
            claim.counted(|| count);
        } else if let Some(quota) = self.shared_quota(owner) {
            quota.changed(owner, || count);
        }
    }

    /// Asks the shared store again how many sessions a refused caller has at other replicas.
    pub(super) fn ask_others(&self, owner: OwnerKey) {
        if let Some(quota) = self.shared_quota(owner) {
            quota.ask(owner);
        }
    }

    /// The live sessions of a principal.
    #[must_use]
    pub fn sessions(&self, owner: OwnerKey) -> Vec<Arc<Session>> {
        let found = self.by_key.get(&owner).map(|found| Arc::clone(&found));
        found.map_or_else(Vec::new, |found| {
            lock(&found.sessions).values().map(Arc::clone).collect()
        })
    }

    /// The principals that have live sessions.
    #[must_use]
    pub fn all(&self) -> Vec<OwnerKey> {
        self.by_key.iter().map(|found| *found.key()).collect()
    }

    /// The sessions of a principal, which may have none yet. While the caller keeps them, the reaper does too ([`OwnerSessions::is_unused`]).
    pub(super) fn enter(&self, key: OwnerKey) -> Arc<OwnerSessions> {
        let new = || {
            let in_sum = self.in_sum.get();
            let results = in_sum.map(|quotas| (Arc::clone(&quotas.results), key));
            Arc::new(OwnerSessions::new(OwnResults::new(results)))
        };
        Arc::clone(&self.by_key.entry(key).or_insert_with(new))
    }

    /// Takes a session from those of its principal, which is forgotten with its last one.
    pub(super) fn remove(&self, key: OwnerKey, session: SessionKey) {
        let owner = self.by_key.get(&key).map(|owner| Arc::clone(&owner));
        if let Some(owner) = owner {
            let mut sessions = lock(&owner.sessions);
            sessions.remove(&session);
            self.count_sessions(key, sessions.len(), None);
        }
        self.by_key
            .remove_if(&key, |_, owner| OwnerSessions::is_unused(owner));
    }

    /// Forgets principals without sessions.
    pub(super) fn sweep(&self) {
        self.by_key
            .retain(|_, owner| !OwnerSessions::is_unused(owner));
    }
}
