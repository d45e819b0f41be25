//! Grants in the database: write, read, remove.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::keys::{RecordKind, Sealed};
use super::records::{OpenedGrant, SealedGrant};
use super::{ConnectionState, GrantKey, GrantRecord, StoredGrant, Vault, fixed_bytes, programs};
use crate::call::OwnerKey;
use crate::database::{DatabaseError, SqlRow, SqlTransaction, SqlValue};

/// How long a refused grant is not sent.
pub const REFUSED_FOR: Duration = Duration::from_mins(1);
/// Pause before the first retry of [`Vault::put_only_copy`], doubled by each further one, and for how long it tries again.
const PAUSE: Duration = Duration::from_millis(200);
const TRIED_FOR: Duration = Duration::from_secs(3);
/// The lease column of a grant that is not being refreshed.
pub(super) const NO_LEASE: [u8; 0] = [];

impl Vault {
    /// The cached grant, without lock and without waiting: `None` where nothing is cached, `Some(None)` where the owner
    /// has no grant.
    #[must_use]
    pub fn cached_grant(&self, key: &GrantKey) -> Option<Option<Arc<StoredGrant>>> {
        self.0.cache.get(key)
    }

    /// Goes up with each change of an account of `owner` that this process knows of, for
    /// [`AccountCheck`](super::AccountCheck). Read before the account that is remembered. No lock.
    #[must_use]
    pub fn generation(&self, owner: OwnerKey) -> u64 {
        self.0.cache.generation(owner)
    }

