//! `KeyFetches`: the fetches of an issuer's keys, so that one runs at a time and few run in a short time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Fetches allowed within [`WINDOW`].
const BURST: usize = 3;
/// See [`BURST`]: a flood of unknown key ids costs the issuer three fetches in this time.
const WINDOW: Duration = Duration::from_secs(30);
/// After a fetch that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The fetch under way, and when the last ones were.
#[derive(Debug, Default)]
pub(super) struct KeyFetches {
    /// Starts of the last fetches, [`BURST`] at most, oldest first.
    pub(super) started: VecDeque<Instant>,
    /// When the last fetch ended, if it failed.
    pub(super) failed: Option<Instant>,
    /// Closed when the fetch under way is over.
    pub(super) running: Option<watch::Receiver<()>>,
}

impl KeyFetches {
    /// Whether a fetch may start now; if so, notes that it does.
    pub(super) fn may_start(&mut self) -> bool {
        let recently = |at: &Instant, pause: Duration| at.elapsed() < pause;
        if self.failed.is_some_and(|at| recently(&at, AFTER_FAILURE)) {
            return false;
        }
        if self.failed.is_none() && self.started.len() == BURST {
            let is_too_early = self.started.front().is_some_and(|at| recently(at, WINDOW));
            if is_too_early {
                return false;
            }
        }
        if self.started.len() == BURST {
            self.started.pop_front();
        }
        self.started.push_back(Instant::now());
        true
    }
}
