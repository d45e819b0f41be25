//! The event log in this process.

mod restored;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use restored::RestoredStream;

use bytes::Bytes;
use tokio::time::Instant;

use super::batch::EventBatch;
use super::{EventStore, LoggedEvent, ReplayResult, SessionKey, StreamKey, number};
use crate::lock::lock;
use crate::sync::fast_maps::FastDashMap;
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// Up to here tables are not worth shrinking.
const SMALL: usize = 16;
/// The part of all bytes that is freed at once beyond what is needed.
const SPARE: usize = 64;
/// What alone is left of a session for so long may not have been read by who listens now.
const UNREAD: Duration = Duration::from_secs(1);

/// Bounds of the log.
#[derive(Debug, Clone, Copy)]
pub struct LogBounds {
    /// Events older than this are dropped.
    pub max_age: Duration,
    /// Bytes kept for one session.
    pub per_session: usize,
    /// Bytes kept in all.
    pub total: usize,
}

#[cfg(test)]
impl LogBounds {
    /// Room for all that a test logs.
    pub(crate) const ROOMY: Self = Self {
        max_age: Duration::from_mins(5),
        per_session: 1 << 20,
        total: 1 << 20,
    };
}

/// Events in memory.
#[derive(Debug)]
pub struct MemoryEvents {
    sessions: FastDashMap<SessionKey, Arc<Mutex<MemoryLog>>>,
    /// Sessions in the order of their events, one entry per session and [`Self::slice`] of time:
    /// the front one owns the oldest events.
    order: Mutex<VecDeque<(Instant, SessionKey)>>,
    bytes: AtomicUsize,
    events: AtomicUsize,
    bounds: LogBounds,
}

#[derive(Debug, Default)]
struct MemoryLog {
    batches: VecDeque<EventBatch>,
    bytes: usize,
    streams: BTreeMap<u32, StreamEdge>,
    ordered_at: Option<Instant>,
    /// Positions begin after this one, which an earlier owner of the session may have given out.
    floor: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct StreamEdge {
    newest: u64,
    evicted: u64,
}

impl MemoryLog {
    /// The edge of a stream, which begins at the floor.
    fn edge(&mut self, stream: u32) -> &mut StreamEdge {
        let newest = self.floor;
        self.streams
            .entry(stream)
            .or_insert(StreamEdge { newest, evicted: 0 })
    }

    /// Gives back what a busy time has left behind.
    fn shrink(&mut self) {
        if self.batches.capacity() > 4 * self.batches.len().max(SMALL) {
            self.batches.shrink_to(SMALL);
        }
    }
}

impl MemoryEvents {
    /// An empty log.
    #[must_use]
    pub fn new(bounds: LogBounds) -> Self {
        Self {
            sessions: FastDashMap::default(),
            order: Mutex::default(),
            bytes: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            bounds,
        }
    }

    fn log(&self, session: SessionKey) -> Option<Arc<Mutex<MemoryLog>>> {
        self.sessions.get(&session).map(|log| Arc::clone(&log))
    }

    fn log_or_new(&self, session: SessionKey) -> Arc<Mutex<MemoryLog>> {
        self.log(session)
            .unwrap_or_else(|| Arc::clone(&self.sessions.entry(session).or_default()))
    }

    /// Keeps a batch, and drops the session's oldest ones for it; whether `order` is due an entry, to be made
    /// without the session's lock.
    fn keep(&self, log: &mut MemoryLog, batch: EventBatch) -> bool {
        let now = batch.at;
        log.bytes += batch.cost();
        self.bytes.fetch_add(batch.cost(), Ordering::Relaxed);
        self.events.fetch_add(batch.len(), Ordering::Relaxed);
        log.batches.push_back(batch);
        while log.bytes > self.bounds.per_session && log.batches.len() > 1 {
            COUNTERS.events_evicted.add(self.evict_front(log) as u64);
        }
        let is_due = |at| now.duration_since(at) >= self.slice();
        let order = log.ordered_at.is_none_or(is_due);
        if order {
            log.ordered_at = Some(now);
        }
        order
    }

    /// Notes that a session has events of `now`, where `order` says so, and evicts what is too much.
    fn kept(&self, session: SessionKey, now: Instant, order: bool) {
        if order {
            lock(&self.order).push_back((now, session));
        }
        self.evict_over_total();
        self.publish();
    }

    /// Drops the oldest batch; how many events that were.
    fn evict_front(&self, log: &mut MemoryLog) -> usize {
        let Some(batch) = log.batches.pop_front() else {
            return 0;
        };
        if batch.ends_stream {
            log.streams.remove(&batch.stream);
        } else {
            let edge = log.streams.entry(batch.stream).or_default();
            edge.evicted = edge.evicted.max(batch.newest());
        }
        log.bytes -= batch.cost();
        self.bytes.fetch_sub(batch.cost(), Ordering::Relaxed);
        self.events.fetch_sub(batch.len(), Ordering::Relaxed);
        batch.len()
    }

    /// Tells operators how much is kept.
    fn publish(&self) {
        let (events, bytes) = self.size();
        GAUGES
            .events_kept
            .set(i64::try_from(events).unwrap_or(i64::MAX));
        GAUGES
            .events_bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// How much time one entry of `order` stands for.
    fn slice(&self) -> Duration {
        self.bounds.max_age / 32
    }

    fn is_over(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) > bytes
    }

