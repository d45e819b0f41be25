//! The vault: the credentials of principals at upstreams, sealed in the database.
//!
//! Columns beside a sealed record only select it. Everything that decides where a secret is sent is inside the seal or
//! authenticated with it: a moved, swapped or edited row does not open, and counts as missing. A call reads the cache
//! of grants in memory; the database is read once per grant, and polled for changes of other processes every 2 s.

mod account_check;
mod cache;
mod census;
mod changes;
mod grants;
mod key_file;
mod keys;
mod lease;
mod listing;
mod lists;
mod pending;
mod programs;
mod records;
mod registrations;
mod revocations;
mod rotate;
#[cfg(test)]
pub(crate) mod samples;
mod sweep;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;

pub use account_check::AccountCheck;
pub use census::{GrantCensus, GrantCounts};
pub use grants::REFUSED_FOR;
pub use key_file::key_file;
pub use keys::{VaultKeyError, VaultKeys};
pub use lease::{GrantLease, GrantLeases, LEASE, LeaseOutcome};
pub use listing::{GrantList, GrantListing, GrantState, has_grants};
pub use lists::{ListTable, MAX_LIST};
pub use pending::{MAX_PENDING, MAX_PENDING_PER_OWNER, PendingError, PendingTable};
pub use programs::{MAX_NAME, MAX_PROGRAMS, ProgramRecord, ProgramTable};
pub use records::{
    ConnectionState, GrantKey, GrantKind, GrantRecord, PendingRecord, RegistrationRecord,
    RevocationRecord, StoredGrant, TokenPlacement,
};
pub use registrations::RegistrationTable;
pub use revocations::{DueRevocation, RevocationQueue};
pub use rotate::RotationResult;
pub use sweep::SweepResult;

use crate::clock::SharedClock;
use crate::database::{Database, DatabaseError};
use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;
use cache::GrantCache;
use keys::{OpenError, RecordKind, Sealed};

/// Missing keys that are logged; further ones are only counted.
const MAX_TOLD: usize = 16;
/// Changes that a slow reader of [`Vault::changes`] may lag behind.
const CHANGES_BEHIND: usize = 1024;

/// The vault. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Vault(Arc<VaultParts>);

#[derive(Debug)]
struct VaultParts {
    database: Database,
    keys: VaultKeys,
    clock: SharedClock,
    cache: GrantCache,
    /// Number of the last change applied to the cache; negative before the first poll.
    seen: AtomicI64,
    changes: broadcast::Sender<GrantKey>,
    /// Changes of this process that it has announced and the poll has not reached yet.
    own: Mutex<BTreeSet<i64>>,
    /// Keys and tables about which an ERROR was logged.
    told: Mutex<BTreeSet<String>>,
    /// The last count of all grants.
    census: Mutex<Option<Arc<GrantCensus>>>,
}

impl Vault {
    /// A vault in `database` under `keys`. Sends nothing to the database.
    #[must_use]
    pub fn new(database: Database, keys: VaultKeys, clock: SharedClock) -> Self {
        Self(Arc::new(VaultParts {
            database,
            keys,
            clock,
            cache: GrantCache::new(),
            seen: AtomicI64::new(-1),
            changes: broadcast::channel(CHANGES_BEHIND).0,
            own: Mutex::default(),
            told: Mutex::default(),
            census: Mutex::default(),
        }))
    }

    /// The key ring.
    #[must_use]
    pub fn keys(&self) -> &VaultKeys {
        &self.0.keys
    }

