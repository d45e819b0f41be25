//! Authorizations waiting for their callback: selected by the digest of their `state`, single-use, kept for ten
//! minutes.

use std::time::Duration;

use super::keys::RecordKind;
use super::{PendingRecord, Vault, fixed_bytes, millis};
use crate::call::OwnerKey;
use crate::database::DatabaseError;
use crate::telemetry::metrics::COUNTERS;

/// How long an authorization waits.
pub(super) const ENDS: Duration = Duration::from_mins(10);
/// Pending authorizations of one principal; the oldest is evicted for a new one.
pub const MAX_PENDING_PER_OWNER: i64 = 16;
/// Pending authorizations in all; further ones are refused, since no principal may evict another's.
pub const MAX_PENDING: i64 = 10_000;

/// Why an authorization cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PendingError {
    /// [`MAX_PENDING`] authorizations wait already.
    #[error("too many authorizations wait for their callback")]
    Full,
    /// The database fails.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Authorizations that wait for their callback.
#[derive(Debug, Clone, Copy)]
pub struct PendingTable<'a>(pub(super) &'a Vault);

impl PendingTable<'_> {
    /// Stores an authorization of `owner` for ten minutes. `state` is the SHA-256 of the `state` that was sent.
    ///
    /// # Errors
    /// Too many authorizations wait, or the database fails.
    ///
    /// # Cancel safety
    /// Stored whole or not at all.
    pub async fn put(
        self,
        owner: OwnerKey,
        state: &[u8; 32],
        record: &PendingRecord,
    ) -> Result<(), PendingError> {
        let now = self.0.now();
        let place: [&[u8]; 2] = [state, owner.bytes()];
        let sealed = self.0.seal(RecordKind::Pending, &place, record);
        let mut tx = self.0.database().begin().await?;
        // Serialises transactions on PostgreSQL: the counts below hold until the commit.
        let text = "UPDATE change_counter SET number = number WHERE id = 1";
        tx.execute(text, &[]).await?;
        tx.execute("DELETE FROM pending WHERE ends <= $1", &[now.into()])
            .await?;
        let text = "DELETE FROM pending WHERE state IN \
             (SELECT state FROM pending WHERE owner = $1 ORDER BY made DESC, state LIMIT $2 OFFSET $3)";
        let others = MAX_PENDING_PER_OWNER - 1;
        let values = [owner.bytes().into(), MAX_PENDING.into(), others.into()];
        let evicted = tx.execute(text, &values).await?;
        let count = tx.number("SELECT COUNT(*) FROM pending", &[]).await?;
        if count >= MAX_PENDING {
            COUNTERS.vault_pending_refused.add(1);
            return Err(PendingError::Full);
        }
        tx.execute(
            "INSERT INTO pending (state, owner, key_id, sealed, made, ends) VALUES ($1, $2, $3, $4, $5, $6)",
            &[
                state.into(),
                owner.bytes().into(),
                (&*sealed.key_id).into(),
                (&*sealed.bytes).into(),
                now.into(),
                now.saturating_add(millis(ENDS)).into(),
            ],
        )
        .await?;
        tx.commit().await?;
        COUNTERS.vault_pending_evicted.add(evicted);
        Ok(())
    }

    /// Takes the authorization of a `state`, which works once, and its owner; `None` where the state is unknown, used,
    /// evicted or expired, or the record cannot be opened.
    ///
    /// # Errors
    /// The database fails; the authorization may be gone.
    pub async fn take(
        self,
        state: &[u8; 32],
    ) -> Result<Option<(OwnerKey, PendingRecord)>, DatabaseError> {
        let mut tx = self.0.database().begin().await?;
        let text = "DELETE FROM pending WHERE state = $1 RETURNING owner, key_id, sealed, ends";
        let rows = tx.fetch(text, &[state.into()]).await?;
        tx.commit().await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        if row.int(3)? <= self.0.now() {
            return Ok(None);
        }
        let owner: [u8; 32] = fixed_bytes(row.bytes(0)?)?;
        let (key_id, sealed) = (row.text(1)?, row.bytes(2)?);
        let record = self
            .0
            .open(RecordKind::Pending, &[state, &owner], (&key_id, &sealed));
        Ok(record.map(|record| (OwnerKey::from_bytes(owner), record)))
    }
}
