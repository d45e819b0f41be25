//! The sessions that a link or a child serves: no session evicts a child of its own.

use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::sync::keyed_counter::KeyedCounter;

/// A session, as the store of events knows it.
pub type HolderKey = [u8; 16];

/// The sessions of a link or of a child, with a count of uses for each. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SessionHolders(Arc<Mutex<KeyedCounter<HolderKey>>>);

impl SessionHolders {
    /// Held by one session.
    #[must_use]
    pub fn of(holder: HolderKey) -> Self {
        let holders = Self::default();
        holders.add(holder);
        holders
    }

    /// Adds a use by `holder`.
    pub fn add(&self, holder: HolderKey) {
        lock(&self.0).add(holder);
    }

    /// Removes a use by `holder`.
    pub fn remove(&self, holder: &HolderKey) {
        lock(&self.0).remove(holder);
    }

    /// Whether any session holds both.
    #[must_use]
    pub fn shares(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return lock(&self.0).holders() > 0;
        }
        // Locks are held one at a time: two comparisons in opposite order cannot deadlock.
        let own: Vec<HolderKey> = lock(&self.0).keys().copied().collect();
        let other = lock(&other.0);
        own.iter().any(|holder| other.of(holder) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_shared_until_they_leave() {
        let (pool, own, stranger) = (
            SessionHolders::default(),
            SessionHolders::of([1; 16]),
            SessionHolders::of([2; 16]),
        );
        assert!(!pool.shares(&own) && !pool.shares(&pool));
        pool.add([1; 16]);
        pool.add([1; 16]);
        assert!(pool.shares(&own) && own.shares(&pool) && !pool.shares(&stranger));
        pool.remove(&[1; 16]);
        assert!(pool.clone().shares(&own));
        pool.remove(&[1; 16]);
        assert!(!pool.shares(&own));
    }
}
