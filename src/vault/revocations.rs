//! Tokens to be revoked at their servers (RFC 7009). The grant is removed here at once; its server is told in the
//! background, with growing pauses, for up to a week.

use std::time::Duration;

use super::keys::RecordKind;
use super::{GrantKey, GrantKind, GrantRecord, RevocationRecord, Vault, fixed_bytes, millis};
use crate::database::{DatabaseError, SqlTransaction};
use crate::telemetry::metrics::COUNTERS;

/// Queued tokens; the oldest are dropped. An account has two: 50,000 accounts can be ended at once.
pub(super) const MAX_QUEUED: i64 = 100_000;
/// Age at which a token is dropped from the queue.
pub(super) const GIVE_UP: Duration = Duration::from_hours(7 * 24);
/// Pause after the first attempt; doubled by each further one, up to 2^10 times.
const PAUSE: Duration = Duration::from_mins(1);
const MAX_DOUBLINGS: i64 = 10;

/// A token to be revoked now.
#[derive(Debug)]
pub struct DueRevocation {
    id: [u8; 16],
    /// The token, its endpoint and its client.
    pub record: RevocationRecord,
    /// Attempts before this one.
    pub tries: i64,
}

/// Tokens to be revoked at their servers.
#[derive(Debug, Clone, Copy)]
pub struct RevocationQueue<'a>(pub(super) &'a Vault);

impl RevocationQueue<'_> {
    /// Queues the tokens of `old` that `new` does not have; none where both have the same registration and account,
    /// since some servers end all grants of a registration and account with one token.
    pub(super) async fn add_replaced(
        self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
        (old, new): (&GrantRecord, Option<&GrantRecord>),
    ) -> Result<(), DatabaseError> {
        let Some(endpoint) = &old.revocation_endpoint else {
            return Ok(());
        };
        if new.is_some_and(|new| old.may_share_its_end_with(new)) {
            return Ok(());
        }
        let has = |token: &str| {
            let tokens = new.map(|new| [&new.access_token, &new.refresh_token]);
            let mut tokens = tokens.into_iter().flatten().flatten();
            tokens.any(|kept| kept.expose() == token)
        };
        // Both are sent: a server that forgets a refresh token may forget its access tokens (RFC 7009, section 2.1), or
        // may not.
        for (token, hint) in [
            (&old.refresh_token, "refresh_token"),
            (&old.access_token, "access_token"),
        ] {
            let Some(token) = token else { continue };
            let is_id_token = old.kind == GrantKind::Login && hint == "access_token";
            if is_id_token || has(token.expose()) {
                continue;
            }
            let record = RevocationRecord {
                upstream: key.upstream.to_string(),
                owner: Some(*key.owner.bytes()),
                issuer: old.issuer.clone(),
                endpoint: endpoint.clone(),
                client_id: old.client_id.clone(),
                auth_method: old.auth_method.clone(),
                token: Some(token.clone()),
                hint: hint.to_owned(),
            };
            self.add(tx, &record).await?;
        }
        Ok(())
    }

    async fn add(
        self,
        tx: &mut SqlTransaction,
        record: &RevocationRecord,
    ) -> Result<(), DatabaseError> {
        let id: [u8; 16] = rand::random();
        let sealed = self.0.seal(RecordKind::Revocation, &[&id], record);
        let text = "INSERT INTO revocations (id, key_id, sealed, tries, due, made) VALUES ($1, $2, $3, 0, $4, $4)";
        let values = [
            (&id).into(),
            (&*sealed.key_id).into(),
            (&*sealed.bytes).into(),
            self.0.now().into(),
        ];
        tx.execute(text, &values).await.map(drop)
    }

    /// Takes up to `most` tokens that are due. Each becomes due again after a pause, unless [finished]; no
    /// other process gets it before.
    ///
    /// [finished]: Self::finish
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// A taken token becomes due again after its pause.
    pub async fn due(self, most: i64) -> Result<Vec<DueRevocation>, DatabaseError> {
        let now = self.0.now();
        let text = "SELECT id, key_id, sealed, tries FROM revocations WHERE due <= $1 ORDER BY due LIMIT $2";
        let values = [now.into(), most.into()];
        let rows = self.0.database().fetch(text, &values).await?;
        let mut due = Vec::new();
        for row in rows {
            let id: [u8; 16] = fixed_bytes(row.bytes(0)?)?;
            let tries = row.int(3)?;
            let factor = 1_i64 << tries.clamp(0, MAX_DOUBLINGS);
            let again = now.saturating_add(millis(PAUSE).saturating_mul(factor));
            let text =
                "UPDATE revocations SET due = $1, tries = tries + 1 WHERE id = $2 AND tries = $3";
            let values = [again.into(), (&id).into(), tries.into()];
            if self.0.database().execute(text, &values).await? == 0 {
                continue;
            }
            let sealed = (&*row.text(1)?, &*row.bytes(2)?);
            if let Some(record) = self.0.open(RecordKind::Revocation, &[&id], sealed) {
                due.push(DueRevocation { id, record, tries });
            }
        }
        Ok(due)
    }

    /// Removes a token from the queue: its server was told, or never can be.
    ///
    /// # Errors
    /// The database fails: the token becomes due again after its pause.
    pub async fn finish(self, done: &DueRevocation) -> Result<(), DatabaseError> {
        let text = "DELETE FROM revocations WHERE id = $1";
        let values = [(&done.id).into()];
        self.0.database().execute(text, &values).await.map(drop)
    }

    /// Drops tokens that have waited for a week, and the oldest beyond [`MAX_QUEUED`].
    pub(super) async fn give_up(self) -> Result<u64, DatabaseError> {
        let old = self.0.now().saturating_sub(millis(GIVE_UP));
        let database = self.0.database();
        let text = "DELETE FROM revocations WHERE made < $1";
        let aged = database.execute(text, &[old.into()]).await?;
        let text = "DELETE FROM revocations WHERE id IN \
             (SELECT id FROM revocations ORDER BY made DESC, id LIMIT $1 OFFSET $1)";
        let crowded = database.execute(text, &[MAX_QUEUED.into()]).await?;
        let tokens = aged + crowded;
        if tokens > 0 {
            COUNTERS.vault_revocations_given_up.add(tokens);
            tracing::warn!(
                tokens,
                crowded,
                "tokens of ended accounts were given up: their servers were not told, and they stay valid there until they end"
            );
        }
        Ok(tokens)
    }
}
