//! `UnfinishedAttempts`: authorizations whose browsers have not come back.

use std::time::Duration;

use moka::sync::Cache;

use crate::vault::{GrantKey, PendingRecord};

/// Bytes of the attempts that are remembered. A hostile upstream names 4 KiB of scopes, of a few letters each.
const MAX_BYTES: u64 = 8 << 20;
/// What an attempt counts beside its texts, in bytes, and what each of its scopes does.
const ATTEMPT_BYTES: usize = 256;
const SCOPE_BYTES: usize = 48;
/// How long an attempt is remembered.
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

/// What an attempt counts in the cache, bytes.
fn weight(_: &GrantKey, asked: &AskedScopes) -> u32 {
    let scopes = asked.scopes.iter();
    let scopes: usize = scopes.map(|scope| scope.len() + SCOPE_BYTES).sum();
    let bytes = scopes + asked.issuer.len() + asked.client_id.len() + ATTEMPT_BYTES;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The last attempt of each principal at one upstream, until the browser comes back.
#[derive(Debug)]
pub(super) struct UnfinishedAttempts(Cache<GrantKey, AskedScopes>);

impl Default for UnfinishedAttempts {
    fn default() -> Self {
        let attempts = Cache::builder().max_capacity(MAX_BYTES).weigher(weight);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    #[test]
    fn attempts_with_many_scopes_are_bounded_by_bytes() {
        let attempts = UnfinishedAttempts::default();
        let asked = AskedScopes {
            issuer: "https://as.test".to_owned(),
            client_id: "client".to_owned(),
            scopes: vec!["a".to_owned(); 2048],
        };
        for number in 0..200 {
            let key = GrantKey::new(Principal::anonymous().owner(), &format!("up{number}"));
            attempts.begun(&key, asked.clone());
        }
        attempts.0.run_pending_tasks();
        assert!((1..100).contains(&attempts.0.entry_count()));
    }
}