    /// The grant, from the cache or else from the database. Changes by other processes show up within [5
    /// s](Vault::follow_changes).
    ///
    /// # Errors
    /// The grant is not cached and the database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn grant(&self, key: &GrantKey) -> Result<Option<Arc<StoredGrant>>, DatabaseError> {
        if let Some(cached) = self.cached_grant(key) {
            return Ok(cached);
        }
        let epoch = self.0.cache.epoch();
        let grant = self.read_grant(key).await?.map(Arc::new);
        self.0.cache.insert(key, grant.clone(), epoch);
        Ok(grant)
    }

    /// Records that a call uses the grant now. Takes a lock once in ten minutes per grant; [`keep`](Vault::keep) writes
    /// to the database.
    pub fn touch(&self, grant: &StoredGrant) {
        self.0.cache.touch(grant, self.now());
    }

    /// Retries [`put_grant`](Self::put_grant) with growing pauses. For tokens that were just issued for a code: the code
    /// cannot be used again, and the tokens would stay valid at their server.
    ///
    /// # Errors
    /// The database fails; no attempt begins after 3 seconds.
    ///
    /// # Cancel safety
    /// Stored whole or not at all.
    pub async fn put_only_copy(
        &self,
        key: &GrantKey,
        record: &GrantRecord,
    ) -> Result<i64, DatabaseError> {
        let (began, mut pause) = (Instant::now(), PAUSE);
        loop {
            let stored = self.put_grant(key, record).await;
            if stored.is_ok() || began.elapsed() + pause > TRIED_FOR {
                return stored;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Stores a grant and replaces the previous one; returns its version.
    ///
    /// Tokens of the previous grant are queued for revocation if it is of another issuer, registration or account and
    /// the new grant does not have them. Stored lists of another issuer or account are removed. A refresh of the
    /// previous grant that is under way finds its version superseded.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Stored whole or not at all.
    pub async fn put_grant(
        &self,
        key: &GrantKey,
        record: &GrantRecord,
    ) -> Result<i64, DatabaseError> {
        let mut tx = self.database().begin().await?;
        let version = self.begin_change(&mut tx, key).await?;
        let old = self.read(&mut tx, key).await?;
        if let Some(old) = &old {
            self.revocations()
                .add_replaced(&mut tx, key, (&old.record, Some(record)))
                .await?;
        }
        // Only the account's name proves that the account is the same; without a previous grant nothing does.
        let is_the_same = |old: &StoredGrant| {
            let (old, account) = (&old.record, &record.account);
            account.is_some() && old.issuer == record.issuer && old.account == *account
        };
        if !old.as_ref().is_some_and(is_the_same) {
            self.lists().remove(&mut tx, key).await?;
        }
        programs::remove(&mut tx, key).await?;
        let state = ConnectionState {
            connection: version,
            refused: None,
        };
        let sealed = self.seal_grant(key, version, (record, state));
        tx.execute(
            "INSERT INTO grants (owner, upstream, version, key_id, sealed, lease, lease_ends, made, used) \
             VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $7) \
             ON CONFLICT (owner, upstream) DO UPDATE SET version = excluded.version, key_id = excluded.key_id, \
             sealed = excluded.sealed, lease = excluded.lease, lease_ends = 0, made = excluded.made, \
             used = excluded.used",
            &[
                key.owner.bytes().into(),
                (&*key.upstream).into(),
                version.into(),
                (&*sealed.key_id).into(),
                (&*sealed.bytes).into(),
                (&NO_LEASE).into(),
                self.now().into(),
            ],
        )
        .await?;
        tx.commit().await?;
        self.changed(key, version);
        Ok(version)
    }

    /// The grant as the database has it now; `None` also where the record cannot be opened.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn read_grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, DatabaseError> {
        let rows = self.database().fetch(SELECT, &find(key)).await?;
        self.opened(key, rows.first())
    }

    /// Removes a grant and the lists stored with it, and queues its tokens for revocation. Returns `false`
    /// where the database had neither.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Removed whole or not at all.
    pub async fn remove_grant(&self, key: &GrantKey) -> Result<bool, DatabaseError> {
        let mut tx = self.database().begin().await?;
        let Some(number) = self.remove_in(&mut tx, key).await? else {
            return Ok(false);
        };
        tx.commit().await?;
        self.changed(key, number);
        Ok(true)
    }

    /// Removes a grant if it still has this version, as after `invalid_grant`; a grant refreshed or replaced meanwhile
    /// stays. Its tokens are not revoked, since their server has ended them. Its lists stay until
    /// [`put_grant`](Self::put_grant), for as long as unused grants do.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Removed whole or not at all.
    pub async fn end_grant(&self, key: &GrantKey, version: i64) -> Result<bool, DatabaseError> {
        let mut tx = self.database().begin().await?;
        let number = self.begin_change(&mut tx, key).await?;
        let [owner, upstream] = find(key);
        let text = "DELETE FROM grants WHERE owner = $1 AND upstream = $2 AND version = $3";
        let values = [owner, upstream, version.into()];
        if tx.execute(text, &values).await? == 0 {
            return Ok(false);
        }
        programs::remove(&mut tx, key).await?;
        tx.commit().await?;
        self.changed(key, number);
        Ok(true)
    }

    /// Records that the upstream refused the grant of this version, or with `false` that the upstream accepted it
    /// again. Returns whether the row was changed: not if the grant has another version by now, nor while its lease
    /// runs, since the refresh under way is written by compare-and-set on the version and holds the only copy of a
    /// rotated refresh token.
    ///
    /// A refusal removes nothing: a single 401 may come from a server that is restarting or has lost its own database
    /// for a moment, and the owner would have to create a deleted key again. So the grant stays; for [`REFUSED_FOR`] it
    /// counts as not connected, then the next call retries it.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Recorded whole or not at all.
    pub async fn mark_refused(
        &self,
        key: &GrantKey,
        version: i64,
        is_refused: bool,
    ) -> Result<bool, DatabaseError> {
        let mut tx = self.database().begin().await?;
        let number = self.begin_change(&mut tx, key).await?;
        let Some(grant) = self.read(&mut tx, key).await? else {
            return Ok(false);
        };
        let now = u64::try_from(self.now()).unwrap_or_default();
        let state = ConnectionState {
            refused: is_refused.then_some(now),
            ..grant.state
        };
        let sealed = self.seal_grant(key, number, (&grant.record, state));
        let [owner, upstream] = find(key);
        let text = "UPDATE grants SET version = $1, key_id = $2, sealed = $3 \
                    WHERE owner = $4 AND upstream = $5 AND version = $6 \
                    AND (lease_ends <= $7 OR lease_ends > $8)";
        let values = [
            number.into(),
            (&*sealed.key_id).into(),
            (&*sealed.bytes).into(),
            owner,
            upstream,
            version.into(),
            self.now().into(),
            self.leases().no_lease_after().into(),
        ];
        if tx.execute(text, &values).await? == 0 {
            return Ok(false);
        }
        tx.commit().await?;
        self.changed(key, number);
        Ok(true)
    }

    /// Whether the upstream refused the grant less than a minute ago, so that it is not sent. A refusal of a later time is
    /// ignored: a wrong clock noted it.
    #[must_use]
    pub fn counts_as_refused(&self, grant: &StoredGrant) -> bool {
        let now = u64::try_from(self.now()).unwrap_or_default();
        let pause = u64::try_from(REFUSED_FOR.as_millis()).unwrap_or(u64::MAX);
        let refused = grant.state.refused;
        // Clocks of gateways may differ a little.
        refused.is_some_and(|at| now.abs_diff(at) < pause)
    }

    /// The upstreams where `owner` has a grant, readable or not, ordered by name.
    ///
    /// # Errors
    /// The database fails.
    pub async fn upstreams_of(&self, owner: OwnerKey) -> Result<Vec<String>, DatabaseError> {
        let text = "SELECT upstream FROM grants WHERE owner = $1 ORDER BY upstream";
        let rows = self.database().fetch(text, &[owner.bytes().into()]).await?;
        rows.iter().map(|row| row.text(0)).collect()
    }

    /// Removes a grant inside a transaction; returns the number of the change, or `None` where there is nothing to
    /// commit.
    async fn remove_in(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<Option<i64>, DatabaseError> {
        let number = self.begin_change(tx, key).await?;
        let removed = self.remove_rows(tx, key).await?;
        Ok(removed.then_some(number))
    }

    /// Removes a grant and its lists after [`begin_change`](Self::begin_change). Returns `false` where the
    /// database had neither.
    pub(super) async fn remove_rows(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<bool, DatabaseError> {
        if let Some(old) = self.read(tx, key).await? {
            self.revocations()
                .add_replaced(tx, key, (&old.record, None))
                .await?;
        }
        let lists = self.lists().remove(tx, key).await?;
        programs::remove(tx, key).await?;
        let text = "DELETE FROM grants WHERE owner = $1 AND upstream = $2";
        let grants = tx.execute(text, &find(key)).await?;
        Ok(grants + lists > 0)
    }

    /// Queues the tokens of `record`, which is not stored as the grant of `key`, for revocation: as those of a replaced
    /// grant.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Queued all or not at all.
    pub async fn revoke_unkept(
        &self,
        key: &GrantKey,
        record: &GrantRecord,
    ) -> Result<(), DatabaseError> {
        let mut tx = self.database().begin().await?;
        let current = self.read(&mut tx, key).await?;
        let current = current.as_ref().map(|grant| &grant.record);
        self.revocations()
            .add_replaced(&mut tx, key, (record, current))
            .await?;
        tx.commit().await
    }

    /// The record of a row; `None` where it cannot be opened.
    pub(super) fn open_grant(
        &self,
        key: &GrantKey,
        version: i64,
        sealed: (&str, &[u8]),
    ) -> Option<OpenedGrant> {
        let number = version.to_be_bytes();
        let place: [&[u8]; 3] = [key.owner.bytes(), key.upstream.as_bytes(), &number];
        self.open(RecordKind::Grant, &place, sealed)
    }

    /// The sealed record, bound to its row and to the number of the change that writes it.
    pub(super) fn seal_grant(
        &self,
        key: &GrantKey,
        version: i64,
        (record, state): (&GrantRecord, ConnectionState),
    ) -> Sealed {
        let number = version.to_be_bytes();
        let place: [&[u8]; 3] = [key.owner.bytes(), key.upstream.as_bytes(), &number];
        self.seal(RecordKind::Grant, &place, &SealedGrant { record, state })
    }

    pub(super) async fn read(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<Option<StoredGrant>, DatabaseError> {
        let rows = tx.fetch(SELECT, &find(key)).await?;
        self.opened(key, rows.first())
    }

    fn opened(
        &self,
        key: &GrantKey,
        row: Option<&SqlRow>,
    ) -> Result<Option<StoredGrant>, DatabaseError> {
        let Some(row) = row else { return Ok(None) };
        let version = row.int(0)?;
        let (key_id, sealed) = (row.text(1)?, row.bytes(2)?);
        let opened = self.open_grant(key, version, (&key_id, &sealed));
        let (used, made) = (AtomicI64::new(row.int(3)?), row.int(4)?);
        Ok(opened.map(|opened| StoredGrant {
            key: key.clone(),
            record: opened.record,
            version,
            state: opened.state,
            made,
            used,
        }))
    }
}

const SELECT: &str =
    "SELECT version, key_id, sealed, used, made FROM grants WHERE owner = $1 AND upstream = $2";

/// The values that select a grant.
pub(super) fn find(key: &GrantKey) -> [SqlValue; 2] {
    [key.owner.bytes().into(), (&*key.upstream).into()]
}

/// The key in the first two columns of `row`, owner and upstream.
pub(super) fn key_in(row: &SqlRow) -> Result<GrantKey, DatabaseError> {
    let owner = OwnerKey::from_bytes(fixed_bytes(row.bytes(0)?)?);
    Ok(GrantKey::new(owner, &row.text(1)?))
}

#[cfg(test)]
mod tests {
    use super::super::samples::{user_grant, vault};
    use super::*;
    use crate::call::Principal;
    use crate::database::{Database, DatabasePlace};

    #[tokio::test]
    async fn only_copy_of_a_token_outlasts_a_short_outage() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(&dir).await;
        let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
        let database = Database::open(&place).await.unwrap();
        let key = GrantKey::new(Principal::anonymous().owner(), "up");
        let record = user_grant("token");
        let away = "ALTER TABLE grants RENAME TO away";
        database.execute(away, &[]).await.unwrap();
        assert!(vault.put_grant(&key, &record).await.is_err());
        let back = async {
            sleep(PAUSE / 2).await;
            let back = "ALTER TABLE away RENAME TO grants";
            database.execute(back, &[]).await.unwrap();
        };
        let (version, ()) = tokio::join!(vault.put_only_copy(&key, &record), back);
        let version = version.unwrap();
        let stored = vault.read_grant(&key).await.unwrap().unwrap();
        assert_eq!(stored.version, version);
    }
}
