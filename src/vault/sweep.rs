//! Maintenance beside calls: last-used stamps, removal of expired rows, the size of the tables.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::grants::{find, key_in};
use super::revocations::MAX_QUEUED;
use super::{GrantKey, Vault, millis, programs};
use crate::database::DatabaseError;
use crate::telemetry::chain::chain;
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// Pause between two rounds of upkeep.
const ROUND: Duration = Duration::from_secs(2);
/// Rounds between two writes of last-used stamps: a minute.
const FLUSH: u64 = 30;
/// Rounds between two sweeps: five minutes.
const SWEEP: u64 = 150;
/// Rounds from a sweep to the count of grants, which opens each: not while a gateway with many of them starts.
const COUNT: u64 = 1;
/// How long changes are kept, for processes that lag behind.
const CHANGES_KEPT: Duration = Duration::from_hours(1);
/// Unused grants removed per sweep.
const MAX_FORGOTTEN: i64 = 1000;
/// Last-used stamps per transaction.
const STAMPS: usize = 100;

/// Result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepResult {
    /// Grants removed because they were unused for too long.
    pub forgotten: u64,
    /// Authorizations whose callback did not arrive in time.
    pub pending: u64,
    /// Tokens dropped because their server could not be told.
    pub revocations: u64,
}

/// [`Vault::keep`].
pub(super) async fn keep(
    vault: Vault,
    forget: Duration,
    forgotten: impl Fn(&GrantKey) + Send + Sync,
) {
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    for round in 0_u64.. {
        rounds.tick().await;
        let mut done = Ok(());
        if round % FLUSH == FLUSH - 1 {
            done = flush_used(&vault).await;
        }
        if round % SWEEP == 0 {
            done = done.and(sweep(&vault, forget, &forgotten).await.map(drop));
        }
        if round % SWEEP == COUNT {
            done = done.and(vault.count().await);
        }
        // What fails is tried again in minutes: one line until it succeeds.
        if let Err(error) = &done
            && !failing
        {
            tracing::warn!(error = chain(error), "upkeep of the database failed");
        }
        let has_run = round % FLUSH == FLUSH - 1 || round % SWEEP <= COUNT;
        failing = if has_run { done.is_err() } else { failing };
    }
}

/// Writes the last-used stamps that [`touch`](Vault::touch) has recorded.
///
/// # Errors
/// The database fails; the stamps are lost.
pub(super) async fn flush_used(vault: &Vault) -> Result<(), DatabaseError> {
    let mut used: Vec<GrantKey> = vault.0.cache.take_used().into_iter().collect();
    // Sorted, so that every process locks rows in the same order and none deadlocks.
    used.sort_unstable_by(|one, other| {
        let place = |key: &GrantKey| (*key.owner.bytes(), Arc::clone(&key.upstream));
        place(one).cmp(&place(other))
    });
    let now = vault.now();
    for keys in used.chunks(STAMPS) {
        let mut tx = vault.database().begin().await?;
        for key in keys {
            let text =
                "UPDATE grants SET used = $1 WHERE owner = $2 AND upstream = $3 AND used < $1";
            let [owner, upstream] = find(key);
            tx.execute(text, &[now.into(), owner, upstream]).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// [`Vault::sweep`]; calls `forgotten` for each removed grant.
pub(super) async fn sweep(
    vault: &Vault,
    forget: Duration,
    forgotten: &(dyn Fn(&GrantKey) + Send + Sync),
) -> Result<SweepResult, DatabaseError> {
    let now = vault.now();
    let database = vault.database();
    let pending = "DELETE FROM pending WHERE ends <= $1";
    let pending = database.execute(pending, &[now.into()]).await?;
    let seen_by_all = now.saturating_sub(millis(CHANGES_KEPT));
    let changes = "DELETE FROM changes WHERE made < $1";
    database.execute(changes, &[seen_by_all.into()]).await?;
    let revocations = vault.revocations().give_up().await?;
    let unused = now.saturating_sub(millis(forget));
    let lists = "DELETE FROM kept_lists WHERE made < $1 AND NOT EXISTS (SELECT 1 FROM grants \
         WHERE grants.owner = kept_lists.owner AND grants.upstream = kept_lists.upstream)";
    database.execute(lists, &[unused.into()]).await?;
    programs::sweep(database, unused).await?;
    let text = "SELECT owner, upstream FROM grants WHERE used < $1 ORDER BY used LIMIT $2";
    let values = [unused.into(), MAX_FORGOTTEN.into()];
    let rows = database.fetch(text, &values).await?;
    let mut count = 0;
    for row in rows {
        let key = key_in(&row)?;
        if remove_unused(vault, &key, unused).await? {
            forgotten(&key);
            count += 1;
        }
    }
    COUNTERS.vault_grants_forgotten.add(count);
    measure(vault).await?;
    Ok(SweepResult {
        forgotten: count,
        pending,
        revocations,
    })
}

/// Removes a grant unless a call has used it since `unused`.
async fn remove_unused(vault: &Vault, key: &GrantKey, unused: i64) -> Result<bool, DatabaseError> {
    let mut tx = vault.database().begin().await?;
    // First, as in every change: the lock keeps other processes from using or replacing the grant between the check
    // and the removal.
    let number = vault.begin_change(&mut tx, key).await?;
    let [owner, upstream] = find(key);
    let text = "SELECT COUNT(*) FROM grants WHERE owner = $1 AND upstream = $2 AND used < $3";
    if tx.number(text, &[owner, upstream, unused.into()]).await? == 0 {
        return Ok(false);
    }
    vault.remove_rows(&mut tx, key).await?;
    tx.commit().await?;
    vault.changed(key, number);
    Ok(true)
}

async fn measure(vault: &Vault) -> Result<(), DatabaseError> {
    let text = "SELECT (SELECT COUNT(*) FROM grants), (SELECT COUNT(*) FROM pending), \
         (SELECT COUNT(*) FROM (SELECT id FROM revocations LIMIT $1) AS queued)";
    let rows = vault.database().fetch(text, &[MAX_QUEUED.into()]).await?;
    if let Some(row) = rows.first() {
        GAUGES.vault_grants.set(row.int(0)?);
        GAUGES.vault_pending.set(row.int(1)?);
        GAUGES.vault_revocations.set(row.int(2)?);
    }
    Ok(())
}
