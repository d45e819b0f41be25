//! A cache of public documents: metadata of resources and authorization servers. Not sealed, and never trusted for
//! where a secret is sent: that is read from the sealed grant, or verified again.

use std::time::Duration;

use super::{Vault, millis};
use crate::database::DatabaseError;

/// The longest document that is cached, bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// Cached documents; the oldest are evicted.
const MAX_DOCUMENTS: i64 = 1000;

/// Cached public documents.
#[derive(Debug, Clone, Copy)]
pub struct MetadataCache<'a>(pub(super) &'a Vault);

impl MetadataCache<'_> {
    /// Caches a document for `ttl`. Returns whether it was cached: not where it is longer than 1 MiB.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put(
        self,
        kind: &str,
        url: &str,
        body: &[u8],
        ttl: Duration,
    ) -> Result<bool, DatabaseError> {
        if body.len() > MAX_DOCUMENT {
            return Ok(false);
        }
        let now = self.0.now();
        let mut tx = self.0.database().begin().await?;
        tx.execute(
            "INSERT INTO metadata (kind, url, body, made, ends) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (kind, url) DO UPDATE SET body = excluded.body, made = excluded.made, ends = excluded.ends",
            &[
                kind.into(),
                url.into(),
                body.into(),
                now.into(),
                now.saturating_add(millis(ttl)).into(),
            ],
        )
        .await?;
        tx.execute(
            "DELETE FROM metadata WHERE (kind, url) IN \
             (SELECT kind, url FROM metadata ORDER BY made DESC, kind, url LIMIT $1 OFFSET $1)",
            &[MAX_DOCUMENTS.into()],
        )
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The cached document, unless it has expired.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(self, kind: &str, url: &str) -> Result<Option<Vec<u8>>, DatabaseError> {
        let text = "SELECT body FROM metadata WHERE kind = $1 AND url = $2 AND ends > $3";
        let values = [kind.into(), url.into(), self.0.now().into()];
        let rows = self.0.database().fetch(text, &values).await?;
        rows.first().map(|row| row.bytes(0)).transpose()
    }
}
