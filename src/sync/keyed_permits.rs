//! `KeyedPermits`: how much of one kind may run at once, for each key and in all.

use std::hash::Hash;
use std::sync::{Arc, Mutex};

use super::keyed_counter::KeyedCounter;
use crate::lock::lock;

/// Permits of one kind. A key without a permit takes no memory.
#[derive(Debug)]
pub struct KeyedPermits<K> {
    held: Mutex<KeyedCounter<K>>,
    per_key: usize,
    total: usize,
}

/// One permit, given back on drop.
#[derive(Debug)]
#[must_use = "the permit is given back when it is dropped"]
pub struct KeyedPermit<K: Eq + Hash> {
    permits: Arc<KeyedPermits<K>>,
    key: K,
}

impl<K: Copy + Eq + Hash> KeyedPermits<K> {
    /// At most `per_key` permits for each key, and `total` in all.
    #[must_use]
    pub fn new(per_key: usize, total: usize) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            per_key,
            total,
        })
    }

    /// A permit for `key`; `None` where the key, or all keys together, have as many as they may.
    pub fn enter(self: &Arc<Self>, key: K) -> Option<KeyedPermit<K>> {
        let mut held = lock(&self.held);
        if held.of(&key) >= self.per_key || held.total() >= self.total {
            return None;
        }
        held.add(key);
        Some(KeyedPermit {
            permits: Arc::clone(self),
            key,
        })
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        lock(&self.permits.held).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_of_one_key_leave_room_for_another() {
        let permits = KeyedPermits::new(2, 8);
        let held = [(); 2].map(|()| permits.enter(1).unwrap());
        assert!(permits.enter(1).is_none());
        assert!(permits.enter(2).is_some());
        drop(held);
        assert!(permits.enter(1).is_some());
    }

    #[test]
    fn permits_of_many_keys_are_bounded() {
        let permits = KeyedPermits::new(2, 3);
        let held = [1, 2, 3].map(|key| permits.enter(key).unwrap());
        assert!(permits.enter(4).is_none());
        drop(held);
        assert!(permits.enter(4).is_some());
        assert_eq!(lock(&permits.held).holders(), 0);
    }
}