    /// The leases on grants, under which they are refreshed.
    #[must_use]
    pub fn leases(&self) -> GrantLeases<'_> {
        GrantLeases(self)
    }

    /// All grants, as operators see them.
    #[must_use]
    pub fn listing(&self) -> GrantList<'_> {
        GrantList(self)
    }

    /// The lists that principals saw last.
    #[must_use]
    pub fn lists(&self) -> ListTable<'_> {
        ListTable(self)
    }

    /// Authorizations that wait for their callback.
    #[must_use]
    pub fn pending(&self) -> PendingTable<'_> {
        PendingTable(self)
    }

    /// Client registrations at authorization servers.
    #[must_use]
    pub fn registrations(&self) -> RegistrationTable<'_> {
        RegistrationTable(self)
    }

    /// Tokens to be revoked at their servers.
    #[must_use]
    pub fn revocations(&self) -> RevocationQueue<'_> {
        RevocationQueue(self)
    }

    /// The programs that used grants.
    #[must_use]
    pub fn programs(&self) -> ProgramTable<'_> {
        ProgramTable(self)
    }

    /// Counts all grants by upstream and state, for [`census`](Self::census) and the metric.
    ///
    /// # Errors
    /// The database fails: the numbers stay as they are.
    pub async fn count(&self) -> Result<(), DatabaseError> {
        let census = census::take(self).await?;
        *lock(&self.0.census) = Some(Arc::new(census));
        Ok(())
    }

    /// The last count of all grants, of the last five minutes where the vault is [kept](Self::keep); `None` before the
    /// first.
    #[must_use]
    pub fn census(&self) -> Option<Arc<GrantCensus>> {
        lock(&self.0.census).clone()
    }

    /// Writes last-used stamps, sweeps and counts, until it is dropped. Grants that are unused for `forget` are removed, and
    /// `forgotten` is told of each. Uses one connection of the database at a time.
    ///
    /// # Cancel safety
    /// Nothing is lost but last-used stamps of up to a minute.
    pub async fn keep(self, forget: Duration, forgotten: impl Fn(&GrantKey) + Send + Sync) {
        sweep::keep(self, forget, forgotten).await;
    }

    /// Writes the last-used stamps that [`touch`](Self::touch) has recorded.
    ///
    /// # Errors
    /// The database fails; the stamps are lost.
    pub async fn flush_used(&self) -> Result<(), DatabaseError> {
        sweep::flush_used(self).await
    }

    /// Removes expired rows, and grants unused for `forget`, whose tokens are queued for revocation.
    ///
    /// # Errors
    /// The database fails; the next sweep continues.
    ///
    /// # Cancel safety
    /// The next sweep continues.
    pub async fn sweep(&self, forget: Duration) -> Result<SweepResult, DatabaseError> {
        sweep::sweep(self, forget, &|_| ()).await
    }

    /// Seals every record again whose key is not the first, a hundred per transaction, while gateways run: a record
    /// that a gateway writes meanwhile is left as written. Every gateway must have the first key in its ring before.
    ///
    /// # Errors
    /// The database fails; the next rotation continues.
    ///
    /// # Cancel safety
    /// The next rotation continues.
    pub async fn rotate(&self) -> Result<RotationResult, DatabaseError> {
        rotate::rotate(self).await
    }

    /// Closes the connections to the database.
    pub async fn close(&self) {
        self.database().close().await;
    }

    fn database(&self) -> &Database {
        &self.0.database
    }

    /// Now, in milliseconds since the Unix epoch.
    fn now(&self) -> i64 {
        millis(self.0.clock.now())
    }

    #[expect(
        clippy::expect_used,
        reason = "records are texts, numbers and lists of these, which JSON has"
    )]
    fn seal<T: Serialize>(&self, kind: RecordKind, place: &[&[u8]], record: &T) -> Sealed {
        let plain = serde_json::to_vec(record).expect("a record is JSON");
        self.0.keys.seal(kind, place, plain)
    }

    /// The record; `None` where it cannot be opened, which is counted, and logged once per key.
    fn open<T: DeserializeOwned>(
        &self,
        kind: RecordKind,
        place: &[&[u8]],
        (key_id, sealed): (&str, &[u8]),
    ) -> Option<T> {
        let opened = self.0.keys.open(kind, place, key_id, sealed);
        let opened =
            opened.and_then(|plain| serde_json::from_slice(&plain).map_err(|_| OpenError::Damaged));
        opened
            .inspect_err(|why| self.report_unreadable(kind, key_id, *why))
            .ok()
    }

    fn report_unreadable(&self, kind: RecordKind, key_id: &str, why: OpenError) {
        COUNTERS.vault_unreadable.add(1);
        match why {
            OpenError::UnknownKey => self.report_missing_key(key_id, 1),
            OpenError::Damaged if self.is_first(format!("{} {key_id}", kind.label())) => {
                tracing::error!(
                    key = key_id,
                    record = kind.label(),
                    "vault record does not open: it was moved or edited in the database, and counts as absent"
                );
            }
            OpenError::Damaged => {}
        }
    }

    fn report_missing_key(&self, key_id: &str, records: i64) {
        if self.is_first(key_id.to_owned()) {
            tracing::error!(
                key = key_id,
                records,
                "vault key is missing: accounts sealed under it are not connected until `keys.vault` has it again"
            );
        }
    }

    /// Whether `what` was not logged before; `false` after too many lines.
    fn is_first(&self, what: String) -> bool {
        let mut told = lock(&self.0.told);
        told.len() < MAX_TOLD && told.insert(what)
    }
}

/// Milliseconds since the Unix epoch, as the database keeps them.
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The inverse of [`millis`].
fn time_of(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

/// The bytes of a column that holds `N`.
fn fixed_bytes<const N: usize>(bytes: Vec<u8>) -> Result<[u8; N], DatabaseError> {
    <[u8; N]>::try_from(bytes).map_err(|_| DatabaseError::Malformed)
}
