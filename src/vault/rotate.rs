//! Rotation: seals every record again under the first key of the ring, so that older keys can be removed.

use super::Vault;
use super::keys::RecordKind;
use crate::database::{DatabaseError, SqlRow, SqlTransaction, SqlValue};

/// Records per transaction.
const BATCH: i64 = 100;

/// Result of a rotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RotationResult {
    /// Records that were sealed again.
    pub resealed: u64,
    /// Records under another key that cannot be opened, or were changed meanwhile.
    pub left: u64,
}

impl RotationResult {
    /// Whether the older keys can be removed: no record needs them.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.left == 0
    }
}

/// Type of a column that selects a row.
#[derive(Debug, Clone, Copy)]
enum PlaceColumn {
    Bytes,
    Text,
    Number,
}

use PlaceColumn::{Bytes, Number, Text};

/// A table of sealed records. `select` returns key, sealed record and then the columns of `place`; `update` binds the
/// new key and record, the old key and record, and these columns.
struct SealedTable {
    kind: RecordKind,
    select: &'static str,
    update: &'static str,
    left: &'static str,
    place: &'static [PlaceColumn],
}

const TABLES: [SealedTable; 5] = [
    SealedTable {
        kind: RecordKind::Grant,
        select: "SELECT key_id, sealed, owner, upstream, version FROM grants WHERE key_id <> $1 \
             ORDER BY owner, upstream LIMIT $2 OFFSET $3",
        update: "UPDATE grants SET key_id = $1, sealed = $2 \
             WHERE key_id = $3 AND sealed = $4 AND owner = $5 AND upstream = $6 AND version = $7",
        left: "SELECT COUNT(*) FROM grants WHERE key_id <> $1",
        place: &[Bytes, Text, Number],
    },
    SealedTable {
        kind: RecordKind::List,
        select: "SELECT key_id, sealed, owner, upstream, kind FROM kept_lists WHERE key_id <> $1 \
             ORDER BY owner, upstream, kind LIMIT $2 OFFSET $3",
        update: "UPDATE kept_lists SET key_id = $1, sealed = $2 \
             WHERE key_id = $3 AND sealed = $4 AND owner = $5 AND upstream = $6 AND kind = $7",
        left: "SELECT COUNT(*) FROM kept_lists WHERE key_id <> $1",
        place: &[Bytes, Text, Text],
    },
    SealedTable {
        kind: RecordKind::Registration,
        select: "SELECT key_id, sealed, issuer, client_id FROM registrations WHERE key_id <> $1 \
             ORDER BY issuer, client_id LIMIT $2 OFFSET $3",
        update: "UPDATE registrations SET key_id = $1, sealed = $2 \
             WHERE key_id = $3 AND sealed = $4 AND issuer = $5 AND client_id = $6",
        left: "SELECT COUNT(*) FROM registrations WHERE key_id <> $1",
        place: &[Text, Text],
    },
    SealedTable {
        kind: RecordKind::Pending,
        select: "SELECT key_id, sealed, state, owner FROM pending WHERE key_id <> $1 \
             ORDER BY state LIMIT $2 OFFSET $3",
        update: "UPDATE pending SET key_id = $1, sealed = $2 \
             WHERE key_id = $3 AND sealed = $4 AND state = $5 AND owner = $6",
        left: "SELECT COUNT(*) FROM pending WHERE key_id <> $1",
        place: &[Bytes, Bytes],
    },
    SealedTable {
        kind: RecordKind::Revocation,
        select: "SELECT key_id, sealed, id FROM revocations WHERE key_id <> $1 \
             ORDER BY id LIMIT $2 OFFSET $3",
        update: "UPDATE revocations SET key_id = $1, sealed = $2 WHERE key_id = $3 AND sealed = $4 AND id = $5",
        left: "SELECT COUNT(*) FROM revocations WHERE key_id <> $1",
        place: &[Bytes],
    },
];

