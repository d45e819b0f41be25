//! How many of its things each of many holds: what a cap for each is held against.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A count for each key. Who holds nothing takes no room.
#[derive(Debug)]
pub struct KeyedCounter<K> {
    counts: HashMap<K, usize>,
    total: usize,
}

impl<K> Default for KeyedCounter<K> {
    fn default() -> Self {
        Self {
            counts: HashMap::new(),
            total: 0,
        }
    }
}

impl<K: Eq + Hash> KeyedCounter<K> {
    /// How many `key` holds.
    #[must_use]
    pub fn of<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.counts.get(key).copied().unwrap_or_default()
    }

    /// `key` holds one more.
    pub fn add(&mut self, key: K) {
        *self.counts.entry(key).or_default() += 1;
        self.total += 1;
    }

    /// `key` holds one less; nothing when it holds none.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(count) = self.counts.get_mut(key) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.counts.remove(key);
            }
        }
    }

    /// Who holds anything.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.counts.keys()
    }

    /// How many hold anything.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.counts.len()
    }

    /// How many all hold together.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gave_everything_back_takes_no_room() {
        let mut tally = KeyedCounter::default();
        tally.add("a");
        tally.add("a");
        tally.add("b");
        assert_eq!((tally.of("a"), tally.of("b"), tally.of("c")), (2, 1, 0));
        assert_eq!(tally.total(), 3);
        tally.remove("a");
        assert_eq!((tally.of("a"), tally.holders()), (1, 2));
        tally.remove("a");
        tally.remove("a");
        assert_eq!((tally.of("a"), tally.holders()), (0, 1));
        assert_eq!(tally.total(), 1);
    }
}
