//! What is left of a stream for a client that resumes it, where the stream has ended, or older events are gone: evicted
//! here, or lost with the process that owned the stream before.

use std::sync::Arc;

use super::{EventStream, StreamReader, StreamState};
use crate::store::events::ReplayResult;
use crate::telemetry::metrics::COUNTERS;

/// How often the first event that is left is looked for: events of other streams may evict it meanwhile.
const TRIES: usize = 4;

impl EventStream {
    /// Makes this the stream of a session that another process owned, if no event of the stream is left. Its client may
    /// have seen events up to `floor`, which new events follow: they count as evicted.
    pub(in crate::session) fn restore_without_events(&self, floor: u64) {
        let mut state = self.lock();
        (state.logged, state.read, state.gone) = (floor, floor, floor);
    }

    /// Whether the stream has ended, and a client that has read it up to the event `seq` has missed no message of it.
    #[must_use]
    pub fn has_ended_at(&self, seq: u64) -> bool {
        let state = self.lock();
        state.finished
            && state.fresh.iter().all(|fresh| fresh.payload.is_empty())
            && matches!(
                self.replay(&state, seq, usize::MAX),
                ReplayResult::Events(rest) if rest.iter().all(|event| event.payload.is_empty())
            )
    }

    /// A reader of the events that are left after `seq`, if some were evicted.
    #[must_use]
    pub fn resume_past_gap(self: &Arc<Self>, seq: u64) -> Option<StreamReader> {
        let reader = (0..TRIES).find_map(|_| self.resume_at_edge(seq))?;
        COUNTERS.streams_unresumable.add(1);
        Some(reader)
    }

    fn resume_at_edge(self: &Arc<Self>, seq: u64) -> Option<StreamReader> {
        let state = self.lock();
        let (replay, newest) = (self.replay(&state, seq, 1), state.logged);
        drop(state);
        let ReplayResult::Evicted(left) = replay else {
            return None;
        };
        let before = left.first().map(|event| event.seq.saturating_sub(1));
        self.resume(before.unwrap_or(newest)).ok()
    }

    /// At most `limit` events after `seq`. Those that a former owner has logged are evicted if
    /// [none was left](Self::restore_without_events).
    pub(super) fn replay(&self, state: &StreamState, seq: u64, limit: usize) -> ReplayResult {
        let replay = self.store.after(self.key, seq.max(state.gone), limit);
        if seq >= state.gone {
            return replay;
        }
        ReplayResult::Evicted(match replay {
            ReplayResult::Events(left) | ReplayResult::Evicted(left) => left,
            ReplayResult::Unknown => Vec::new(),
        })
    }
}
