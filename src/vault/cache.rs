//! The cache of grants: a call finds its grant here, without a lock and without the database.
//!
//! Grants are read at their first use, not at the start. That an owner has no grant is cached too.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{GrantKey, StoredGrant, Vault};
use crate::database::DatabaseError;
use crate::lock::lock;

/// Cached grants, absent ones included.
const MAX_CACHED: u64 = 100_000;
/// Least time between two last-used stamps of one grant, milliseconds: `used` in the database is exact to this and a
/// minute.
const STAMP_EVERY: i64 = 10 * 60 * 1000;
/// Last-used stamps waiting to be written.
const MAX_STAMPS: usize = 100_000;

type CachedGrant = Option<Arc<StoredGrant>>;

/// Grants as last read from the database.
#[derive(Debug)]
pub(super) struct GrantCache {
    grants: moka::sync::Cache<GrantKey, CachedGrant>,
    /// Number of evictions so far. Read and changed under `write`, so that a grant read before an eviction is never
    /// cached after it.
    epoch: AtomicU64,
    write: Mutex<()>,
    /// Grants with a last-used stamp waiting to be written.
    used: Mutex<HashSet<GrantKey>>,
}

impl GrantCache {
    pub(super) fn new() -> Self {
        Self {
            grants: moka::sync::Cache::new(MAX_CACHED),
            epoch: AtomicU64::new(0),
            write: Mutex::default(),
            used: Mutex::default(),
        }
    }

    pub(super) fn drop_one(&self, key: &GrantKey) {
        let _write = lock(&self.write);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.grants.invalidate(key);
    }

    /// The keys of all cached grants, absent ones included.
    pub(super) fn keys(&self) -> Vec<GrantKey> {
        self.grants.iter().map(|(key, _)| (*key).clone()).collect()
    }

    pub(super) fn clear(&self) {
        let _write = lock(&self.write);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.grants.invalidate_all();
    }

    /// Caches what was read during `epoch`; skipped after any eviction since, in which case the next call reads again.
    fn insert(&self, key: &GrantKey, grant: CachedGrant, epoch: u64) {
        let _write = lock(&self.write);
        if self.epoch.load(Ordering::Relaxed) == epoch {
            self.grants.insert(key.clone(), grant);
        }
    }

    /// Takes the grants with a waiting last-used stamp.
    pub(super) fn take_used(&self) -> HashSet<GrantKey> {
        std::mem::take(&mut lock(&self.used))
    }
}

impl Vault {
    /// The cached grant, without lock and without waiting: `None` where nothing is cached, `Some(None)` where the owner
    /// has no grant.
    #[must_use]
    pub fn cached_grant(&self, key: &GrantKey) -> Option<Option<Arc<StoredGrant>>> {
        self.0.cache.grants.get(key)
    }

    /// The grant, from the cache or else from the database. Changes by other processes show up within [5
    /// s](Vault::follow_changes).
    ///
    /// # Errors
    /// The grant is not cached and the database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn grant(&self, key: &GrantKey) -> Result<Option<Arc<StoredGrant>>, DatabaseError> {
        if let Some(cached) = self.cached_grant(key) {
            return Ok(cached);
        }
        let epoch = self.0.cache.epoch.load(Ordering::Relaxed);
        let grant = self.read_grant(key).await?.map(Arc::new);
        self.0.cache.insert(key, grant.clone(), epoch);
        Ok(grant)
    }

    /// Records that a call uses the grant now. Takes a lock once in ten minutes per grant; [`keep`](Vault::keep) writes
    /// to the database.
    pub fn touch(&self, grant: &StoredGrant) {
        let now = self.now();
        if now.saturating_sub(grant.used.load(Ordering::Relaxed)) < STAMP_EVERY {
            return;
        }
        grant.used.store(now, Ordering::Relaxed);
        let mut used = lock(&self.0.cache.used);
        if used.len() < MAX_STAMPS {
            used.insert(grant.key.clone());
        }
    }
}
