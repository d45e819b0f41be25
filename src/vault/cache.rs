//! The cache of grants: a call finds its grant here, without a lock and without the database.
//!
//! Grants are read at their first use, not at the start. That an owner has no grant is cached too.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{GrantKey, StoredGrant};
use crate::call::OwnerKey;
use crate::lock::lock;

/// Cached grants, absent ones included.
const MAX_CACHED: u64 = 100_000;
/// Groups of owners by their digests. A change of one account has the others of its group looked up once more.
const GROUPS: usize = 1024;
/// Least time between two last-used stamps of one grant, milliseconds: `used` in the database is exact to this and two
/// minutes, since calls stamp it once a minute and it is written once a minute.
const STAMP_EVERY: i64 = 10 * 60 * 1000;
/// Last-used stamps waiting to be written.
const MAX_STAMPS: usize = 100_000;

pub(super) type CachedGrant = Option<Arc<StoredGrant>>;

fn group(owner: OwnerKey) -> usize {
    let [one, two, ..] = *owner.bytes();
    usize::from(u16::from_le_bytes([one, two])) % GROUPS
}

/// Grants as last read from the database.
#[derive(Debug)]
pub(super) struct GrantCache {
    grants: moka::sync::Cache<GrantKey, CachedGrant>,
    /// Number of evictions so far. Read and changed under `write`, so that a grant read before an eviction is never
    /// cached after it.
    epoch: AtomicU64,
    /// Number of evictions so far of the grants of each group of owners.
    generations: Box<[AtomicU64]>,
    write: Mutex<()>,
    /// Grants with a last-used stamp waiting to be written.
    used: Mutex<HashSet<GrantKey>>,
}

impl GrantCache {
    pub(super) fn new() -> Self {
        Self {
            grants: moka::sync::Cache::new(MAX_CACHED),
            epoch: AtomicU64::new(0),
            generations: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            write: Mutex::default(),
            used: Mutex::default(),
        }
    }

    /// The cached grant, without a lock: `None` where nothing is cached, `Some(None)` where the owner has no grant.
    pub(super) fn get(&self, key: &GrantKey) -> Option<CachedGrant> {
        self.grants.get(key)
    }

    /// Number of evictions so far.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Goes up whenever a grant of `owner` was evicted, or one of the few others in its group. What is read from the cache
    /// after this was current at that number. No lock.
    pub(super) fn generation(&self, owner: OwnerKey) -> u64 {
        let generation = self.generations.get(group(owner));
        generation.map_or(0, |generation| generation.load(Ordering::Acquire))
    }

    pub(super) fn drop_one(&self, key: &GrantKey) {
        let _write = lock(&self.write);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.grants.invalidate(key);
        // Last: nothing that is read under the new number is the evicted grant.
        if let Some(generation) = self.generations.get(group(key.owner)) {
            generation.fetch_add(1, Ordering::Release);
        }
    }

    /// The keys of all cached grants, absent ones included.
    pub(super) fn keys(&self) -> Vec<GrantKey> {
        self.grants.iter().map(|(key, _)| (*key).clone()).collect()
    }

    pub(super) fn clear(&self) {
        let _write = lock(&self.write);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.grants.invalidate_all();
        for generation in &self.generations {
            generation.fetch_add(1, Ordering::Release);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn owner(subject: &str) -> OwnerKey {
        Principal::new("issuer", subject, "", Vec::new(), None).owner()
    }

    #[test]
    fn eviction_is_counted_for_its_owner() {
        let (cache, alice, bob) = (GrantCache::new(), owner("alice"), owner("bob"));
        let before = [alice, bob].map(|owner| cache.generation(owner));
        cache.drop_one(&GrantKey::new(alice, "up"));
        assert_ne!(cache.generation(alice), before[0]);
        assert_eq!(cache.generation(bob), before[1]);
    }

    // Calls may remember grants that the cache has no more.
    #[test]
    fn eviction_of_everything_is_counted_for_all() {
        let (cache, alice) = (GrantCache::new(), owner("alice"));
        let before = cache.generation(alice);
        cache.clear();
        assert_ne!(cache.generation(alice), before);
    }
}
