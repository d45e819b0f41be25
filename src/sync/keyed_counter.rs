//! How many of its things each of many holds: what a cap for each is held against.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A count for each key. Who holds nothing takes no room.
#[derive(Debug)]
pub struct KeyedCounter<K>(HashMap<K, usize>);

impl<K> Default for KeyedCounter<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> KeyedCounter<K> {
    /// How many `key` holds.
    #[must_use]
    pub fn of<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// `key` holds one more.
    pub fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    /// `key` holds one less; nothing when it holds none.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }

    /// How many hold anything.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.0.len()
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
        tally.remove("a");
        assert_eq!((tally.of("a"), tally.holders()), (1, 2));
        tally.remove("a");
        tally.remove("a");
        assert_eq!((tally.of("a"), tally.holders()), (0, 1));
    }
}
