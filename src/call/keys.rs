//! Keys derived from a caller: digests that tell owners, bindings and accesses apart.

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use crate::budget::BudgetHolder;
use crate::digest::digest_of;

/// The subject of the gateway itself, which has no issuer.
pub(super) const GATEWAY_SUBJECT: &str = "gateway";

/// Digest of issuer + subject: owns quotas, children, caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerKey(KeyDigest);

/// Digest of issuer + subject + client: seals every handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BindingKey(KeyDigest);

/// Digest of issuer, subject, client, endpoint and scopes: callers with equal keys may use the same exchanged tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessKey(KeyDigest);

/// The digest of a key; `Debug` shows its beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KeyDigest([u8; 32]);

// Digests are as good as random: their beginning tells them apart, and each call looks up several.
impl Hash for KeyDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let beginning = self.0.first_chunk();
        let beginning = beginning.map_or(0, |chunk| u64::from_le_bytes(*chunk));
        beginning.hash(state);
    }
}

impl std::fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

impl OwnerKey {
    pub(super) fn of(issuer: &str, subject: &str) -> Self {
        Self(KeyDigest(digest_of([issuer, subject])))
    }

    /// The owner of a stored row, from the digest in it.
    #[must_use]
    pub fn from_bytes(digest: [u8; 32]) -> Self {
        Self(KeyDigest(digest))
    }

    /// Whether it is the gateway itself, which has no accounts of its own where callers have theirs.
    #[must_use]
    pub fn is_gateway(&self) -> bool {
        static GATEWAY: LazyLock<OwnerKey> = LazyLock::new(|| OwnerKey::of("", GATEWAY_SUBJECT));
        *self == *GATEWAY
    }

    /// The raw digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0.0
    }
}

impl From<OwnerKey> for BudgetHolder {
    fn from(owner: OwnerKey) -> Self {
        Self::Owner(owner.0.0)
    }
}

impl BindingKey {
    pub(super) fn of(issuer: &str, subject: &str, client: &str) -> Self {
        Self(KeyDigest(digest_of([issuer, subject, client])))
    }

    /// The binding of a stored record, from the digest in it.
    #[must_use]
    pub fn from_bytes(digest: [u8; 32]) -> Self {
        Self(KeyDigest(digest))
    }

    /// The raw digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0.0
    }
}

/// The digest as the access line shows it.
impl std::fmt::Display for OwnerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = self.0.0.iter().take(4);
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl AccessKey {
    /// The key of issuer, subject, client and endpoint in `binding`, with `scopes` in any order.
    pub(super) fn of(binding: [&str; 4], scopes: &[String]) -> Self {
        let mut scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        scopes.sort_unstable();
        scopes.dedup();
        Self(KeyDigest(digest_of(binding.into_iter().chain(scopes))))
    }
}
