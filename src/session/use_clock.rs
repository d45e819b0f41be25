//! `UseClock`: the age of a session, and its age at the last use by its client.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

use crate::runtime::poll_time;

/// The age of a session, and its age at the last use by its client.
#[derive(Debug)]
pub(super) struct UseClock {
    started: Instant,
    used_us: AtomicU64,
}

impl UseClock {
    /// Of a session that was opened at `started`, and used then.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            used_us: AtomicU64::new(0),
        }
    }

    /// Time since the session was opened.
    pub(super) fn age(&self) -> Duration {
        poll_time::now().saturating_duration_since(self.started)
    }

    /// The session's age at the last use.
    pub(super) fn age_when_used(&self) -> Duration {
        Duration::from_micros(self.used_us.load(Ordering::Relaxed))
    }

    /// Records a use at this `age`.
    pub(super) fn note_use(&self, age: Duration) {
        let us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        self.used_us.store(us, Ordering::Relaxed);
    }

    /// Time from the last use until the session has this `age`.
    pub(super) fn unused_at(&self, age: Duration) -> Duration {
        age.saturating_sub(self.age_when_used())
    }
}
