//! The sessions that a link or a child serves: no session evicts a child of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// A session, as the store of events knows it.
pub type HolderKey = [u8; 16];

/// The sessions of a link or of a child, with a count of uses for each. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SessionHolders(Arc<Mutex<HashMap<HolderKey, usize>>>);

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
        *lock(&self.0).entry(holder).or_default() += 1;
    }

    /// Removes a use by `holder`.
    pub fn remove(&self, holder: &HolderKey) {
        let mut all = lock(&self.0);
        if let Some(count) = all.get_mut(holder) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(holder);
            }
        }
    }

    /// Whether any session holds both.
    #[must_use]
    pub fn shares(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return !lock(&self.0).is_empty();
        }
        // Locks are held one at a time: two comparisons in opposite order cannot deadlock.
        let own: Vec<HolderKey> = lock(&self.0).keys().copied().collect();
        let other = lock(&other.0);
        own.iter().any(|holder| other.contains_key(holder))
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