    /// Evicts events when over the total. Sessions above an equal share lose their oldest events first, so
    /// that a client cannot evict other clients' events by filling sessions or opening many; then
    /// the oldest of all are evicted.
    fn evict_over_total(&self) {
        if !self.is_over(self.bounds.total) {
            return;
        }
        let mut order = lock(&self.order);
        if self.is_over(self.bounds.total) {
            // Evict a little more than needed, so that the next events fit without a search.
            let goal = self.bounds.total - self.bounds.total / SPARE;
            let share = goal / self.sessions.len().max(1);
            let fresh = Instant::now();
            let more = |log: &MemoryLog| {
                let mut batches = log.batches.iter();
                let is_read = match (batches.next(), batches.next()) {
                    (Some(only), None) => fresh.duration_since(only.at) > UNREAD,
                    _ => true,
                };
                log.bytes > share && is_read && self.is_over(goal)
            };
            order.retain(|(from, session)| {
                !self.is_over(goal) || self.evict_until(*session, *from + self.slice(), more)
            });
            // Then also single fresh batches, if the rest was not enough.
            let more = |log: &MemoryLog| log.bytes > share && self.is_over(goal);
            if self.is_over(self.bounds.total) {
                order.retain(|(from, session)| {
                    !self.is_over(goal) || self.evict_until(*session, *from + self.slice(), more)
                });
            }
            self.evict_oldest(&mut order, goal);
        }
    }

    /// Drops the oldest events of all until no more than `goal` bytes are kept.
    fn evict_oldest(&self, order: &mut VecDeque<(Instant, SessionKey)>, goal: usize) {
        while self.is_over(self.bounds.total) {
            let Some((from, session)) = order.pop_front() else {
                return;
            };
            let over = |_: &MemoryLog| self.is_over(goal);
            if self.evict_until(session, from + self.slice(), over) {
                order.push_front((from, session));
            }
        }
    }

    /// Drops a session's events up to `until` while `more` says so; whether some of them remain.
    fn evict_until(
        &self,
        session: SessionKey,
        until: Instant,
        more: impl Fn(&MemoryLog) -> bool,
    ) -> bool {
        let Some(log) = self.log(session) else {
            return false;
        };
        let mut log = lock(&log);
        let old = |log: &MemoryLog| log.batches.front().is_some_and(|batch| batch.at <= until);
        while old(&log) && more(&log) {
            COUNTERS
                .events_evicted
                .add(self.evict_front(&mut log) as u64);
        }
        if log.batches.is_empty() {
            log.ordered_at = None;
        }
        log.shrink();
        old(&log)
    }
}

impl EventStore for MemoryEvents {
    fn append(&self, at: StreamKey, events: &mut [LoggedEvent]) {
        if events.is_empty() {
            return;
        }
        let now = Instant::now();
        let log = self.log_or_new(at.session);
        let order = {
            let mut log = lock(&log);
            let edge = log.edge(at.stream);
            let first = edge.newest + 1;
            number(events, &mut edge.newest);
            self.keep(&mut log, EventBatch::new(at.stream, now, first, events))
        };
        self.kept(at.session, now, order);
    }

    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool {
        let Some(log) = self.log(at.session) else {
            return false;
        };
        let mut log = lock(&log);
        let mut batches = log.batches.iter_mut().rev();
        let Some(batch) = batches.find(|b| b.stream == at.stream && b.first() <= seq) else {
            return false;
        };
        let old = batch.cost();
        if !batch.replace(seq, &payload) {
            return false;
        }
        let new = batch.cost();
        log.bytes = log.bytes - old + new;
        self.bytes.fetch_add(new, Ordering::Relaxed);
        self.bytes.fetch_sub(old, Ordering::Relaxed);
        true
    }

    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> ReplayResult {
        let Some(log) = self.log(at.session) else {
            return ReplayResult::Unknown;
        };
        let log = lock(&log);
        let Some(edge) = log.streams.get(&at.stream).copied() else {
            return ReplayResult::Unknown;
        };
        if seq > edge.newest {
            return ReplayResult::Unknown;
        }
        let mut events: Vec<LoggedEvent> = Vec::new();
        // Who asks for none wants to know whether there could be any.
        if limit > 0 && seq.max(edge.evicted) < edge.newest {
            // From the newest backwards: a reader is seldom far behind.
            let batches = log.batches.iter().rev().filter(|b| b.stream == at.stream);
            for batch in batches {
                events.extend(batch.newer_than(seq));
                if batch.first() <= seq.max(edge.evicted) + 1 {
                    break;
                }
            }
            events.reverse();
            events.truncate(limit);
        }
        if seq < edge.evicted {
            ReplayResult::Evicted(events)
        } else {
            ReplayResult::Events(events)
        }
    }

    fn forget(&self, session: SessionKey) {
        if let Some((_, log)) = self.sessions.remove(&session) {
            let mut log = lock(&log);
            while self.evict_front(&mut log) > 0 {}
        }
        self.publish();
    }

    fn sweep(&self) {
        let now = Instant::now();
        let age = self.bounds.max_age + self.slice();
        loop {
            let due = {
                let mut order = lock(&self.order);
                let due = order
                    .front()
                    .is_some_and(|(at, _)| now.duration_since(*at) > age);
                if due { order.pop_front() } else { None }
            };
            let Some((from, session)) = due else { break };
            self.evict_until(session, from + self.slice(), |_| true);
        }
        if self.sessions.capacity() > 8 * self.sessions.len().max(SMALL) {
            self.sessions.shrink_to_fit();
            lock(&self.order).shrink_to_fit();
        }
        self.publish();
    }

    fn size(&self) -> (usize, usize) {
        (
            self.events.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

#[cfg(test)]
mod tests;