/// [`Vault::rotate`].
pub(super) async fn rotate(vault: &Vault) -> Result<RotationResult, DatabaseError> {
    let mut result = RotationResult::default();
    let key_id = vault.0.keys.sealing_id();
    for table in &TABLES {
        let mut passed = 0;
        loop {
            let mut tx = vault.database().begin().await?;
            // Resealed rows leave the selection, so that the offset counts only rows that were left.
            let values = [key_id.into(), BATCH.into(), SqlValue::Int(passed)];
            let rows = tx.fetch(table.select, &values).await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                if reseal(vault, &mut tx, table, &row).await? {
                    result.resealed += 1;
                } else {
                    passed += 1;
                }
            }
            tx.commit().await?;
        }
        let database = vault.database();
        let left = database.number(table.left, &[key_id.into()]).await?;
        result.left += u64::try_from(left).unwrap_or_default();
    }
    Ok(result)
}

async fn reseal(
    vault: &Vault,
    tx: &mut SqlTransaction,
    table: &SealedTable,
    row: &SqlRow,
) -> Result<bool, DatabaseError> {
    let (key_id, sealed) = (row.text(0)?, row.bytes(1)?);
    let mut place = Vec::new();
    let mut columns = Vec::new();
    for (at, column) in table.place.iter().enumerate() {
        let (bytes, value): (_, SqlValue) = match column {
            Bytes => {
                let bytes = row.bytes(at + 2)?;
                (bytes.clone(), SqlValue::Bytes(bytes))
            }
            Text => {
                let text = row.text(at + 2)?;
                (text.clone().into_bytes(), SqlValue::Text(text))
            }
            Number => {
                let number = row.int(at + 2)?;
                (number.to_be_bytes().to_vec(), SqlValue::Int(number))
            }
        };
        place.push(bytes);
        columns.push(value);
    }
    let place: Vec<&[u8]> = place.iter().map(Vec::as_slice).collect();
    let keys = &vault.0.keys;
    let Ok(plain) = keys.open(table.kind, &place, &key_id, &sealed) else {
        return Ok(false);
    };
    let again = keys.seal(table.kind, &place, plain.to_vec());
    let mut values = vec![
        (&*again.key_id).into(),
        (&*again.bytes).into(),
        (&*key_id).into(),
        (&*sealed).into(),
    ];
    values.extend(columns);
    Ok(tx.execute(table.update, &values).await? > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::Principal;
    use crate::clock::SystemClock;
    use crate::config::SealKey;
    use crate::database::{Database, DatabasePlace};
    use crate::secret::Secret;
    use crate::vault::{GrantKey, VaultKeys};

    #[tokio::test]
    async fn record_that_is_written_meanwhile_stays_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
        let open = async |names: &[&str]| {
            let keys = names.iter().map(|name| SealKey {
                id: (*name).to_owned(),
                key: Secret::new(name.repeat(16)),
            });
            let keys = VaultKeys::new(&keys.collect::<Vec<_>>()).unwrap();
            let database = Database::open(&place).await.unwrap();
            Vault::new(database, keys, Arc::new(SystemClock))
        };
        let (gateway, rotating) = (open(&["k1"]).await, open(&["k2", "k1"]).await);
        let key = GrantKey::new(Principal::anonymous().owner(), "up");
        let columns: [&[u8]; 3] = [key.owner.bytes(), b"up", b"tools"];
        let sealed = |text: &str| gateway.seal(RecordKind::List, &columns, &text);
        let mut tx = rotating.database().begin().await.unwrap();
        let older = sealed("older");
        let values = [
            key.owner.bytes().into(),
            (&*older.key_id).into(),
            (&*older.bytes).into(),
        ];
        let text = "INSERT INTO kept_lists (owner, upstream, kind, key_id, sealed, made) \
            VALUES ($1, 'up', 'tools', $2, $3, 0)";
        tx.execute(text, &values).await.unwrap();
        let table = &TABLES[1];
        let sealing = rotating.0.keys.sealing_id();
        let values = [sealing.into(), BATCH.into(), SqlValue::Int(0)];
        let rows = tx.fetch(table.select, &values).await.unwrap();
        let newer = sealed("newer");
        let text = "UPDATE kept_lists SET sealed = $1";
        tx.execute(text, &[(&*newer.bytes).into()]).await.unwrap();
        let has_resealed = reseal(&rotating, &mut tx, table, &rows[0]).await;
        assert!(!has_resealed.unwrap());
        tx.commit().await.unwrap();
        let kept = async || rotating.lists().get(&key, "tools").await.unwrap();
        assert_eq!(kept().await.as_deref(), Some("newer"));
        assert_eq!(rotating.rotate().await.unwrap().resealed, 1);
        assert_eq!(kept().await.as_deref(), Some("newer"));
    }
}
