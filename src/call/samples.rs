//! Callers in tests.

use super::OwnerKey;

/// The owner `subject`, of an issuer that all tests share.
pub(crate) fn owner(subject: &str) -> OwnerKey {
    OwnerKey::of("https://issuer", subject)
}
