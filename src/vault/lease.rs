//! The lease on a grant: one process refreshes it at a time, and no result is lost.
//!
//! The lease is taken by compare-and-set on the version and ends by itself. The result is written by compare-and-set on
//! the version alone: a holder whose lease has ended still writes the only copy of a rotated refresh token, unless
//! another process has written meanwhile. The clocks of gateways on one database must differ by less than 15 s: a token
//! request takes 10 s at most, and must have ended before another gateway takes the lease for over.

use std::time::Duration;

use super::grants::{NO_LEASE, find};
use super::{GrantKey, GrantRecord, StoredGrant, Vault, millis, time_of};
use crate::database::DatabaseError;

/// How long a lease lasts. A token request must have ended before, or count as failed.
pub const LEASE: Duration = Duration::from_secs(30);

/// The right to refresh a grant. After a drop it ends by itself within 30 s.
#[derive(Debug)]
pub struct GrantLease {
    key: GrantKey,
    version: i64,
    holder: [u8; 16],
}

/// Outcome of an attempt to take the lease.
#[derive(Debug)]
pub enum LeaseOutcome {
    /// Taken: refresh the grant.
    Held(GrantLease),
    /// Another process refreshes the grant; its lease ends at this time since the Unix epoch. Read the grant again
    /// until then.
    Busy(Duration),
    /// The grant has another version than the caller's: use this one.
    Newer(Box<StoredGrant>),
    /// The grant is gone, or cannot be opened.
    Gone,
}

/// The leases on all grants.
#[derive(Debug, Clone, Copy)]
pub struct GrantLeases<'a>(pub(super) &'a Vault);

impl GrantLeases<'_> {
    /// Takes the lease on the grant with this version.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// A lease that was taken ends by itself.
    pub async fn take(self, key: &GrantKey, version: i64) -> Result<LeaseOutcome, DatabaseError> {
        let holder: [u8; 16] = rand::random();
        let now = self.0.now();
        let text = "UPDATE grants SET lease = $1, lease_ends = $2 \
                    WHERE owner = $3 AND upstream = $4 AND version = $5 \
                    AND (lease_ends <= $6 OR lease_ends > $7)";
        let [owner, upstream] = find(key);
        let values = [
            (&holder).into(),
            now.saturating_add(millis(LEASE)).into(),
            owner,
            upstream,
            version.into(),
            now.into(),
            self.no_lease_after().into(),
        ];
        if self.0.database().execute(text, &values).await? > 0 {
            return Ok(LeaseOutcome::Held(GrantLease {
                key: key.clone(),
                version,
                holder,
            }));
        }
        match self.0.read_grant(key).await? {
            None => Ok(LeaseOutcome::Gone),
            Some(grant) if grant.version != version => Ok(LeaseOutcome::Newer(Box::new(grant))),
            Some(_) => self.busy(key).await,
        }
    }

    /// A lease that ends later than this is ignored: a wrong clock wrote it. Milliseconds since the Unix epoch.
    pub(super) fn no_lease_after(self) -> i64 {
        self.0.now().saturating_add(millis(2 * LEASE))
    }

    async fn busy(self, key: &GrantKey) -> Result<LeaseOutcome, DatabaseError> {
        let text = "SELECT lease_ends FROM grants WHERE owner = $1 AND upstream = $2";
        let ends = self.0.database().number(text, &find(key)).await?;
        Ok(LeaseOutcome::Busy(time_of(ends)))
    }

    /// Writes the result of a refresh and ends the lease; returns the new version. `None` where the grant was replaced
    /// or removed meanwhile: the result is void, its tokens are queued for revocation as for a replaced grant, and the
    /// caller has to read the grant again. A `record` without access token is of no use: its refresh token is queued
    /// for revocation in place of being kept.
    ///
    /// # Errors
    /// The database fails: try again, since this is the only copy of a rotated refresh token.
    ///
    /// # Cancel safety
    /// Written whole or not at all.
    pub async fn finish(
        self,
        lease: &GrantLease,
        record: &GrantRecord,
    ) -> Result<Option<i64>, DatabaseError> {
        let key = &lease.key;
        let mut tx = self.0.database().begin().await?;
        let version = self.0.begin_change(&mut tx, key).await?;
        let current = self.0.read(&mut tx, key).await?;
        let mut state = current
            .as_ref()
            .map_or_else(Default::default, |it| it.state);
        state.refused = None;
        let useless = record.access_token.is_none().then(|| GrantRecord {
            refresh_token: None,
            ..record.clone()
        });
        let kept = useless.as_ref().unwrap_or(record);
        let sealed = self.0.seal_grant(key, version, (kept, state));
        let text = "UPDATE grants SET version = $1, key_id = $2, sealed = $3, lease = $4, lease_ends = 0 \
                    WHERE owner = $5 AND upstream = $6 AND version = $7";
        let [owner, upstream] = find(key);
        let values = [
            version.into(),
            (&*sealed.key_id).into(),
            (&*sealed.bytes).into(),
            (&NO_LEASE).into(),
            owner,
            upstream,
            lease.version.into(),
        ];
        let written = tx.execute(text, &values).await?;
        if written == 0 || useless.is_some() {
            let current = current.as_ref().map(|grant| &grant.record);
            let new = current.filter(|_| written == 0);
            let queue = self.0.revocations();
            queue.add_replaced(&mut tx, key, (record, new)).await?;
        }
        tx.commit().await?;
        self.0.changed(key, version);
        Ok((written > 0).then_some(version))
    }

    /// Releases the lease without a result, after a failure that keeps the grant.
    ///
    /// # Errors
    /// The database fails: the lease ends by itself.
    pub async fn release(self, lease: GrantLease) -> Result<(), DatabaseError> {
        let text =
            "UPDATE grants SET lease_ends = 0 WHERE owner = $1 AND upstream = $2 AND lease = $3";
        let [owner, upstream] = find(&lease.key);
        let values = [owner, upstream, (&lease.holder).into()];
        self.0.database().execute(text, &values).await.map(drop)
    }
}
