//! The cache of grants: a call finds its grant here, without a lock and without the database.
//!
//! Grants are read when they are first asked for, not at the start. An owner without a grant is cached too.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{GrantKey, StoredGrant, Vault};
use crate::database::DatabaseError;
use crate::lock::lock;

/// Grants in memory, absent ones included.
const MAX_CACHED: u64 = 100_000;
/// Between two stamps of one grant, milliseconds: `used` in the database is exact to this and a minute.
const STAMP_EVERY: i64 = 10 * 60 * 1000;
/// Stamps that wait to be written.
const MAX_STAMPS: usize = 100_000;

type CachedGrant = Option<Arc<StoredGrant>>;

/// Grants as last read.
#[derive(Debug)]
pub(super) struct GrantCache {
    grants: moka::sync::Cache<GrantKey, CachedGrant>,
    /// Counts drops. Read and changed under `write`, so that no grant is cached that was read before a drop.
    epoch: AtomicU64,
    write: Mutex<()>,
    /// Grants whose stamp in the database is old.
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

    pub(super) fn clear(&self) {
        let _write = lock(&self.write);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.grants.invalidate_all();
    }

    /// Caches what was read since `epoch`; not after a drop of any grant, which a busy cache makes up for at the next
    /// call.
    fn insert(&self, key: &GrantKey, grant: CachedGrant, epoch: u64) {
        let _write = lock(&self.write);
        if self.epoch.load(Ordering::Relaxed) == epoch {
            self.grants.insert(key.clone(), grant);
        }
    }

    /// Takes the grants that were used since the last time.
    pub(super) fn take_used(&self) -> HashSet<GrantKey> {
        std::mem::take(&mut lock(&self.used))
    }
}

impl Vault {
    /// The grant, if it is cached: `Some(None)` where it is known that there is none. No lock, no waiting.
    #[must_use]
    pub fn cached_grant(&self, key: &GrantKey) -> Option<Option<Arc<StoredGrant>>> {
        self.0.cache.grants.get(key)
    }

    /// The grant, from the cache or else from the database. It is as new as the database's, but for changes of other
    /// processes of the last [5 s](Vault::keep).
    ///
    /// # Errors
    /// It is not cached and the database fails.
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

    /// Notes that a call uses the grant now. Takes a lock once in ten minutes per grant; the database is written by
    /// [`keep`](Vault::keep).
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
