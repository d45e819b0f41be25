//! What upstreams declared lately, so that `initialize` can be answered without opening them.
//! Spec: DESIGN §5 ("answered from knowledge").

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::call::{Declared, OwnerKey};
use crate::protocol::Revision;

/// How long a declaration is believed.
const BELIEVED: Duration = Duration::from_mins(5);
/// Declarations kept at most.
const KEPT: u64 = 4096;

/// What a declaration may depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The upstream.
    pub upstream: Arc<str>,
    /// The revision offered to it.
    pub offer: Revision,
    /// Fingerprint of the client capabilities declared to it.
    pub capabilities: u64,
    /// Set where the upstream sees users apart.
    pub owner: Option<OwnerKey>,
}

/// Declarations by what they depend on.
#[derive(Debug, Clone)]
pub struct Knowledge(Cache<Key, Arc<Declared>>);

impl Default for Knowledge {
    fn default() -> Self {
        Self(
            Cache::builder()
                .max_capacity(KEPT)
                .time_to_live(BELIEVED)
                .build(),
        )
    }
}

impl Knowledge {
    /// The last declaration, if it is fresh enough.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Declared>> {
        self.0.get(key)
    }

    /// Remembers a declaration; returns whether it differs from the last one.
    pub fn learn(&self, key: Key, declared: &Arc<Declared>) -> bool {
        let known = self.0.get(&key);
        let differs = known.as_ref().is_some_and(|known| known != declared);
        if known.is_none() || differs {
            self.0.insert(key, Arc::clone(declared));
        }
        differs
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn key(capabilities: u64) -> Key {
        Key {
            upstream: "files".into(),
            offer: Revision::V2025_11_25,
            capabilities,
            owner: None,
        }
    }

    fn declared(text: &'static str) -> Arc<Declared> {
        Arc::new(Declared::new(
            Revision::V2025_11_25,
            Bytes::from_static(text.as_bytes()),
            Bytes::from_static(b"{}"),
            None,
        ))
    }

    // CLIENTS.md: a server may vary with the client's capabilities.
    #[test]
    fn declarations_are_kept_apart_by_capabilities() {
        let knowledge = Knowledge::default();
        assert!(!knowledge.learn(key(1), &declared("{}")));
        assert_eq!(knowledge.get(&key(2)), None);
        assert_eq!(knowledge.get(&key(1)), Some(declared("{}")));
    }

    #[test]
    fn a_changed_declaration_replaces_the_old_one() {
        let knowledge = Knowledge::default();
        knowledge.learn(key(1), &declared("{}"));
        assert!(!knowledge.learn(key(1), &declared("{}")));
        assert!(knowledge.learn(key(1), &declared(r#"{"tools":{}}"#)));
        assert_eq!(knowledge.get(&key(1)), Some(declared(r#"{"tools":{}}"#)));
    }
}
