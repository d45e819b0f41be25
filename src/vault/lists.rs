//! The last lists of a principal at an upstream, served while there is no token. They outlive a grant that its server
//! has ended.

use super::grants::find;
use super::keys::RecordKind;
use super::{GrantKey, Vault};
use crate::database::{DatabaseError, SqlTransaction};

/// The longest list that is stored, bytes.
pub const MAX_LIST: usize = 1024 * 1024;

/// The last lists of all principals.
#[derive(Debug, Clone, Copy)]
pub struct ListTable<'a>(pub(super) &'a Vault);

impl ListTable<'_> {
    /// Stores the text of a list and replaces the previous one. Returns whether it was stored: not without the grant of
    /// this version, and not where it is longer than 1 MiB.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put(
        self,
        key: &GrantKey,
        version: i64,
        (kind, text): (&str, &str),
    ) -> Result<bool, DatabaseError> {
        if text.len() > MAX_LIST {
            return Ok(false);
        }
        let place: [&[u8]; 3] = [key.owner.bytes(), key.upstream.as_bytes(), kind.as_bytes()];
        let sealed = self.0.seal(RecordKind::List, &place, &text);
        let text = "INSERT INTO kept_lists (owner, upstream, kind, key_id, sealed, made) \
                    SELECT owner, upstream, $3, $4, $5, $6 FROM grants \
                    WHERE owner = $1 AND upstream = $2 AND version = $7 \
                    ON CONFLICT (owner, upstream, kind) DO UPDATE SET key_id = excluded.key_id, \
                    sealed = excluded.sealed, made = excluded.made";
        let [owner, upstream] = find(key);
        let values = [
            owner,
            upstream,
            kind.into(),
            (&*sealed.key_id).into(),
            (&*sealed.bytes).into(),
            self.0.now().into(),
            version.into(),
        ];
        Ok(self.0.database().execute(text, &values).await? > 0)
    }

    /// The list stored last.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(self, key: &GrantKey, kind: &str) -> Result<Option<String>, DatabaseError> {
        let text = "SELECT key_id, sealed FROM kept_lists WHERE owner = $1 AND upstream = $2 AND kind = $3";
        let [owner, upstream] = find(key);
        let values = [owner, upstream, kind.into()];
        let rows = self.0.database().fetch(text, &values).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let place: [&[u8]; 3] = [key.owner.bytes(), key.upstream.as_bytes(), kind.as_bytes()];
        let sealed = (&*row.text(0)?, &*row.bytes(1)?);
        Ok(self.0.open(RecordKind::List, &place, sealed))
    }

    pub(super) async fn remove(
        self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<u64, DatabaseError> {
        let text = "DELETE FROM kept_lists WHERE owner = $1 AND upstream = $2";
        tx.execute(text, &find(key)).await
    }
}
