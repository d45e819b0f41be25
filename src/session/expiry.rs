//! How long a session is unused, whether something runs in it, and whether it has expired.

use std::sync::atomic::Ordering;

use tokio::time::Duration;

use super::{Session, lock};

impl Session {
    /// Notes that the client is there.
    pub fn touch(&self) {
        self.touch_at(self.age());
    }

    /// Records a use at a known `age`, saving the caller a second read of the clock.
    pub(super) fn touch_at(&self, age: Duration) {
        self.uses.note_use(age);
    }

    /// Time since the client's last use; zero while [`is_busy`](Self::is_busy).
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        self.uses.unused_at(self.age())
    }

    /// Whether the session has expired at `age`: idle for longer than `idle`, or older than `absolute`. An implicit
    /// session with running or parked calls outlives `absolute`: its client knows of no session and could not
    /// have opened another. Called for every request, so `is_busy`, which takes locks, is checked last.
    #[must_use]
    pub fn outlived(&self, age: Duration, idle: Duration, absolute: Duration) -> bool {
        if age > absolute {
            return !self.implicit.as_ref().is_some_and(|it| it.is_busy());
        }
        self.uses.unused_at(age) > idle && !self.is_busy()
    }

    /// Time since the session was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.uses.age()
    }

    /// The session's age at the client's last use. While a request is served, that is nearly the age now.
    #[must_use]
    pub fn age_when_used(&self) -> Duration {
        self.uses.age_when_used()
    }

    /// Whether the session's `initialize`, a call or a hosted task runs, or a stream is open.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.opening.load(Ordering::Relaxed)
            || self.open_streams.load(Ordering::Relaxed) > 0
            || self.open_standalones.load(Ordering::Relaxed) > 0
            || self.implicit.as_ref().is_some_and(|it| it.is_busy())
            || self.tasks.is_running()
            || !lock(&self.calls).is_empty()
    }
}
