//! `SessionQueue`: the entries of one session, in the shared log or waiting to be written there.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::given_up::GivenUpEvents;
use crate::ownership::Ownership;
use crate::store::calls::WorkStage;

/// Events of one entry at most.
const EVENTS_OF_ENTRY: u64 = 64;
/// Entries that wait at most; beyond, the oldest one is given up.
const WAITING: usize = 1024;
/// Entries of one call at most.
const AT_ONCE: usize = 64;

/// Consecutive events of one stream, by their positions, that become one entry. The payloads stay in the log of this process
/// until the entry is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitingEntry {
    /// Its number in the log of the session.
    pub(super) number: u64,
    pub(super) stream: u32,
    /// Positions of its first and its last event.
    pub(super) first: u64,
    pub(super) newest: u64,
}

/// An entry that the shared log has.
#[derive(Debug, Clone, Copy)]
struct KeptEntry {
    number: u64,
    bytes: usize,
    at: Instant,
}

/// Bounds of a session's log in the shared store.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptBounds {
    pub(super) entries: usize,
    pub(super) bytes: usize,
    pub(super) max_age: Duration,
}

/// What entries say of the calls of their stream, as [`LogEntry`](super::entry::LogEntry) has it.
#[derive(Debug)]
pub(super) struct StreamCalls {
    /// In each entry.
    ids: Bytes,
    /// In the first entry alone, in place of that: with the request.
    with_request: Option<Bytes>,
    /// The first event of the first entry, once that was made.
    first: Option<u64>,
}

impl StreamCalls {
    pub(super) fn new(ids: Bytes, with_request: Option<Bytes>) -> Self {
        Self {
            ids,
            with_request,
            first: None,
        }
    }

    /// For the entry that begins with the event `first`.
    fn of_entry(&mut self, first: u64) -> Bytes {
        let is_first = *self.first.get_or_insert(first) == first;
        let with_request = self.with_request.as_ref().filter(|_| is_first);
        with_request.unwrap_or(&self.ids).clone()
    }
}

/// Streams of one session whose calls are known at most.
const MOST_STREAMS: usize = 1024;
/// The newest of them, whose requests are kept for their first entries.
const MOST_REQUESTS: usize = 64;

/// The owner's side of a session's log.
#[derive(Debug)]
pub(super) struct SessionQueue {
    pub(super) ownership: Ownership,
    /// The highest stream with an event.
    pub(super) highest_stream: u32,
    /// Calls of the streams that have not ended.
    calls: BTreeMap<u32, StreamCalls>,
    /// Number of the newest entry.
    numbered: u64,
    waiting: VecDeque<WaitingEntry>,
    /// Events that will not be sent.
    pub(super) given_up: GivenUpEvents,
    /// Entries up to this number were sent, and stay as they are: a repeated entry has the same events.
    sent: u64,
    /// Entries of the shared log, oldest first.
    kept: VecDeque<KeptEntry>,
    kept_bytes: usize,
    /// Whether the last attempt to append failed: the task lists the session again.
    pub(super) is_failing: bool,
    /// Whether another replica owns the session.
    pub(super) is_fenced: bool,
    /// Where its entries are; one call at a time appends them, as the numbers of a log rise.
    pub(super) stage: WorkStage,
    /// Readers that wait for an acknowledgement.
    wakers: Vec<Waker>,
    /// When an entry was last enqueued or acknowledged.
    changed: Instant,
}

impl SessionQueue {
    pub(super) fn new(ownership: Ownership) -> Self {
        Self {
            ownership,
            highest_stream: 0,
            calls: BTreeMap::new(),
            numbered: ownership.first_number(),
            waiting: VecDeque::new(),
            given_up: GivenUpEvents::default(),
            sent: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            is_failing: false,
            is_fenced: false,
            stage: WorkStage::Idle,
            wakers: Vec::new(),
            changed: Instant::now(),
        }
    }

