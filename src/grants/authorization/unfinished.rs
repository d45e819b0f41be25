//! `UnfinishedAttempts`: authorizations whose browsers have not come back.

use std::time::Duration;

use moka::sync::Cache;

use crate::vault::{GrantKey, PendingRecord};

/// Principals whose last attempt is remembered.
const MAX_ATTEMPTS: u64 = 10_000;
/// For how long.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The scopes that an authorization asked for, and as which client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedScopes {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) scopes: Vec<String>,
}

impl From<&PendingRecord> for AskedScopes {
    fn from(pending: &PendingRecord) -> Self {
        Self {
            issuer: pending.issuer.clone(),
            client_id: pending.client_id.clone(),
            scopes: pending.scopes.clone(),
        }
    }
}

/// The last attempt of each principal at one upstream, until the browser comes back.
#[derive(Debug)]
pub(super) struct UnfinishedAttempts(Cache<GrantKey, AskedScopes>);

impl Default for UnfinishedAttempts {
    fn default() -> Self {
        let attempts = Cache::builder().max_capacity(MAX_ATTEMPTS);
        Self(attempts.time_to_live(REMEMBERED).build())
    }
}

impl UnfinishedAttempts {
    /// Remembers that the browser of `key` was sent to a server.
    pub(super) fn begun(&self, key: &GrantKey, asked: AskedScopes) {
        self.0.insert(key.clone(), asked);
    }

    /// The last attempt of `key`.
    pub(super) fn get(&self, key: &GrantKey) -> Option<AskedScopes> {
        self.0.get(key)
    }

    /// Forgets the attempt of `key`, whose browser came back or whose end its person has told; returns it.
    pub(super) fn ended(&self, key: &GrantKey) -> Option<AskedScopes> {
        self.0.remove(key)
    }
}
