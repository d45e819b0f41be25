//! `HeldGrants`: headers made from grants, cached until the grant changes.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::super::held_token::HeldToken;
use super::super::user_account::UserAccount;
use crate::clock::{Clock as _, SystemClock};
use crate::vault::{GrantKey, StoredGrant};

/// Principals whose headers are cached.
pub(super) const MAX_HELD: u64 = 10_000;

/// Headers built from one version of a grant.
#[derive(Debug)]
pub(super) struct HeldGrant {
    pub(super) version: i64,
    /// `None` where the configuration no longer allows to send it.
    pub(super) token: Option<Arc<HeldToken>>,
    /// Whether the grant holds a refresh token.
    pub(super) is_refreshable: bool,
}

/// The headers of all principals at one upstream.
#[derive(Debug)]
pub(super) struct HeldGrants {
    account: Arc<UserAccount>,
    cache: Cache<GrantKey, Arc<HeldGrant>>,
}

impl HeldGrants {
    pub(super) fn new(account: Arc<UserAccount>) -> Self {
        Self {
            account,
            cache: Cache::new(MAX_HELD),
        }
    }

    /// What is held of the grant of `key`, of whatever version.
    pub(super) fn get(&self, key: &GrantKey) -> Option<Arc<HeldGrant>> {
        self.cache.get(key)
    }

    pub(super) fn forget(&self, key: &GrantKey) {
        self.cache.invalidate(key);
    }

    /// What is held of `grant`, made where the grant is another one by now.
    pub(super) fn of(&self, grant: &StoredGrant) -> Arc<HeldGrant> {
        if let Some(held) = self.cache.get(&grant.key)
            && held.version == grant.version
        {
            return held;
        }
        let record = &grant.record;
        let placed = self.account.placed(record);
        let ends = record.access_ends.map(Duration::from_millis);
        let lasts = ends.map(|ends| ends.saturating_sub(SystemClock.now()));
        let scopes = record.scopes.clone();
        let is_refreshable = record.refresh_token.is_some() && record.token_endpoint.is_some();
        let token = placed.map(|placed| {
            let token = HeldToken::new(placed, scopes, lasts, None).of(grant.state.connection);
            let token = if is_refreshable {
                token
            } else {
                token.unrefreshed()
            };
            Arc::new(match grant.state.refused {
                None => token,
                Some(_) => token.on_trial(),
            })
        });
        let held = Arc::new(HeldGrant {
            version: grant.version,
            token,
            is_refreshable,
        });
        self.cache.insert(grant.key.clone(), Arc::clone(&held));
        held
    }
}
