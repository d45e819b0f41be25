//! `GivenUpEvents`: events of one session that the shared log will not get.

use std::collections::BTreeMap;

/// Streams of which the newest such event is known.
const STREAMS: usize = 64;

/// How far each stream lacks events in the shared log: no other process can resume after its newest one of these.
#[derive(Debug, Default)]
pub(super) struct GivenUpEvents {
    /// Position of the newest event given up, by stream.
    newest: BTreeMap<u32, u64>,
    /// All events of the calls' streams up to this number count as given up; 0 for none.
    streams: u32,
}

impl GivenUpEvents {
    /// Notes that a stream lacks events up to the position `newest`. Of too many streams the oldest one counts as lost as a
    /// whole; never the stream 0, which lives as long as its session.
    pub(super) fn add(&mut self, stream: u32, newest: u64) {
        let known = self.newest.entry(stream).or_default();
        *known = newest.max(*known);
        if self.newest.len() > STREAMS
            && let Some(oldest) = self.newest.range(1..).next().map(|(stream, _)| *stream)
        {
            self.newest.remove(&oldest);
            self.streams = oldest.max(self.streams);
        }
    }

    /// Whether the event at the position `seq` of a stream was given up, or one after it.
    pub(super) fn has(&self, stream: u32, seq: u64) -> bool {
        let newest = self.newest.get(&stream);
        (1..=self.streams).contains(&stream) || newest.is_some_and(|newest| seq <= *newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_event_given_up_counts_in_each_stream() {
        let mut events = GivenUpEvents::default();
        events.add(1, 5);
        events.add(1, 3);
        events.add(0, 2);
        assert!(events.has(1, 5) && !events.has(1, 6));
        assert!(events.has(0, 2) && !events.has(0, 3));
        assert!(!events.has(2, 1));
    }

    #[test]
    fn oldest_of_too_many_streams_is_given_up_as_a_whole() {
        let mut events = GivenUpEvents::default();
        let count = u32::try_from(STREAMS).unwrap();
        for stream in 0..=count {
            events.add(stream, 7);
        }
        assert_eq!(events.newest.len(), STREAMS);
        assert!(events.has(1, 8), "it is not known how far");
        assert!(events.has(2, 7) && !events.has(2, 8));
        assert!(!events.has(0, 8), "the stream of the session");
    }
}
