//! `ChildUse`: whether a child is in use, and when it was used last.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Whether a child is in use, and when it was used last.
pub(super) struct ChildUse {
    started: Instant,
    /// Running uses; the child is not idle while this is above zero.
    busy: AtomicU32,
    /// Live `HoldGuard`s: the idle stop spares the child, but its place may still be taken.
    held: AtomicU32,
    /// Milliseconds from `started` to the last use.
    last_used: AtomicU64,
    /// Whether an `UnusedGuard` is alive: traffic is a liveness check and does not count as use.
    is_asked: AtomicBool,
}

impl ChildUse {
    /// The use of a child that has just been started.
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            busy: AtomicU32::new(0),
            held: AtomicU32::new(0),
            last_used: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Time since the child was started.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sets whether output is only a reply to a liveness check, which does not count as use.
    pub(super) fn set_asked(&self, asked: bool) {
        self.is_asked.store(asked, Ordering::Relaxed);
    }

    /// Notes a message in either direction as use, except during a liveness check.
    pub(super) fn touch(&self) {
        if !self.is_asked.load(Ordering::Relaxed) {
            self.note();
        }
    }

    fn note(&self) {
        let now = u64::try_from(self.age().as_millis()).unwrap_or(u64::MAX);
        self.last_used.store(now, Ordering::Relaxed);
    }

    /// When the child was used last.
    pub(super) fn last_used(&self) -> Instant {
        self.started + Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }

    /// Notes a use, which keeps the child from counting as idle until [`end`](Self::end).
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.note();
    }

    /// Ends a use that [`begin`](Self::begin) noted. Returns whether no other use runs.
    pub(super) fn end(&self) -> bool {
        self.note();
        self.busy.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether no use runs.
    pub(super) fn is_over(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Adds a reason to spare the unused child from the idle stop.
    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a reason that `hold` added.
    pub(super) fn release_hold(&self) {
        self.note();
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a `HoldGuard` spares the child from the idle stop, for the notifications it may send.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }
}
