//! Tokens that were verified before: a look-up instead of a signature check or a question.
//!
//! Keyed by a hash of endpoint and token under a secret key, so that a token verified on one endpoint counts on
//! no other, and so that no token is kept here: the newest token of a principal is in its `CallerAccess`. Bounded in
//! number and in time.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;

use crate::call::Principal;
use crate::sync::fast_maps::FastMap;
use crate::telemetry::metrics::{GAUGES, GaugeGuard};

/// Shards with a lock each, against contention.
const SHARDS: usize = 16;
/// Tokens kept in one part.
const SHARD_TOKENS: usize = 1024;
/// Lifetime of a cache entry: a token is then verified again, whatever its expiry.
pub(super) const MAX_AGE: Duration = Duration::from_mins(5);

/// Bytes of the tag that AES-GCM computes.
const TAG_LEN: usize = 16;

/// Hash of a token and an endpoint: their GCM tag under a key that this process has drawn.
///
/// A universal hash of 128 bits: without the key and without a tag to look at, two texts of `n` bytes collide with a
/// probability of about `n / 2^132`. A `TokenKey` never leaves the process (`docs/adr/0019`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenKey([u8; TAG_LEN]);

/// Drawn at the first use; [`AES_128_GCM`] takes any 16 bytes.
static KEY: LazyLock<Result<LessSafeKey, Unspecified>> = LazyLock::new(|| {
    UnboundKey::new(&AES_128_GCM, &rand::random::<[u8; 16]>()).map(LessSafeKey::new)
});

/// A caller whose token was verified.
#[derive(Debug, Clone)]
pub(super) struct VerifiedCaller {
    pub(super) principal: Arc<Principal>,
    /// Position of its issuer in the configuration.
    pub(super) issuer: usize,
    /// [`super::issuer::Issuer::generation`] of the keys it was verified with.
    pub(super) generation: u64,
}

/// Verified tokens, by key.
#[derive(Debug)]
pub(super) struct TokenCache {
    shards: [Mutex<FastMap<TokenKey, CachedToken>>; SHARDS],
}

#[derive(Debug)]
struct CachedToken {
    verified: VerifiedCaller,
    /// Since the Unix epoch.
    until: Duration,
    _counted: GaugeGuard,
}

impl TokenKey {
    pub(super) fn of(resource: &str, token: &[u8]) -> Self {
        // A resource identifier has no zero byte, so the border is certain.
        let text = [resource.as_bytes(), &[0], token].concat();
        // A text that has no tag (GCM ends at 2^61 bytes) gets a key that equals no other: its token is verified.
        Self(tag(&text).unwrap_or_else(|_| rand::random()))
    }

    /// A number from 0 to 255, for choosing a shard.
    pub(super) fn number(&self) -> usize {
        let [first, ..] = self.0;
        first.into()
    }
}

fn tag(text: &[u8]) -> Result<[u8; TAG_LEN], Unspecified> {
    let key = KEY.as_ref().map_err(|error| *error)?;
    // One nonce for all: nothing is encrypted, and no tag is shown.
    let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(text), &mut [])?;
    tag.as_ref().try_into().map_err(|_| Unspecified)
}

impl std::fmt::Debug for TokenKey {
    /// The shard only: a tag that is read somewhere would weaken the hash.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenKey({})", self.number())
    }
}

impl TokenCache {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// What is known of a token at `now`.
    pub(super) fn get(&self, key: &TokenKey, now: Duration) -> Option<VerifiedCaller> {
        let shard = self.shard(key).lock();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(key).filter(|entry| now < entry.until)?;
        Some(entry.verified.clone())
    }

    /// Remembers a verified token until it expires, `max_age` at most. When the shard is full, what has expired
    /// goes, else what would expire first.
    pub(super) fn put(
        &self,
        key: TokenKey,
        verified: VerifiedCaller,
        now: Duration,
        max_age: Duration,
    ) {
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
        let entry = CachedToken {
            verified,
            until,
            _counted: GAUGES.token_cache_size.enter(),
        };
        shard.insert(key, entry);
    }

    fn shard(&self, key: &TokenKey) -> &Mutex<FastMap<TokenKey, CachedToken>> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
        &self.shards[key.number() % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn verified(expires_at: Option<Duration>) -> VerifiedCaller {
        VerifiedCaller {
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
    fn every_byte_of_a_token_counts() {
        let token = [b'x'; 1_000];
        let key = TokenKey::of("mcp", &token);
        assert_eq!(key, TokenKey::of("mcp", &token));
        for at in 0..token.len() {
            let mut other = token;
            other[at] = b'y';
            assert_ne!(key, TokenKey::of("mcp", &other), "{at}");
        }
        assert_ne!(key, TokenKey::of("mcp", &token[1..]));
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
