//! The cache of grants: a call finds its grant here, without a lock and without the database.
//!
//! Grants are read at their first use, not at the start. That an owner has no grant is cached too.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{GrantKey, StoredGrant};
use crate::lock::lock;

/// Cached grants, absent ones included.
const MAX_CACHED: u64 = 100_000;
/// Least time between two last-used stamps of one grant, milliseconds: `used` in the database is exact to this and two
/// minutes, since calls stamp it once a minute and it is written once a minute.
const STAMP_EVERY: i64 = 10 * 60 * 1000;
/// Last-used stamps waiting to be written.
const MAX_STAMPS: usize = 100_000;

pub(super) type CachedGrant = Option<Arc<StoredGrant>>;

/// Grants as last read from the database.
#[derive(Debug)]
pub(super) struct GrantCache {
    grants: moka::sync::Cache<GrantKey, CachedGrant>,
    /// Number of evictions so far, counted once the grant has gone. Compared and changed under `write`, so that a grant
    /// read before an eviction is never cached after it.
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

    /// The cached grant, without a lock: `None` where nothing is cached, `Some(None)` where the owner has no grant.
    pub(super) fn get(&self, key: &GrantKey) -> Option<CachedGrant> {
        self.grants.get(key)
    }

    /// Number of evictions so far. A grant that is read from the cache after this was current at that number.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(super) fn drop_one(&self, key: &GrantKey) {
        let _write = lock(&self.write);
        self.grants.invalidate(key);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The keys of all cached grants, absent ones included.
    pub(super) fn keys(&self) -> Vec<GrantKey> {
        self.grants.iter().map(|(key, _)| (*key).clone()).collect()
    }

    pub(super) fn clear(&self) {
        let _write = lock(&self.write);
        self.grants.invalidate_all();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Caches what was read during `epoch`; skipped after any eviction since, in which case the next call reads again.
    pub(super) fn insert(&self, key: &GrantKey, grant: CachedGrant, epoch: u64) {
        let _write = lock(&self.write);
        if self.epoch.load(Ordering::Relaxed) == epoch {
            self.grants.insert(key.clone(), grant);
        }
    }

    /// Records that a call uses the grant at `now`, milliseconds since the Unix epoch. Takes a lock once in ten minutes
    /// per grant.
    pub(super) fn touch(&self, grant: &StoredGrant, now: i64) {
        if now.saturating_sub(grant.used.load(Ordering::Relaxed)) < STAMP_EVERY {
            return;
        }
        grant.used.store(now, Ordering::Relaxed);
        let mut used = lock(&self.used);
        if used.len() < MAX_STAMPS {
            used.insert(grant.key.clone());
        }
    }

    /// Takes the grants with a waiting last-used stamp.
    pub(super) fn take_used(&self) -> HashSet<GrantKey> {
        std::mem::take(&mut lock(&self.used))
    }
}
