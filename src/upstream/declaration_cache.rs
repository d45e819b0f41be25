//! Cache of upstream declarations, so that `initialize` can be answered without opening an upstream.
//! Spec: DESIGN §5 ("answered from knowledge").

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use super::account::Account;
use crate::call::ServerDeclaration;
use crate::protocol::Revision;

/// How long a declaration is fresh.
const BELIEVED: Duration = Duration::from_mins(5);
/// How long a stale declaration is used for lack of a fresh one.
const REMEMBERED: Duration = Duration::from_hours(24);
/// Bytes of all declarations kept. A larger one is not kept.
const KEPT_BYTES: u32 = 16 << 20;
/// A declaration counts as this many bytes at least, so that 4096 are kept at most.
const LEAST_BYTES: u32 = KEPT_BYTES / 4096;

/// The key of a declaration: all that may influence it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeclarationKey {
    /// The upstream.
    pub upstream: Arc<str>,
    /// The revision offered to it.
    pub offer: Revision,
    /// Fingerprint of the client capabilities declared to it.
    pub capabilities: u64,
    /// Whose it is.
    pub account: Account,
}

/// Declarations by key.
#[derive(Debug, Clone)]
pub struct DeclarationCache(Cache<DeclarationKey, CachedDeclaration>);

/// A declaration, and when it was made.
#[derive(Debug, Clone)]
struct CachedDeclaration {
    declared: Arc<ServerDeclaration>,
    since: Instant,
}

impl Default for DeclarationCache {
    fn default() -> Self {
        Self(
            Cache::builder()
                .max_capacity(KEPT_BYTES.into())
                .weigher(weight)
                .time_to_live(REMEMBERED)
                .build(),
        )
    }
}

/// What a declaration counts in the cache, bytes.
fn weight(_: &DeclarationKey, known: &CachedDeclaration) -> u32 {
    let bytes = u32::try_from(known.declared.bytes()).unwrap_or(u32::MAX);
    bytes.max(LEAST_BYTES)
}

impl DeclarationCache {
    /// The last declaration, if it is fresh enough.
    #[must_use]
    pub fn get(&self, key: &DeclarationKey) -> Option<Arc<ServerDeclaration>> {
        let known = self.0.get(key)?;
        (known.since.elapsed() < BELIEVED).then_some(known.declared)
    }

    /// The last declaration, even a stale one: for use when the upstream cannot be asked.
    #[must_use]
    pub fn last(&self, key: &DeclarationKey) -> Option<Arc<ServerDeclaration>> {
        Some(self.0.get(key)?.declared)
    }

    /// Caches a declaration; returns whether a fresh declaration differed.
    pub fn learn(&self, key: DeclarationKey, declared: &Arc<ServerDeclaration>) -> bool {
        let known = self.get(&key);
        let differs = known.as_ref().is_some_and(|known| known != declared);
        if known.is_none() || differs {
            let (declared, since) = (Arc::clone(declared), Instant::now());
            self.0.insert(key, CachedDeclaration { declared, since });
        }
        differs
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::call::samples;

    fn key(capabilities: u64) -> DeclarationKey {
        DeclarationKey {
            upstream: "files".into(),
            offer: Revision::V2025_11_25,
            capabilities,
            account: Account::Common,
        }
    }

    fn declared(text: &'static str) -> Arc<ServerDeclaration> {
        samples::declared(Revision::V2025_11_25, text)
    }

    // CLIENTS.md: a server may vary with the client's capabilities.
    #[test]
    fn declarations_are_kept_apart_by_capabilities() {
        let declarations = DeclarationCache::default();
        assert!(!declarations.learn(key(1), &declared("{}")));
        assert_eq!(declarations.get(&key(2)), None);
        assert_eq!(declarations.get(&key(1)), Some(declared("{}")));
    }

    #[test]
    fn a_changed_declaration_replaces_the_old_one() {
        let declarations = DeclarationCache::default();
        declarations.learn(key(1), &declared("{}"));
        assert!(!declarations.learn(key(1), &declared("{}")));
        assert!(declarations.learn(key(1), &declared(r#"{"tools":{}}"#)));
        assert_eq!(declarations.get(&key(1)), Some(declared(r#"{"tools":{}}"#)));
    }

    /// How many of `count` declarations with `instructions` of this length are kept.
    fn kept(length: usize, count: u64) -> usize {
        let declarations = DeclarationCache::default();
        for capabilities in 0..count {
            let instructions = Some("x".repeat(length));
            let (none, info) = (Bytes::from_static(b"{}"), Bytes::from_static(b"{}"));
            let declared = ServerDeclaration::new(Revision::V2025_11_25, none, info, instructions);
            declarations.learn(key(capabilities), &Arc::new(declared));
            declarations.0.run_pending_tasks();
        }
        let is_kept = |capabilities: &u64| declarations.last(&key(*capabilities)).is_some();
        (0..count).filter(is_kept).count()
    }

    #[test]
    fn declarations_are_bounded_in_bytes_and_number() {
        assert_eq!(kept(1 << 20, 10), 10);
        assert_eq!(kept(1 << 20, 20), 15, "with all that is beside the text");
        assert_eq!(kept(17 << 20, 1), 0);
        assert_eq!(kept(10, 4200), 4096);
    }

    // Spec: SPEC M-51.
    #[tokio::test(start_paused = true)]
    async fn a_declaration_is_believed_for_a_while_and_remembered_for_longer() {
        let declarations = DeclarationCache::default();
        declarations.learn(key(1), &declared("{}"));
        tokio::time::advance(BELIEVED).await;
        assert_eq!(declarations.get(&key(1)), None);
        assert_eq!(declarations.last(&key(1)), Some(declared("{}")));
        assert!(!declarations.learn(key(1), &declared(r#"{"tools":{}}"#)));
        assert_eq!(declarations.get(&key(1)), Some(declared(r#"{"tools":{}}"#)));
    }
}
