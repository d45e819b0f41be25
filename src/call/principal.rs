//! Who calls: the principal, and the keys derived from it.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};

use crate::budget::BudgetHolder;
use crate::telemetry::record::CachedText;

/// Digest of issuer + subject: owns quotas, children, caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerKey([u8; 32]);

/// Digest of issuer + subject + client: seals every handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BindingKey([u8; 32]);

// Digests are as good as random: their beginning tells them apart, and each call looks up several.
impl Hash for OwnerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        beginning(&self.0).hash(state);
    }
}

impl Hash for BindingKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        beginning(&self.0).hash(state);
    }
}

fn beginning(digest: &[u8; 32]) -> u64 {
    digest
        .first_chunk()
        .map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

impl OwnerKey {
    /// The owner of a stored row, from the digest in it.
    #[must_use]
    pub fn from_bytes(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The raw digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<OwnerKey> for BudgetHolder {
    fn from(owner: OwnerKey) -> Self {
        Self::Owner(owner.0)
    }
}

impl BindingKey {
    /// The binding of a stored record, from the digest in it.
    #[must_use]
    pub fn from_bytes(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The raw digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The digest as the access line shows it.
impl std::fmt::Display for OwnerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = self.0.iter().take(4);
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for OwnerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnerKey({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

impl std::fmt::Debug for BindingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BindingKey({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// A verified caller. Scopes are what this token grants, never part of the identity (DESIGN §2).
#[derive(Debug, Clone)]
pub struct Principal {
    issuer: CachedText,
    subject: CachedText,
    client: CachedText,
    scopes: Vec<String>,
    expires_at: Option<Duration>,
    owner: OwnerKey,
    binding: BindingKey,
}

impl Principal {
    /// A caller as its token describes it; `client` is empty when the token names none and
    /// `expires_at` is time since the Unix epoch.
    #[must_use]
    pub fn new(
        issuer: &str,
        subject: &str,
        client: &str,
        scopes: Vec<String>,
        expires_at: Option<Duration>,
    ) -> Self {
        Self {
            owner: OwnerKey(digest(&[issuer, subject])),
            binding: BindingKey(digest(&[issuer, subject, client])),
            issuer: CachedText::new(issuer),
            subject: CachedText::new(subject),
            client: CachedText::new(client),
            scopes,
            expires_at,
        }
    }

    /// Everybody, with `auth.mode = "none"`.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new("", "anonymous", "", Vec::new(), None)
    }

    /// The gateway itself, for sessions that no client opened.
    #[must_use]
    pub fn gateway() -> Self {
        Self::new("", "gateway", "", Vec::new(), None)
    }

    /// Who vouches for the subject.
    #[must_use]
    pub fn issuer(&self) -> &str {
        self.issuer.as_str()
    }

    /// The subject, unique within the issuer.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    /// The OAuth client, empty when unknown.
    #[must_use]
    pub fn client(&self) -> &str {
        self.client.as_str()
    }

    /// Issuer, subject and client, for the lines of the log.
    #[must_use]
    pub fn names(&self) -> [&CachedText; 3] {
        [&self.issuer, &self.subject, &self.client]
    }

    /// What the presented token grants.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// When the presented token expires, since the Unix epoch.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        self.expires_at
    }

    /// Key of what belongs to issuer + subject.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.owner
    }

    /// Key of what belongs to issuer + subject + client.
    #[must_use]
    pub fn binding(&self) -> BindingKey {
        self.binding
    }
}

/// SHA-256 over length-prefixed fields, so that no two field lists collide.
fn digest(fields: &[&str]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for field in fields {
        context.update(&(field.len() as u64).to_be_bytes());
        context.update(field.as_bytes());
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_borders_are_part_of_the_identity() {
        let a = Principal::new("ab", "c", "", Vec::new(), None);
        let b = Principal::new("a", "bc", "", Vec::new(), None);
        assert_ne!(a.owner(), b.owner());
    }

    #[test]
    fn scopes_and_expiry_do_not_change_the_binding() {
        let a = Principal::new("i", "s", "c", vec!["x".to_owned()], None);
        let b = Principal::new("i", "s", "c", Vec::new(), Some(Duration::from_secs(9)));
        assert_eq!(a.binding(), b.binding());
        assert_eq!(a.owner(), b.owner());
    }

    #[test]
    fn another_client_shares_the_owner_but_not_the_binding() {
        let a = Principal::new("i", "s", "c1", Vec::new(), None);
        let b = Principal::new("i", "s", "c2", Vec::new(), None);
        assert_eq!(a.owner(), b.owner());
        assert_ne!(a.binding(), b.binding());
    }
}
