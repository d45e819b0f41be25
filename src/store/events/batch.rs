//! `EventBatch`: events of one stream, logged together.

use std::ops::Range;

use bytes::Bytes;
use tokio::time::Instant;

use super::LoggedEvent;

/// Bytes of a batch besides the payloads, so that small batches count as well.
pub(super) const BATCH_BYTES: usize = 96;
/// Further bytes per event of a batch.
const END_BYTES: usize = size_of::<usize>();

/// Events of one stream with consecutive positions; never empty. Payloads lie end to end in one buffer,
/// as copies: an original may keep a larger read buffer alive, or a part of its caller's byte budget, and
/// a batch is kept for minutes.
#[derive(Debug)]
pub(super) struct EventBatch {
    pub(super) stream: u32,
    pub(super) at: Instant,
    /// Whether the last of them ends the stream.
    pub(super) ends_stream: bool,
    first: u64,
    payloads: Bytes,
    /// Where each payload but the last one ends.
    ends: Box<[usize]>,
}

impl EventBatch {
    /// The batch of `events`, whose positions are `first` and those after it.
    pub(super) fn new(stream: u32, at: Instant, first: u64, events: &[LoggedEvent]) -> Self {
        let ends_stream = events.last().is_some_and(|event| event.last);
        let (payloads, ends) = joined(events);
        Self {
            stream,
            at,
            ends_stream,
            first,
            payloads,
            ends,
        }
    }

    /// The position of its first event.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The position of its last event.
    pub(super) fn newest(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    /// How many events it holds.
    pub(super) fn len(&self) -> usize {
        self.ends.len() + 1
    }

    /// What it counts for, bytes.
    pub(super) fn cost(&self) -> usize {
        self.payloads.len() + BATCH_BYTES + self.ends.len() * END_BYTES
    }

    /// Its events after the position `seq`, newest first.
    pub(super) fn newer_than(&self, seq: u64) -> impl Iterator<Item = LoggedEvent> {
        let positions = (0..self.len()).map(|index| (index, self.first + index as u64));
        let newer = positions.rev().take_while(move |(_, at)| *at > seq);
        newer.map(|(index, seq)| LoggedEvent {
            seq,
            payload: self.payloads.slice(self.span(index)),
            last: self.ends_stream && seq == self.newest(),
        })
    }

    /// Its events from `first` to `newest`, oldest first.
    pub(super) fn between(&self, first: u64, newest: u64) -> impl Iterator<Item = LoggedEvent> {
        let positions = first.max(self.first)..=newest.min(self.newest());
        positions.filter_map(move |seq| {
            Some(LoggedEvent {
                seq,
                payload: self.payloads.slice(self.span(self.index(seq)?)),
                last: self.ends_stream && seq == self.newest(),
            })
        })
    }

    /// Replaces the payload of the event `seq`; `false` when it is none of these.
    pub(super) fn replace(&mut self, seq: u64, payload: &Bytes) -> bool {
        let Some(index) = self.index(seq) else {
            return false;
        };
        let span = self.span(index);
        let before = self.payloads.get(..span.start).unwrap_or_default();
        let after = self.payloads.get(span.end..).unwrap_or_default();
        self.payloads = [before, payload, after].concat().into();
        for end in self.ends.iter_mut().skip(index) {
            *end = *end - span.len() + payload.len();
        }
        true
    }

    fn index(&self, seq: u64) -> Option<usize> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        (index < self.len()).then_some(index)
    }

    fn span(&self, index: usize) -> Range<usize> {
        let start = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        let end = self.ends.get(index).copied();
        start.copied().unwrap_or(0)..end.unwrap_or(self.payloads.len())
    }
}

fn joined(events: &[LoggedEvent]) -> (Bytes, Box<[usize]>) {
    let size = events.iter().map(|event| event.payload.len()).sum();
    let mut payloads = Vec::with_capacity(size);
    let mut ends = Vec::with_capacity(events.len().saturating_sub(1));
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            ends.push(payloads.len());
        }
        payloads.extend_from_slice(&event.payload);
    }
    (payloads.into(), ends.into())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::budget::{BudgetHolder, ByteBudget};

    fn batch(first: u64, payloads: &[&'static str]) -> EventBatch {
        let events: Vec<LoggedEvent> = payloads
            .iter()
            .map(|text| LoggedEvent::of((*text).into()))
            .collect();
        EventBatch::new(1, Instant::now(), first, &events)
    }

    fn read(batch: &EventBatch, seq: u64) -> Vec<(u64, Bytes)> {
        let mut events: Vec<_> = batch.newer_than(seq).map(|e| (e.seq, e.payload)).collect();
        events.reverse();
        events
    }

    #[test]
    fn every_event_keeps_its_payload_and_position() {
        let batch = batch(5, &["a", "", "ccc"]);
        let all = [(5, "a".into()), (6, "".into()), (7, "ccc".into())];
        assert_eq!(read(&batch, 0), all);
        assert_eq!(read(&batch, 5), all[1..]);
        assert_eq!(read(&batch, 7), []);
        let between = |first, newest| batch.between(first, newest).map(|event| event.seq);
        assert_eq!(between(0, 6).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(between(6, 9).collect::<Vec<_>>(), [6, 7]);
        assert_eq!(between(8, 9).count(), 0);
    }

    // What is kept for a client that may come back holds no part of its share of memory.
    #[test]
    fn payload_in_the_log_keeps_no_lease() {
        let budget = ByteBudget::new(16 << 20, 8 << 20, 1 << 20);
        let address = IpAddr::from([127, 0, 0, 1]);
        let address = BudgetHolder::Address(address.into());
        let lease = budget.take(address, 1 << 20).unwrap();
        let event = LoggedEvent::of(lease.hold(Bytes::from(vec![b'x'; 1 << 20])));
        let batch = EventBatch::new(1, Instant::now(), 1, std::slice::from_ref(&event));
        assert_eq!(budget.used(), 2 << 20);
        drop(event);
        assert_eq!(budget.used(), 0);
        assert_eq!(read(&batch, 0)[0].1.len(), 1 << 20);
    }

    #[test]
    fn a_replaced_payload_leaves_the_others() {
        for (seq, expected) in [(5, "xx||c"), (6, "a|xx|c"), (7, "a||xx")] {
            let mut batch = batch(5, &["a", "", "c"]);
            assert!(batch.replace(seq, &"xx".into()));
            let texts: Vec<String> = read(&batch, 0)
                .into_iter()
                .map(|(_, text)| String::from_utf8(text.to_vec()).unwrap())
                .collect();
            assert_eq!(texts.join("|"), expected);
        }
        let mut one = batch(5, &["a"]);
        assert!(!one.replace(4, &"x".into()));
        assert!(!one.replace(6, &"x".into()));
    }
}