    /// Enqueues the events `first..=newest` of a stream; how many events are given up for them.
    pub(super) fn push(&mut self, stream: u32, first: u64, newest: u64) -> u64 {
        self.highest_stream = self.highest_stream.max(stream);
        self.changed = Instant::now();
        let unsent = self.waiting.back_mut().filter(|last| {
            last.number > self.sent
                && last.stream == stream
                && last.newest + 1 == first
                && newest - last.first < EVENTS_OF_ENTRY
        });
        if let Some(last) = unsent {
            last.newest = newest;
            return 0;
        }
        let mut lost = 0;
        if self.waiting.len() >= WAITING
            && let Some(oldest) = self.waiting.pop_front()
        {
            lost = oldest.newest + 1 - oldest.first;
            self.given_up.add(oldest.stream, oldest.newest);
        }
        self.numbered += 1;
        self.waiting.push_back(WaitingEntry {
            number: self.numbered,
            stream,
            first,
            newest,
        });
        lost
    }

    /// Notes the calls of a stream, for its entries.
    /// Of many streams that have not ended the oldest are forgotten: their last entries may have been given up.
    pub(super) fn note_calls(&mut self, stream: u32, calls: StreamCalls) {
        self.calls.insert(stream, calls);
        while self.calls.len() > MOST_STREAMS {
            self.calls.pop_first();
        }
        if let Some(older) = self.calls.values_mut().rev().nth(MOST_REQUESTS) {
            older.with_request = None;
        }
    }

    /// The calls for the entry of a stream that begins with the event `first`. The last entry of a stream needs none, nor
    /// does any later one.
    pub(super) fn calls_of(&mut self, (stream, first): (u32, u64), ends_stream: bool) -> Bytes {
        if ends_stream {
            self.calls.remove(&stream);
        }
        let calls = self.calls.get_mut(&stream);
        calls.map(|calls| calls.of_entry(first)).unwrap_or_default()
    }

