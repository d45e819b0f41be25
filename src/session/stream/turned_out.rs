//! Readers of a stream that were told to end because a newer one resumed it. Spec: SPEC T-25, T-29.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Readers whose clients may come back: as many as a session may usually have streams.
const MOST: usize = 8;
/// How long a client that was ended may take to come back. Whoever comes from the same place later is
/// rather one whose connection broke once more on a stream that was quiet.
const COMES_BACK_WITHIN: Duration = Duration::from_mins(1);

/// How far readers had read that were told to end, and when: whose client comes back from there was
/// not gone.
#[derive(Debug, Default)]
pub(super) struct TurnedOut(VecDeque<(u64, Instant)>);

impl TurnedOut {
    /// Whether a client comes back whose reader was told to end when it had read up to `seq`.
    pub(super) fn comes_back(&mut self, seq: u64) -> bool {
        let found = self.0.iter().position(|(read, _)| *read == seq);
        let known = found.and_then(|at| self.0.remove(at));
        known.is_some_and(|(_, since)| since.elapsed() < COMES_BACK_WITHIN)
    }

    /// Notes how far a reader had read that is told to end.
    pub(super) fn note(&mut self, read: u64) {
        // One is enough: a client that is gone leaves its own behind each time.
        self.0.retain(|(known, _)| *known != read);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((read, Instant::now()));
    }
}
