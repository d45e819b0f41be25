//! The change counter: a disconnect, revocation or replacement in one process reaches all of them.
//!
//! Each change of a grant takes the next number in its own transaction and keeps the counter's row locked until it
//! commits: numbers become visible in order and a reader misses none.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use super::grants::{find, key_in};
use super::{GrantKey, Vault};
use crate::database::{DatabaseError, SqlTransaction};
use crate::lock::lock;
use crate::telemetry::chain::chain;

/// Pause between two polls of the counter: even with a slow database an account ends everywhere within 5 s.
const POLL: Duration = Duration::from_secs(2);
/// Changes read by one poll; more empty the whole cache.
const MAX_CHANGES: i64 = 10_000;
/// Changes by this process that the next poll skips.
const MAX_OWN: usize = 10_000;

impl Vault {
    /// Receives the keys of grants that were connected, refreshed, replaced or removed, in this process or another.
    /// After [`Lagged`](broadcast::error::RecvError::Lagged) any grant may have changed.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<GrantKey> {
        self.0.changes.subscribe()
    }

    /// Polls the counter once and evicts changed grants from the cache.
    ///
    /// # Errors
    /// The database fails: the cache stays as it is, and the next poll sees the changes.
    ///
    /// # Cancel safety
    /// The next poll sees the changes again.
    pub async fn poll_changes(&self) -> Result<(), DatabaseError> {
        let text = "SELECT number FROM change_counter WHERE id = 1";
        let number = self.database().number(text, &[]).await?;
        let seen = self.0.seen.load(Ordering::Relaxed);
        if number == seen {
            return Ok(());
        }
        let text = "SELECT owner, upstream, number FROM changes WHERE number > $1 ORDER BY number LIMIT $2";
        let values = [seen.into(), MAX_CHANGES.into()];
        let rows = self.database().fetch(text, &values).await?;
        // Numbers without a gap; a gap means that older rows were swept, or that the database is another one.
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let is_whole = seen >= 0 && number > seen && count >= number - seen && count < MAX_CHANGES;
        if !is_whole {
            let cached = self.0.cache.keys();
            self.0.cache.clear();
            lock(&self.0.own).clear();
            self.0.seen.store(number, Ordering::Relaxed);
            // Any of them may have changed, and accounts in use are cached.
            for key in &cached {
                self.announce(key);
            }
            return Ok(());
        }
        let mut last = seen;
        for row in &rows {
            last = row.int(2)?;
            if lock(&self.0.own).remove(&last) {
                continue;
            }
            self.announce(&key_in(row)?);
        }
        self.0.seen.store(last, Ordering::Relaxed);
        Ok(())
    }

    /// Polls the counter until it is dropped. Nothing else is waited for here: an account that ends in another process ends
    /// within 5 s in this one, however long [`keep`](Self::keep) takes.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn follow_changes(self) {
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            ticks.tick().await;
            let done = self.poll_changes().await;
            match &done {
                Ok(()) if failing => tracing::info!("database answers again"),
                Err(error) if !failing => tracing::error!(
                    error = chain(error),
                    "database does not answer: cached accounts stay usable, others count as not connected"
                ),
                _ => {}
            }
            failing = done.is_err();
        }
    }

    /// Takes the next number for a change of `key` and locks the counter until the transaction ends. Must be its first
    /// statement.
    pub(super) async fn begin_change(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<i64, DatabaseError> {
        let text = "UPDATE change_counter SET number = number + 1 WHERE id = 1 RETURNING number";
        let number = tx.number(text, &[]).await?;
        let text = "INSERT INTO changes (number, owner, upstream, made) VALUES ($1, $2, $3, $4)";
        let [owner, upstream] = find(key);
        let values = [number.into(), owner, upstream, self.now().into()];
        tx.execute(text, &values).await?;
        Ok(number)
    }

    /// Announces a change committed by this process; the next poll of the counter skips the change.
    pub(super) fn changed(&self, key: &GrantKey, number: i64) {
        let mut own = lock(&self.0.own);
        // Bounded, since without polls nothing is removed. A change that is missing here is announced twice.
        if own.len() < MAX_OWN {
            own.insert(number);
        }
        drop(own);
        self.announce(key);
    }

    /// Evicts a changed grant from the cache and tells this process.
    fn announce(&self, key: &GrantKey) {
        self.0.cache.drop_one(key);
        // Fails without receivers, when no part of this process depends on grants.
        drop(self.0.changes.send(key.clone()));
    }
}
