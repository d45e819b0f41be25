//! `RefusedTokens`: tokens that were found bad, so that their repetition costs a look-up and no signature check
//! and no question. In a table of their own: however many there are, they push out no good token.

use std::sync::Mutex;
use std::time::Duration;

use super::cache::TokenKey;
use super::reject::TokenRefusal;
use crate::lock::lock;
use crate::sync::fast_maps::FastMap;

/// A refusal is remembered this long at most.
pub(super) const REFUSED_AGE: Duration = Duration::from_secs(10);
/// Shards with a lock each, against contention.
const SHARDS: usize = 16;
/// Tokens kept in one part, about 64 bytes each.
const SHARD_TOKENS: usize = 256;

/// Refused tokens, by key; each counts for a while and bounded in number.
#[derive(Debug)]
pub(super) struct RefusedTokens([Mutex<FastMap<TokenKey, RefusedToken>>; SHARDS]);

#[derive(Debug, Clone, Copy)]
struct RefusedToken {
    refusal: TokenRefusal,
    /// Since the Unix epoch.
    until: Duration,
}

impl RefusedTokens {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    /// Why a token was refused, if that still counts at `now`.
    pub(super) fn get(&self, key: &TokenKey, now: Duration) -> Option<TokenRefusal> {
        let shard = lock(self.shard(key));
        let refused = shard.get(key).filter(|refused| now < refused.until)?;
        Some(refused.refusal)
    }

    /// Caches a refusal for `age`. A full shard evicts expired entries, else the entry that expires first.
    pub(super) fn put(&self, key: TokenKey, refusal: TokenRefusal, now: Duration, age: Duration) {
        let mut shard = lock(self.shard(&key));
        if shard.len() >= SHARD_TOKENS && !shard.contains_key(&key) {
            shard.retain(|_, refused| now < refused.until);
            if shard.len() >= SHARD_TOKENS {
                let first = shard.iter().min_by_key(|(_, refused)| refused.until);
                if let Some(first) = first.map(|(key, _)| *key) {
                    shard.remove(&first);
                }
            }
        }
        let until = now.saturating_add(age);
        shard.insert(key, RefusedToken { refusal, until });
    }

    fn shard(&self, key: &TokenKey) -> &Mutex<FastMap<TokenKey, RefusedToken>> {
        #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
        &self.0[key.number() % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::reject::RejectReason;

    const NOW: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn a_refusal_is_forgotten_after_its_age() {
        let refused = RefusedTokens::new();
        let key = TokenKey::of("mcp", b"token");
        refused.put(key, RejectReason::Signature.into(), NOW, REFUSED_AGE);
        assert_eq!(refused.get(&key, NOW), Some(RejectReason::Signature.into()));
        assert_eq!(refused.get(&key, NOW + REFUSED_AGE), None);
    }

    #[test]
    fn the_number_of_refused_tokens_is_bounded() {
        let refused = RefusedTokens::new();
        for n in 0..2 * SHARDS * SHARD_TOKENS {
            let key = TokenKey::of("mcp", n.to_string().as_bytes());
            refused.put(key, RejectReason::Inactive.into(), NOW, REFUSED_AGE);
        }
        let kept: usize = refused.0.iter().map(|shard| lock(shard).len()).sum();
        assert!(kept <= SHARDS * SHARD_TOKENS, "{kept}");
    }
}
