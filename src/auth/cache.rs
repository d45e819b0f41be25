//! Tokens that were verified before: a look-up instead of a signature check or a question.
//!
//! Keyed by the SHA-256 of endpoint and token, so that a token verified on one endpoint counts on
//! no other, and so that no token is kept. Bounded in number and in time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};

use crate::call::Principal;
use crate::telemetry::metrics::{GAUGES, Open};

/// Shards with a lock each, against contention.
const SHARDS: usize = 16;
/// Tokens kept in one part.
const SHARD_TOKENS: usize = 1024;
/// Lifetime of a cache entry: a token is then verified again, whatever its expiry.
pub(super) const MAX_AGE: Duration = Duration::from_mins(5);

/// Digest of a token and an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenKey([u8; 32]);

/// A caller whose token was verified.
#[derive(Debug, Clone)]
pub(super) struct Verified {
    pub(super) principal: Arc<Principal>,
    /// Position of its issuer in the configuration.
    pub(super) issuer: usize,
    /// [`super::issuer::Issuer::generation`] of the keys it was verified with.
    pub(super) generation: u64,
}

/// Verified tokens, by key.
#[derive(Debug)]
pub(super) struct TokenCache {
    shards: [Mutex<HashMap<TokenKey, Entry>>; SHARDS],
}

#[derive(Debug)]
struct Entry {
    verified: Verified,
    /// Since the Unix epoch.
    until: Duration,
    _counted: Open,
}

impl TokenKey {
    pub(super) fn of(resource: &str, token: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        // A resource identifier has no zero byte, so the border is certain.
        context.update(resource.as_bytes());
        context.update(&[0]);
        context.update(token);
        let mut key = [0; 32];
        key.copy_from_slice(context.finish().as_ref());
        Self(key)
    }

    /// A number from 0 to 255, for choosing a shard.
    pub(super) fn number(&self) -> usize {
        let [first, ..] = self.0;
        first.into()
    }
}

impl TokenCache {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// What is known of a token at `now`.
    pub(super) fn get(&self, key: &TokenKey, now: Duration) -> Option<Verified> {
        let shard = self.shard(key).lock();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(key).filter(|entry| now < entry.until)?;
        Some(entry.verified.clone())
    }

    /// Remembers a verified token until it expires, `max_age` at most. When the shard is full, what has expired
    /// goes, else what would expire first.
    pub(super) fn put(&self, key: TokenKey, verified: Verified, now: Duration, max_age: Duration) {
        let expires = verified.principal.expires_at().unwrap_or(Duration::MAX);
        let until = expires.min(now.saturating_add(max_age.min(MAX_AGE)));
        if until <= now {
            return;
        }
        let shard = self.shard(&key).lock();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= SHARD_TOKENS && !shard.contains_key(&key) {
            shard.retain(|_, entry| now < entry.until);
            if shard.len() >= SHARD_TOKENS {
                let first = shard.iter().min_by_key(|(_, entry)| entry.until);
                if let Some(first) = first.map(|(key, _)| *key) {
                    shard.remove(&first);
                }
            }
        }
        let entry = Entry {
            verified,
            until,
            _counted: GAUGES.token_cache_size.enter(),
        };
        shard.insert(key, entry);
    }

    fn shard(&self, key: &TokenKey) -> &Mutex<HashMap<TokenKey, Entry>> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
        &self.shards[key.number() % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn verified(expires_at: Option<Duration>) -> Verified {
        Verified {
            principal: Arc::new(Principal::new("i", "s", "c", Vec::new(), expires_at)),
            issuer: 0,
            generation: 0,
        }
    }

    #[test]
    fn a_token_is_remembered_for_five_minutes() {
        let cache = TokenCache::new();
        let key = TokenKey::of("mcp", b"token");
        cache.put(key, verified(Some(NOW + 10 * MAX_AGE)), NOW, MAX_AGE);
        assert!(cache.get(&key, NOW + Duration::from_secs(299)).is_some());
        assert!(cache.get(&key, NOW + MAX_AGE).is_none());
    }

    #[test]
    fn a_token_is_forgotten_when_it_expires() {
        let cache = TokenCache::new();
        let key = TokenKey::of("mcp", b"token");
        let expires = NOW + Duration::from_secs(10);
        cache.put(key, verified(Some(expires)), NOW, MAX_AGE);
        assert!(cache.get(&key, NOW + Duration::from_secs(9)).is_some());
        assert!(cache.get(&key, expires).is_none());
    }

    #[test]
    fn a_shorter_age_counts() {
        let cache = TokenCache::new();
        let key = TokenKey::of("mcp", b"token");
        let age = Duration::from_secs(30);
        cache.put(key, verified(None), NOW, age);
        assert!(cache.get(&key, NOW + age).is_none());
    }

    #[test]
    fn a_token_counts_only_on_the_endpoint_it_was_verified_for() {
        assert_ne!(TokenKey::of("mcp", b"token"), TokenKey::of("git", b"token"));
        assert_ne!(TokenKey::of("a", b"btoken"), TokenKey::of("ab", b"token"));
    }

    #[test]
    fn the_number_of_tokens_is_bounded() {
        let cache = TokenCache::new();
        for n in 0..2 * SHARDS * SHARD_TOKENS {
            let key = TokenKey::of("mcp", n.to_string().as_bytes());
            cache.put(key, verified(None), NOW, MAX_AGE);
        }
        let kept: usize = cache
            .shards
            .iter()
            .map(|shard| shard.lock().expect("no panic").len())
            .sum();
        assert!(kept <= SHARDS * SHARD_TOKENS, "{kept}");
    }
}
