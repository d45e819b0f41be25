//! `OpeningAttempts`: numbers the attempts to open the GET stream of an upstream session.

use std::sync::atomic::AtomicU64;

use tokio::sync::Notify;

/// Numbers the attempts to open the GET stream, and tells whether one is under way.
#[derive(Debug, Default)]
pub(super) struct OpeningAttempts {
    pub(super) last: AtomicU64,
    /// The attempt under way; zero for none.
    pub(super) running: AtomicU64,
    /// Told when `running` becomes zero.
    pub(super) over: Notify,
    /// Ends the pause before an attempt, also one that is about to begin.
    pub(super) hurry: Notify,
}
