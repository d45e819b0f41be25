//! `AdoptionWork`: what a replica does at the moment to take sessions over.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::SessionPlace;
use crate::ownership::Ownership;
use crate::store::events::{FetchedLog, SessionKey};
use crate::store::records::SessionRecord;
use crate::sync::single_flight::SingleFlight;
use crate::telemetry::metrics::{COUNTERS, LABELED};

/// Adoptions under way at once; others wait.
const AT_ONCE: usize = 100;
/// Logs read at once for the ends of streams, each at most `events.per_session`; others wait.
const READ_AT_ONCE: usize = 16;
/// Sessions that are remembered at most in each of the caches of [`AdoptionWork`].
const REMEMBERED: u64 = 64 * 1024;
/// How long a claim of an implicit session is left alone that has no session yet.
const OPENED_WITHIN: Duration = Duration::from_secs(1);

/// What is under way.
#[derive(Debug)]
pub(in crate::downstream) struct AdoptionWork {
    pub(super) looks: SingleFlight<SessionKey, SessionPlace>,
    pub(super) permits: Semaphore,
    /// Logs that are read for the ends of streams.
    pub(super) logs: SingleFlight<SessionKey, Option<Arc<FetchedLog>>>,
    pub(super) readings: Semaphore,
    /// Sessions that this replica owns, or may own, and that do not live here yet.
    pub(super) unfinished: Cache<SessionKey, FormerOwner>,
    /// Sessions of lost replicas whose records cannot be read, since their first request.
    pub(super) unreadable: Cache<SessionKey, Instant>,
    /// Implicit sessions that were claimed a moment ago, and may be opened yet.
    pub(super) claimed: Cache<SessionKey, ()>,
    /// The run of Redis that this replica has seen first.
    pub(super) first_run: OnceLock<Arc<str>>,
}

impl AdoptionWork {
    /// Nothing is under way. What is known of a session is forgotten after `idle`, when its record has expired.
    pub(in crate::downstream) fn new(idle: Duration) -> Self {
        fn cache<T: Clone + Send + Sync + 'static>(idle: Duration) -> Cache<SessionKey, T> {
            let cache = Cache::builder().max_capacity(REMEMBERED);
            cache.time_to_live(idle).build()
        }
        Self {
            looks: SingleFlight::default(),
            permits: Semaphore::new(AT_ONCE),
            logs: SingleFlight::default(),
            readings: Semaphore::new(READ_AT_ONCE),
            unfinished: cache(idle),
            unreadable: cache(idle),
            claimed: cache(OPENED_WITHIN),
            first_run: OnceLock::new(),
        }
    }
}

/// Why a session is adopted.
#[derive(Debug, Clone, Copy)]
pub(super) enum FormerOwner {
    /// This replica is lost.
    Lost(u32),
    /// It has given the session up.
    GaveUp,
}

impl FormerOwner {
    /// The replica, for the log.
    pub(super) fn word(self) -> String {
        match self {
            Self::Lost(node) => format!("{node:08x}"),
            Self::GaveUp => "given up".to_owned(),
        }
    }

    pub(super) fn log_adopted(self, record: &SessionRecord, by: Ownership) {
        let (session, epoch) = (format!("{:016x}", record.tag), by.epoch);
        match self {
            Self::Lost(_) => tracing::info!(
                session,
                from = self.word(),
                epoch,
                reason = "its replica has no lease and does not answer",
                "session adopted"
            ),
            Self::GaveUp => tracing::debug!(session, epoch, "session taken over"),
        }
    }

    /// Counts a session that goes on here.
    pub(super) fn count_adopted(self) {
        match self {
            Self::Lost(_) => COUNTERS.sessions_adopted.add(1),
            Self::GaveUp => LABELED.hand_overs.add("taken_over", 1),
        }
    }
}