    /// Whether an event of a stream up to `seq` waits.
    pub(super) fn has_waiting(&self, stream: u32, seq: u64) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|entry| entry.stream == stream && entry.first <= seq)
    }

    /// Position of the first event of a stream that waits.
    pub(super) fn first_waiting(&self, stream: u32) -> Option<u64> {
        let mut waiting = self.waiting.iter();
        let oldest = waiting.find(|entry| entry.stream == stream);
        oldest.map(|entry| entry.first)
    }

    /// Whether nothing waits.
    pub(super) fn is_written(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the session is to be put on the writer's list.
    pub(super) fn may_be_listed(&self) -> bool {
        let is_known_there = self.stage != WorkStage::Idle || self.is_failing;
        !is_known_there && !self.is_fenced && !self.is_written()
    }

    /// The oldest waiting entries, for one call; they wait until [`acknowledge`](Self::acknowledge).
    pub(super) fn next(&mut self) -> Vec<WaitingEntry> {
        let entries: Vec<WaitingEntry> = self.waiting.iter().take(AT_ONCE).copied().collect();
        self.sent = entries.last().map_or(self.sent, |entry| entry.number);
        entries
    }

    /// The shared log has these entries (number and bytes), oldest first, and no waiting entry up to `number`
    /// is to be sent again.
    pub(super) fn acknowledge(&mut self, number: u64, written: &[(u64, usize)], now: Instant) {
        while self
            .waiting
            .front()
            .is_some_and(|entry| entry.number <= number)
        {
            self.waiting.pop_front();
        }
        for (number, bytes) in written {
            self.keep(*number, *bytes, now);
        }
        self.is_failing = false;
        self.changed = now;
        self.waiting.shrink_to(4);
        self.kept.shrink_to(4 * self.kept.len());
    }

    /// Counts entries (number and bytes, oldest first) that the shared log had before this queue. Those of the queue
    /// itself are counted once acknowledged.
    pub(super) fn take_over(&mut self, kept: &[(u64, usize)], at: Instant) {
        let begun = self.ownership.first_number();
        let is_used = self.numbered > begun;
        let oldest = self.kept.front().map(|entry| entry.number);
        let is_older = |number: u64| {
            (!is_used || number <= begun) && oldest.is_none_or(|oldest| number < oldest)
        };
        for (number, bytes) in kept.iter().filter(|(number, _)| is_older(*number)).rev() {
            let (number, bytes) = (*number, *bytes);
            self.numbered = self.numbered.max(number);
            self.kept_bytes += bytes;
            self.kept.push_front(KeptEntry { number, bytes, at });
        }
    }

    /// Counts an entry that the shared log has.
    fn keep(&mut self, number: u64, bytes: usize, at: Instant) {
        self.numbered = self.numbered.max(number);
        self.kept_bytes += bytes;
        self.kept.push_back(KeptEntry { number, bytes, at });
    }

    /// Evicts entries of the shared log that are too old, too many or too large together with `more` bytes; the
    /// number of the oldest one left, if any.
    pub(super) fn evict(&mut self, more: usize, bounds: KeptBounds, now: Instant) -> Option<u64> {
        while let Some(oldest) = self.kept.front() {
            let is_old = now.duration_since(oldest.at) > bounds.max_age;
            let is_full =
                self.kept.len() >= bounds.entries || self.kept_bytes + more > bounds.bytes;
            if !is_old && !is_full {
                return Some(oldest.number);
            }
            self.kept_bytes -= oldest.bytes;
            self.kept.pop_front();
        }
        None
    }

    /// Whether the shared log has expired, and no stream of calls is left whose further entries name them: twice its life,
    /// as the store's clock began later.
    pub(super) fn is_expired(&self, bounds: KeptBounds, now: Instant) -> bool {
        let is_unused = self.is_written() && self.calls.is_empty();
        is_unused && now.duration_since(self.changed) > 2 * bounds.max_age
    }

    /// Whether the shared log must have had more than `entries` before the last call: it lost some.
    pub(super) fn has_lost(&self, entries: usize) -> bool {
        entries < self.kept.len()
    }

    /// Forgets what the shared log had: all events are to be enqueued again, under new numbers. The entries that waited.
    pub(super) fn start_over(&mut self) -> VecDeque<WaitingEntry> {
        self.kept.clear();
        self.kept_bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Keeps a waker for the next acknowledgement or failure.
    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    /// The wakers of all readers that wait, to be woken without the lock.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: KeptBounds = KeptBounds {
        entries: 3,
        bytes: 100,
        max_age: Duration::from_mins(1),
    };

    fn queue() -> SessionQueue {
        SessionQueue::new(Ownership { node: 1, epoch: 0 })
    }

    fn numbers(entries: &[WaitingEntry]) -> Vec<(u64, u64, u64)> {
        let parts = entries
            .iter()
            .map(|entry| (entry.number, entry.first, entry.newest));
        parts.collect()
    }

    #[test]
    fn requests_of_few_streams_and_calls_of_not_all_are_kept() {
        let mut queue = queue();
        let count = u32::try_from(MOST_STREAMS).unwrap();
        for stream in 0..=count {
            queue.note_calls(
                stream,
                StreamCalls::new("[1]".into(), Some("[1,{}]".into())),
            );
        }
        assert_eq!(queue.calls.len(), MOST_STREAMS);
        assert!(!queue.calls.contains_key(&0), "the oldest is forgotten");
        let with_request = queue
            .calls
            .values()
            .filter(|calls| calls.with_request.is_some());
        assert_eq!(with_request.count(), MOST_REQUESTS);
        assert_eq!(queue.calls_of((count, 1), false), "[1,{}]");
    }

    #[test]
    fn first_entry_of_a_stream_alone_has_the_request() {
        let mut queue = queue();
        let (ids, whole) = ("[1]", "[1,{}]");
        queue.note_calls(7, StreamCalls::new(ids.into(), Some(whole.into())));
        assert_eq!(queue.calls_of((7, 3), false), whole);
        assert_eq!(queue.calls_of((7, 5), false), ids);
        // It was not appended, and is sent again.
        assert_eq!(queue.calls_of((7, 3), false), whole);
        assert!(queue.calls_of((8, 1), false).is_empty());
        assert!(queue.calls_of((7, 6), true).is_empty());
        assert!(queue.calls_of((7, 3), false).is_empty());
    }

    #[test]
    fn calls_of_a_silent_stream_are_known_until_it_ends() {
        let mut queue = queue();
        let later = Instant::now() + 3 * BOUNDS.max_age;
        assert!(queue.is_expired(BOUNDS, later));
        queue.note_calls(1, StreamCalls::new("[1]".into(), None));
        assert!(!queue.is_expired(BOUNDS, later));
        assert!(queue.calls_of((1, 1), true).is_empty());
        assert!(queue.is_expired(BOUNDS, later));
    }

    #[test]
    fn consecutive_events_share_an_entry_until_it_is_sent() {
        let mut queue = queue();
        queue.push(1, 1, 2);
        queue.push(1, 3, 3);
        assert_eq!(numbers(&queue.next()), [(1, 1, 3)]);
        queue.push(1, 4, 4);
        queue.push(2, 1, 1);
        queue.push(1, 5, 5);
        let again = queue.next();
        assert_eq!(
            numbers(&again),
            [(1, 1, 3), (2, 4, 4), (3, 1, 1), (4, 5, 5)]
        );
        queue.acknowledge(2, &[(1, 10), (2, 10)], Instant::now());
        assert!(!queue.has_waiting(1, 4));
        assert!(queue.has_waiting(1, 5) && queue.has_waiting(2, 1));
    }

    #[test]
    fn entries_of_an_epoch_begin_with_its_numbers() {
        let ownership = Ownership { node: 1, epoch: 3 };
        let mut queue = SessionQueue::new(ownership);
        queue.push(1, 1, 1);
        assert_eq!(queue.next()[0].number, ownership.first_number() + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn kept_entries_are_bounded_by_number_bytes_and_age() {
        let mut queue = queue();
        for number in 1..=3 {
            queue.keep(number, 20, Instant::now());
        }
        assert_eq!(queue.evict(20, BOUNDS, Instant::now()), Some(2), "number");
        assert_eq!(queue.evict(70, BOUNDS, Instant::now()), Some(3), "bytes");
        tokio::time::advance(Duration::from_mins(2)).await;
        assert_eq!(queue.evict(0, BOUNDS, Instant::now()), None, "age");
        assert_eq!(queue.kept_bytes, 0);
    }

    #[tokio::test]
    async fn entries_taken_over_stand_before_those_of_the_queue() {
        let by = Ownership { node: 1, epoch: 1 };
        let mut queue = SessionQueue::new(by);
        let own = by.first_number() + 1;
        queue.push(1, 1, 1);
        let now = Instant::now();
        let kept = [(3, 20), (4, 20), (own, 20)];
        queue.take_over(&kept, now);
        queue.acknowledge(own, &[(own, 20)], now);
        queue.take_over(&kept, now);
        assert_eq!(queue.kept_bytes, 60, "each entry counts once");
        assert_eq!(queue.evict(70, BOUNDS, now), Some(own));
    }

    #[test]
    fn waiting_entries_are_bounded_and_losses_counted() {
        let mut queue = queue();
        let pushed: Vec<u64> = (0..1_026)
            .map(|at| queue.push(1, 3 * at + 1, 3 * at + 2))
            .collect();
        assert_eq!(pushed.iter().sum::<u64>(), 4);
        assert_eq!(numbers(&queue.next())[0], (3, 7, 8));
    }
}
