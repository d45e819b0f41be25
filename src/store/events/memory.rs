//! The event log in this process.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use tokio::time::Instant;

use super::{Event, EventStore, Replay, SessionKey, StreamKey};
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// What an event costs besides its payload, bytes: kept small streams from being free.
const OVERHEAD_BYTES: usize = 64;

/// Bounds of the log.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Events older than this are dropped.
    pub max_age: Duration,
    /// Bytes kept for one session.
    pub per_session: usize,
    /// Bytes kept in all.
    pub total: usize,
}

/// Events in memory.
#[derive(Debug)]
pub struct MemoryEvents {
    sessions: DashMap<SessionKey, Arc<Mutex<Log>>>,
    /// Sessions in the order of their events, one entry per session and [`Self::slice`] of time:
    /// the front one owns the oldest events.
    order: Mutex<VecDeque<(Instant, SessionKey)>>,
    bytes: AtomicUsize,
    events: AtomicUsize,
    bounds: Bounds,
}

#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<Entry>,
    bytes: usize,
    streams: HashMap<u32, StreamEdge>,
    ordered_at: Option<Instant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct StreamEdge {
    newest: u64,
    evicted: u64,
}

#[derive(Debug)]
struct Entry {
    stream: u32,
    at: Instant,
    event: Event,
}

impl Entry {
    fn cost(&self) -> usize {
        self.event.payload.len() + OVERHEAD_BYTES
    }
}

impl MemoryEvents {
    /// An empty log.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            sessions: DashMap::new(),
            order: Mutex::default(),
            bytes: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            bounds,
        }
    }

    fn log(&self, session: SessionKey) -> Option<Arc<Mutex<Log>>> {
        self.sessions.get(&session).map(|log| Arc::clone(&log))
    }

    fn evict_front(&self, log: &mut Log) -> bool {
        let Some(entry) = log.entries.pop_front() else {
            return false;
        };
        if entry.event.last {
            log.streams.remove(&entry.stream);
        } else {
            let edge = log.streams.entry(entry.stream).or_default();
            edge.evicted = edge.evicted.max(entry.event.seq);
        }
        log.bytes -= entry.cost();
        self.bytes.fetch_sub(entry.cost(), Ordering::Relaxed);
        self.events.fetch_sub(1, Ordering::Relaxed);
        true
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

    fn evict_over_total(&self) {
        let over = || self.bytes.load(Ordering::Relaxed) > self.bounds.total;
        while over() {
            let Some((from, session)) = lock(&self.order).pop_front() else {
                return;
            };
            if self.evict_until(session, from + self.slice(), over) {
                lock(&self.order).push_front((from, session));
            }
        }
    }

    /// Drops a session's events up to `until` while `more` says so; whether some of them remain.
    fn evict_until(&self, session: SessionKey, until: Instant, more: impl Fn() -> bool) -> bool {
        let Some(log) = self.log(session) else {
            return false;
        };
        let mut log = lock(&log);
        let old = |log: &Log| log.entries.front().is_some_and(|entry| entry.at <= until);
        while old(&log) && more() {
            self.evict_front(&mut log);
            COUNTERS.events_evicted.add(1);
        }
        if log.entries.is_empty() {
            log.ordered_at = None;
        }
        old(&log)
    }
}

impl EventStore for MemoryEvents {
    fn append(&self, at: StreamKey, payload: Bytes, last: bool) -> u64 {
        let now = Instant::now();
        let log = Arc::clone(&self.sessions.entry(at.session).or_default());
        let (seq, order) = {
            let mut log = lock(&log);
            let edge = log.streams.entry(at.stream).or_default();
            edge.newest += 1;
            let seq = edge.newest;
            let entry = Entry {
                stream: at.stream,
                at: now,
                event: Event { seq, payload, last },
            };
            log.bytes += entry.cost();
            self.bytes.fetch_add(entry.cost(), Ordering::Relaxed);
            self.events.fetch_add(1, Ordering::Relaxed);
            log.entries.push_back(entry);
            while log.bytes > self.bounds.per_session && log.entries.len() > 1 {
                self.evict_front(&mut log);
                COUNTERS.events_evicted.add(1);
            }
            let order = log
                .ordered_at
                .is_none_or(|at| now.duration_since(at) >= self.slice());
            if order {
                log.ordered_at = Some(now);
            }
            (seq, order)
        };
        if order {
            lock(&self.order).push_back((now, at.session));
        }
        self.evict_over_total();
        self.publish();
        seq
    }

    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool {
        let Some(log) = self.log(at.session) else {
            return false;
        };
        let mut log = lock(&log);
        let Some(entry) = log
            .entries
            .iter_mut()
            .rev()
            .find(|e| e.stream == at.stream && e.event.seq == seq)
        else {
            return false;
        };
        let old = entry.event.payload.len();
        let new = payload.len();
        entry.event.payload = payload;
        log.bytes = log.bytes - old + new;
        self.bytes.fetch_add(new, Ordering::Relaxed);
        self.bytes.fetch_sub(old, Ordering::Relaxed);
        true
    }

    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> Replay {
        let Some(log) = self.log(at.session) else {
            return Replay::Unknown;
        };
        let log = lock(&log);
        let Some(edge) = log.streams.get(&at.stream).copied() else {
            return Replay::Unknown;
        };
        if seq > edge.newest {
            return Replay::Unknown;
        }
        // From the newest backwards: a live reader asks for the last few only, and who asks for
        // none wants to know whether there could be any.
        let wanted = match limit {
            0 => 0,
            _ => edge.newest - seq.max(edge.evicted),
        };
        let mut events: Vec<Event> = log
            .entries
            .iter()
            .rev()
            .filter(|entry| entry.stream == at.stream)
            .take(usize::try_from(wanted).unwrap_or(usize::MAX))
            .map(|entry| entry.event.clone())
            .collect();
        events.reverse();
        events.truncate(limit);
        if seq < edge.evicted {
            Replay::Evicted(events)
        } else {
            Replay::Events(events)
        }
    }

    fn forget(&self, session: SessionKey) {
        if let Some((_, log)) = self.sessions.remove(&session) {
            let mut log = lock(&log);
            while self.evict_front(&mut log) {}
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
            self.evict_until(session, from + self.slice(), || true);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
