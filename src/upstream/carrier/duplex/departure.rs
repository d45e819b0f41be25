//! `DepartureFlag`: whether a request has left the gateway.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a request may have reached the upstream. Until noted otherwise it has not left.
#[derive(Debug, Default)]
pub(crate) struct DepartureFlag(AtomicU64);

/// The value before a connection took the request.
const NOT_TAKEN: u64 = 0;
/// The value of a request that may have left. Any other one is the number of a line.
const LEFT: u64 = u64::MAX;

impl DepartureFlag {
    /// The request is this line of a child's input, from 1 on, and may still wait.
    pub(super) fn waits_as(&self, line: u64) {
        self.0.store(line, Ordering::Relaxed);
    }

    /// The request may have left.
    pub(super) fn has_left(&self) {
        self.0.store(LEFT, Ordering::Relaxed);
    }

    /// Whether the upstream cannot see the request, `withdraw` having taken back its line.
    pub(super) fn is_undone(&self, withdraw: impl FnOnce(u64) -> bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            NOT_TAKEN => true,
            LEFT => false,
            line => withdraw(line),
        }
    }
}
