//! What a shared log takes from the log in this process, and puts back into it.

use tokio::time::Instant;

use super::super::batch::EventBatch;
use super::super::{LoggedEvent, SessionKey, StreamKey};
use super::{MemoryEvents, StreamEdge};
use crate::lock::lock;
use crate::ownership::Ownership;

/// One stream of a session that was logged elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredStream {
    /// Its number in the session.
    pub stream: u32,
    /// Position of its newest event.
    pub newest: u64,
    /// Whether that event ends the stream.
    pub is_finished: bool,
}

impl MemoryEvents {
    /// The events of a stream from `first` to `newest` that are kept, oldest first.
    pub(in super::super) fn between(
        &self,
        at: StreamKey,
        first: u64,
        newest: u64,
    ) -> Vec<LoggedEvent> {
        let Some(log) = self.log(at.session) else {
            return Vec::new();
        };
        let log = lock(&log);
        let batches = log.batches.iter().filter(|batch| batch.stream == at.stream);
        batches
            .flat_map(|batch| batch.between(first, newest))
            .collect()
    }

    /// Stream, first and newest position of all batches of a session, oldest first.
    pub(in super::super) fn ranges(&self, session: SessionKey) -> Vec<(u32, u64, u64)> {
        let Some(log) = self.log(session) else {
            return Vec::new();
        };
        let log = lock(&log);
        let range = |batch: &EventBatch| (batch.stream, batch.first(), batch.newest());
        log.batches.iter().map(range).collect()
    }

    /// Keeps events of a session that were logged elsewhere, `batches` of one stream each, oldest first.
    /// New events get positions after `floor`. The streams whose newest event is known.
    pub(in super::super) fn restore(
        &self,
        session: SessionKey,
        floor: u64,
        batches: &[(u32, Vec<LoggedEvent>)],
    ) -> Vec<RestoredStream> {
        let now = Instant::now();
        let log = self.log_or_new(session);
        let (order, restored) = {
            let mut log = lock(&log);
            log.floor = log.floor.max(floor);
            let mut order = false;
            for (stream, events) in batches {
                let known = log.streams.get(stream).copied();
                // Events may stand there twice where a log was written again.
                let is_known =
                    |event: &LoggedEvent| known.is_some_and(|known| event.seq <= known.newest);
                let (_, events) = events.split_at(events.partition_point(is_known));
                let (Some(first), Some(newest)) = (events.first(), events.last()) else {
                    continue;
                };
                let (evicted, newest) = (after_gap(known, first.seq), newest.seq);
                log.streams.insert(*stream, StreamEdge { newest, evicted });
                order |= self.keep(&mut log, EventBatch::new(*stream, now, first.seq, events));
            }
            let ended: Vec<u32> = { log.batches.iter() }
                .filter(|batch| batch.ends_stream)
                .map(|batch| batch.stream)
                .collect();
            let streams = log.streams.iter_mut().map(|(stream, edge)| {
                let restored = RestoredStream {
                    stream: *stream,
                    newest: edge.newest,
                    is_finished: ended.contains(stream),
                };
                edge.newest = edge.newest.max(floor);
                restored
            });
            (order, streams.collect())
        };
        self.kept(session, now, order);
        restored
    }
}

/// Up to where a stream that goes on at `first` counts as evicted: up to `first`, unless nothing is missing
/// before. Epochs need not follow each other without a gap.
fn after_gap(known: Option<StreamEdge>, first: u64) -> u64 {
    let before = first - 1;
    match known {
        Some(known) if known.newest == before || Ownership::begins_epoch(first) => known.evicted,
        None if Ownership::begins_epoch(first) => 0,
        _ => before,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{EventStore, ReplayResult};
    use super::super::LogBounds;
    use super::*;

    const SESSION: SessionKey = [1; 16];

    fn memory() -> MemoryEvents {
        MemoryEvents::new(LogBounds::ROOMY)
    }

    fn batch(stream: u32, positions: std::ops::RangeInclusive<u64>) -> (u32, Vec<LoggedEvent>) {
        let events = positions.map(|seq| LoggedEvent {
            seq,
            ..LoggedEvent::of(seq.to_string().into())
        });
        (stream, events.collect())
    }

    fn at(stream: u32) -> StreamKey {
        StreamKey {
            session: SESSION,
            stream,
        }
    }

    fn positions(found: ReplayResult) -> (bool, Vec<u64>) {
        match found {
            ReplayResult::Events(events) => (true, events.iter().map(|e| e.seq).collect()),
            ReplayResult::Evicted(events) => (false, events.iter().map(|e| e.seq).collect()),
            ReplayResult::Unknown => panic!("unknown"),
        }
    }

    #[test]
    fn restored_events_replay_and_new_ones_follow_the_floor() {
        let memory = memory();
        let floor = Ownership { node: 2, epoch: 1 }.first_number();
        let restored = memory.restore(
            SESSION,
            floor,
            &[batch(1, 1..=2), batch(0, 1..=1), batch(1, 3..=3)],
        );
        let newest: Vec<(u32, u64)> = restored.iter().map(|s| (s.stream, s.newest)).collect();
        assert_eq!(newest, [(0, 1), (1, 3)]);
        let mut events = [LoggedEvent::of("new".into())];
        memory.append(at(1), &mut events);
        assert_eq!(events[0].seq, floor + 1);
        assert_eq!(
            positions(memory.after(at(1), 1, 9)),
            (true, vec![2, 3, floor + 1])
        );
        memory.append(at(5), &mut events);
        assert_eq!(events[0].seq, floor + 1, "a stream of this epoch");
        assert_eq!(
            positions(memory.after(at(5), 0, 9)),
            (true, vec![floor + 1])
        );
        assert_eq!(memory.between(at(1), 2, floor), batch(1, 2..=3).1);
    }

    #[test]
    fn missing_events_count_as_evicted() {
        let memory = memory();
        memory.restore(
            SESSION,
            0,
            &[batch(1, 1..=2), batch(1, 5..=6), batch(2, 4..=4)],
        );
        assert_eq!(positions(memory.after(at(1), 1, 9)), (false, vec![5, 6]));
        assert_eq!(positions(memory.after(at(1), 4, 9)), (true, vec![5, 6]));
        assert_eq!(positions(memory.after(at(2), 0, 9)), (false, vec![4]));
    }

    #[test]
    fn restoring_twice_keeps_each_event_once() {
        let memory = memory();
        let batches = [batch(1, 1..=2)];
        memory.restore(SESSION, 0, &batches);
        memory.restore(SESSION, 0, &batches);
        assert_eq!(memory.ranges(SESSION), [(1, 1, 2)]);
        memory.restore(SESSION, 0, &[batch(1, 2..=4)]);
        assert_eq!(memory.ranges(SESSION), [(1, 1, 2), (1, 3, 4)]);
        assert_eq!(memory.size().0, 4);
    }
}
