//! Readers of a stream that were told to end because a newer one resumed it. Spec: SPEC T-25, T-29.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Readers whose clients may come back: as many as a session may usually have streams.
const MOST: usize = 8;
/// How long the client of a superseded reader may take to come back. A later resume from the same
/// position is more likely a connection that broke again on a quiet stream.
const COMES_BACK_WITHIN: Duration = Duration::from_mins(1);

/// Position and time of each superseded reader: a resume from that position means that the reader's
/// client was not gone.
#[derive(Debug, Default)]
pub(super) struct SupersededReaders(VecDeque<(u64, Instant)>);

impl SupersededReaders {
    /// Whether a reader was superseded at `seq` within [`COMES_BACK_WITHIN`]; removes the entry.
    pub(super) fn comes_back(&mut self, seq: u64) -> bool {
        let found = self.0.iter().position(|(read, _)| *read == seq);
        let known = found.and_then(|at| self.0.remove(at));
        known.is_some_and(|(_, since)| since.elapsed() < COMES_BACK_WITHIN)
    }

    /// Records the position of a superseded reader.
    pub(super) fn note(&mut self, read: u64) {
        // One entry per position: a client that is gone leaves one behind each time.
        self.0.retain(|(known, _)| *known != read);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((read, Instant::now()));
    }
}
