//! Quotas of callers that hold in sum over all replicas, where there are several.

use std::sync::{Arc, LazyLock};

use super::SessionRegistry;
use crate::call::{OwnerKey, Principal};
use crate::session::lock;
use crate::store::quotas::{CallerQuota, QuotaClaim};

static GATEWAY: LazyLock<OwnerKey> = LazyLock::new(|| Principal::gateway().owner());

/// The quotas that replicas share.
#[derive(Debug)]
pub struct SharedQuotas {
    /// Of live sessions.
    pub sessions: Arc<CallerQuota>,
    /// Of bytes of kept task results.
    pub results: Arc<CallerQuota>,
}

impl SessionRegistry {
    /// Has quotas hold in sum for callers that open their first session from now on. Only the first call has an effect.
    pub fn share_quotas(&self, quotas: SharedQuotas) {
        self.in_sum.get_or_init(|| quotas);
    }

    /// Claims a place for a session of `owner`, until it is opened: waits for the shared store where the caller opens so
    /// many sessions that those of other replicas count, a second at most. `None` where the quota is this replica's own.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim_place(&self, owner: OwnerKey) -> Option<QuotaClaim> {
        let quota = self.shared_quota(owner)?;
        let held = || {
            let found = self.owners.get(&owner).map(|found| Arc::clone(&found));
            found.map_or(0, |found| lock(&found.sessions).len())
        };
        Some(quota.claim(owner, 1, held).await)
    }

    /// The quota of a caller's sessions over all replicas. The gateway's own sessions are each replica's for itself.
    fn shared_quota(&self, owner: OwnerKey) -> Option<&Arc<CallerQuota>> {
        let quotas = self.in_sum.get()?;
        (owner != *GATEWAY).then_some(&quotas.sessions)
    }

    /// Sessions that `owner` may have here.
    pub(super) fn most_sessions(&self, owner: OwnerKey) -> usize {
        let most = self.settings.max_per_principal;
        let quota = self.shared_quota(owner);
        quota.map_or(most, |quota| quota.most(owner).min(most))
    }

    /// Notes how many sessions `owner` has here; under the lock of its sessions.
    pub(super) fn count_sessions(&self, owner: OwnerKey, count: usize) {
        if let Some(quota) = self.shared_quota(owner) {
            quota.changed(owner, || count);
        }
    }

    /// Looks once more what other replicas have of a caller that was refused.
    pub(super) fn ask_others(&self, owner: OwnerKey) {
        if let Some(quota) = self.shared_quota(owner) {
            quota.ask(owner);
        }
    }
}
