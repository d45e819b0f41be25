//! A cache that allocates nothing before its first entry.

use std::hash::Hash;
use std::sync::OnceLock;
use std::time::Duration;

use moka::sync::Cache;

/// A [`Cache`] that is made for its first entry. An empty one has its queues already, some 40 KiB: too much for a cache
/// of each upstream that most upstreams never use.
#[derive(Debug)]
pub struct LazyCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    cache: OnceLock<Cache<K, V>>,
    capacity: u64,
    time_to_live: Option<Duration>,
    time_to_idle: Option<Duration>,
}

impl<K, V> LazyCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty cache of at most so many entries.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self {
            cache: OnceLock::new(),
            capacity,
            time_to_live: None,
            time_to_idle: None,
        }
    }

    /// The same cache, whose entries expire so long after their insertion.
    #[must_use]
    pub fn time_to_live(self, time: Duration) -> Self {
        Self {
            time_to_live: Some(time),
            ..self
        }
    }

    /// The same cache, whose entries expire so long after their last use.
    #[must_use]
    pub fn time_to_idle(self, time: Duration) -> Self {
        Self {
            time_to_idle: Some(time),
            ..self
        }
    }

    /// The value under `key`.
    pub fn get(&self, key: &K) -> Option<V> {
        self.cache.get()?.get(key)
    }

    /// The value under `key`. A missing one is made by one caller; concurrent callers wait for it.
    pub fn get_with(&self, key: K, make: impl FnOnce() -> V) -> V {
        self.made().get_with(key, make)
    }

    /// Puts `value` under `key`, in place of an earlier one.
    pub fn insert(&self, key: K, value: V) {
        self.made().insert(key, value);
    }

    /// Evicts the value under `key`.
    pub fn invalidate(&self, key: &K) {
        if let Some(cache) = self.cache.get() {
            cache.invalidate(key);
        }
    }

    /// Evicts all values.
    pub fn invalidate_all(&self) {
        if let Some(cache) = self.cache.get() {
            cache.invalidate_all();
        }
    }

    fn made(&self) -> &Cache<K, V> {
        self.cache.get_or_init(|| {
            let mut cache = Cache::builder().max_capacity(self.capacity);
            if let Some(time) = self.time_to_live {
                cache = cache.time_to_live(time);
            }
            if let Some(time) = self.time_to_idle {
                cache = cache.time_to_idle(time);
            }
            cache.build()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_allocated_before_the_first_entry() {
        let cache = LazyCache::new(10).time_to_live(Duration::from_mins(1));
        assert_eq!(cache.get(&1), None);
        cache.invalidate(&1);
        cache.invalidate_all();
        assert!(cache.cache.get().is_none());
        cache.insert(1, 'a');
        assert_eq!(cache.get(&1), Some('a'));
        assert_eq!(cache.get_with(2, || 'b'), 'b');
        cache.invalidate(&1);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, Some('b')));
        cache.invalidate_all();
        assert_eq!(cache.get(&2), None);
    }

    #[test]
    fn entries_expire_as_the_cache_was_told() {
        let told = LazyCache::<u8, u8>::new(7)
            .time_to_live(Duration::from_secs(1))
            .time_to_idle(Duration::from_secs(2));
        told.insert(1, 1);
        let policy = told.made().policy();
        assert_eq!(policy.max_capacity(), Some(7));
        assert_eq!(policy.time_to_live(), Some(Duration::from_secs(1)));
        assert_eq!(policy.time_to_idle(), Some(Duration::from_secs(2)));
    }
}
