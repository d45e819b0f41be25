//! Accounts of callers for tests: keys that they have pasted.

use std::sync::Arc;

use crate::clock::SystemClock;
use crate::config::SealKey;
use crate::database::{Database, DatabasePlace};
use crate::secret::Secret;
use crate::vault::{GrantKind, GrantRecord, TokenPlacement, Vault, VaultKeys};

/// A vault in `dir`.
pub(in crate::relay) async fn vault(dir: &tempfile::TempDir) -> Vault {
    let keys = VaultKeys::new(&[SealKey {
        id: "k1".to_owned(),
        key: Secret::new("k".repeat(32)),
    }]);
    let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
    let database = Database::open(&place).await.unwrap();
    Vault::new(database, keys.unwrap(), Arc::new(SystemClock))
}

/// A key for the upstream of a [fixture](super::with_keys).
pub(in crate::relay) fn pasted() -> GrantRecord {
    GrantRecord {
        kind: GrantKind::UserKey,
        issuer: String::new(),
        token_endpoint: None,
        revocation_endpoint: None,
        resource: "http://127.0.0.1:9/mcp".to_owned(),
        client_id: None,
        auth_method: None,
        placement: TokenPlacement::Header {
            name: "authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
        },
        scopes: Vec::new(),
        account: None,
        access_token: Some(Secret::new("key")),
        access_ends: None,
        refresh_token: None,
    }
}
