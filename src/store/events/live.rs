//! `LiveEvents`: messages of one connection that cannot be resumed, kept until read.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;

use tokio_util::sync::CancellationToken;

use super::{EventStore, LoggedEvent, ReplayResult, SessionKey, StreamKey, number};
use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;

/// Unread events of one stream. Over its bound it loses everything, and says so for ever: the
/// connection is then as good as broken, as nothing may be lost in the middle.
#[derive(Debug)]
pub struct LiveEvents {
    unread: usize,
    overflow: CancellationToken,
    state: Mutex<LiveState>,
}

#[derive(Debug, Default)]
struct LiveState {
    entries: VecDeque<LoggedEvent>,
    bytes: usize,
    newest: u64,
    overflown: bool,
}

impl LiveEvents {
    /// Nothing yet; at most `unread` bytes may wait, or a single message of any size. When more do, the
    /// connection is cut off: `overflow` is cancelled.
    #[must_use]
    pub fn new(unread: usize, overflow: CancellationToken) -> Self {
        Self {
            unread,
            overflow,
            state: Mutex::default(),
        }
    }
}

impl LiveState {
    fn clear(&mut self) {
        self.entries = VecDeque::new();
        self.bytes = 0;
    }

    /// Drops events up to `seq`: a reader that asks for later events has read all before.
    fn forget_read(&mut self, seq: u64) {
        while let Some(front) = self.entries.front() {
            if front.seq > seq {
                return;
            }
            self.bytes -= front.payload.len();
            self.entries.pop_front();
        }
    }
}

impl EventStore for LiveEvents {
    fn append(&self, _at: StreamKey, events: &mut [LoggedEvent]) {
        let mut state = lock(&self.state);
        number(events, &mut state.newest);
        for event in events {
            if state.overflown {
                return;
            }
            state.bytes += event.payload.len();
            state.entries.push_back(event.clone());
            if state.bytes > self.unread && state.entries.len() > 1 {
                state.overflown = true;
                state.clear();
                COUNTERS.channels_slow.add(1);
                self.overflow.cancel();
            }
        }
    }

    fn append_read(&self, _at: StreamKey, events: &mut [LoggedEvent]) {
        let mut state = lock(&self.state);
        let before = state.newest;
        state.forget_read(before);
        number(events, &mut state.newest);
    }

    fn replace(&self, _at: StreamKey, seq: u64, payload: Bytes) -> bool {
        let mut state = lock(&self.state);
        let Some(entry) = state.entries.iter_mut().find(|entry| entry.seq == seq) else {
            return false;
        };
        let (old, new) = (entry.payload.len(), payload.len());
        entry.payload = payload;
        state.bytes = state.bytes - old + new;
        true
    }

    fn after(&self, _at: StreamKey, seq: u64, limit: usize) -> ReplayResult {
        let mut state = lock(&self.state);
        if state.overflown {
            return ReplayResult::Evicted(Vec::new());
        }
        state.forget_read(seq);
        ReplayResult::Events(state.entries.iter().take(limit).cloned().collect())
    }

    fn forget(&self, _session: SessionKey) {
        lock(&self.state).clear();
    }

    fn sweep(&self) {}

    fn size(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.entries.len(), state.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: StreamKey = StreamKey {
        session: [0; 16],
        stream: 0,
    };

    fn live(unread: usize) -> LiveEvents {
        LiveEvents::new(unread, CancellationToken::new())
    }

    fn append(events: &LiveEvents, text: &'static str) {
        events.append(AT, &mut [LoggedEvent::of(text.into())]);
    }

    fn read(events: &LiveEvents, seq: u64) -> Vec<(u64, Bytes)> {
        match events.after(AT, seq, usize::MAX) {
            ReplayResult::Events(found) => found.into_iter().map(|e| (e.seq, e.payload)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_read_is_no_longer_kept() {
        let events = live(100);
        for text in ["a", "b"] {
            append(&events, text);
        }
        assert_eq!(read(&events, 0).len(), 2);
        assert_eq!(read(&events, 1), [(2, "b".into())]);
        assert_eq!(events.size(), (1, 1));
        assert_eq!(read(&events, 2), []);
        assert_eq!(events.size(), (0, 0));
    }

    #[test]
    fn what_its_reader_has_in_hand_is_not_kept() {
        let events = live(4);
        append(&events, "read");
        for seq in 2..9 {
            let mut read = [LoggedEvent::of("more".into())];
            events.append_read(AT, &mut read);
            assert_eq!((read[0].seq, events.size()), (seq, (0, 0)));
        }
        append(&events, "next");
        assert_eq!(read(&events, 8), [(9, "next".into())]);
    }

    #[test]
    fn one_message_of_any_size_may_wait() {
        let events = live(4);
        append(&events, "larger than that");
        assert_eq!(read(&events, 0).len(), 1);
    }

    #[test]
    fn an_overflow_is_never_forgotten() {
        let events = live(4);
        for text in ["123", "45", "6"] {
            append(&events, text);
        }
        assert_eq!(events.after(AT, 0, 9), ReplayResult::Evicted(Vec::new()));
        assert_eq!(events.size(), (0, 0));
    }

    #[test]
    fn an_unread_event_can_be_replaced() {
        let events = live(100);
        append(&events, "old");
        assert!(events.replace(AT, 1, "newer".into()));
        assert_eq!(read(&events, 0), [(1, "newer".into())]);
        assert_eq!(read(&events, 1), []);
        assert!(!events.replace(AT, 1, "late".into()));
    }
}
