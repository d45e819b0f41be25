//! Vaults and grants for the tests of all modules.

use std::sync::Arc;

use super::{GrantKind, GrantRecord, TokenPlacement, Vault, VaultKeys};
use crate::clock::{SharedClock, SystemClock};
use crate::config::SealKey;
use crate::database::{Database, DatabasePlace};
use crate::secret::Secret;

/// A vault in the database of `dir`, which other vaults may use too.
pub(crate) async fn vault(dir: &tempfile::TempDir) -> Vault {
    vault_with_clock(dir, Arc::new(SystemClock)).await
}

/// The same with another clock.
pub(crate) async fn vault_with_clock(dir: &tempfile::TempDir, clock: SharedClock) -> Vault {
    let keys = VaultKeys::new(&[SealKey {
        id: "k1".to_owned(),
        key: Secret::new("k".repeat(32)),
    }]);
    let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
    let database = Database::open(&place).await.unwrap();
    Vault::new(database, keys.unwrap(), clock)
}

/// A key that a user has pasted for `resource`.
pub(crate) fn pasted_key(resource: &str, key: &str) -> GrantRecord {
    GrantRecord {
        kind: GrantKind::UserKey,
        issuer: String::new(),
        token_endpoint: None,
        revocation_endpoint: None,
        resource: resource.to_owned(),
        client_id: None,
        auth_method: None,
        placement: TokenPlacement::Header {
            name: "authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
        },
        scopes: Vec::new(),
        requested: Vec::new(),
        account: None,
        access_token: Some(Secret::new(key)),
        access_ends: None,
        refresh_token: None,
    }
}

/// A grant of the access token `token` for `https://up.test/mcp`, which has no end and cannot be refreshed.
pub(crate) fn user_grant(token: &str) -> GrantRecord {
    GrantRecord {
        kind: GrantKind::User,
        issuer: "https://as.test".to_owned(),
        client_id: Some("client".to_owned()),
        auth_method: Some("none".to_owned()),
        ..pasted_key("https://up.test/mcp", token)
    }
}
