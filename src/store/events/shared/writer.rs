//! `EventWriter`: the task that appends to the shared log, and the sessions that wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Waker};

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::memory::MemoryEvents;
use super::super::{Durability, SessionKey, StreamKey};
use super::entry::LogEntry;
use super::queue::{KeptBounds, SessionQueue};
use super::{Reachability, SharedLogParts};
use crate::lock::lock;
use crate::ownership::Ownership;
use crate::seal::Sealer;
use crate::store::fenced::FencedSessions;
use crate::store::pause::RetryPause;
use crate::store::scripts::{
    Script, ScriptCall, ScriptResult, ScriptRunner, StoreKeys, elements, integer,
};
use crate::telemetry::metrics::COUNTERS;

static APPEND: LazyLock<Script> =
    LazyLock::new(|| Script::new("events_append", include_str!("append.lua")));
static FORGET: LazyLock<Script> =
    LazyLock::new(|| Script::new("events_forget", include_str!("forget.lua")));

/// Entries of one session in the shared log at most.
const ENTRIES: usize = 1024;
/// Sessions of one round trip at most.
const SESSIONS: usize = 256;
/// Bytes of one round trip, beyond which no further session is added.
const BYTES: usize = 1 << 20;
/// Logs that wait to be removed at most; the others expire.
const FORGOTTEN: usize = 4096;

/// The owner's side of the shared log.
#[derive(Debug)]
pub(super) struct EventWriter {
    pub(super) local: MemoryEvents,
    pub(super) store: Arc<dyn ScriptRunner>,
    pub(super) keys: StoreKeys,
    pub(super) sealer: Arc<Sealer>,
    pub(super) own: Ownership,
    bounds: KeptBounds,
    queues: DashMap<SessionKey, Arc<Mutex<SessionQueue>>>,
    lists: Mutex<WorkLists>,
    work: Notify,
    fenced: Arc<FencedSessions>,
    reachability: Reachability,
}

#[derive(Debug, Default)]
struct WorkLists {
    /// Sessions with entries that wait, each once.
    waiting: VecDeque<SessionKey>,
    /// Ended sessions.
    forgotten: VecDeque<(SessionKey, Ownership)>,
}

/// The entries that one call of a round trip appends.
struct Append {
    session: SessionKey,
    /// The newest waiting entry that the call settles.
    settles: u64,
    /// Number and bytes of each entry.
    entries: Vec<(u64, usize)>,
}

/// Outcome of the call of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Appended {
    /// The log has the entries, and had this many before.
    Written {
        before: usize,
    },
    /// Another replica owns the session.
    Fenced,
    Failed,
}

impl EventWriter {
    pub(super) fn new(parts: SharedLogParts) -> Self {
        Self {
            bounds: KeptBounds {
                entries: ENTRIES,
                bytes: parts.bounds.per_session,
                max_age: parts.bounds.max_age,
            },
            local: MemoryEvents::new(parts.bounds),
            store: parts.store,
            keys: parts.keys,
            sealer: parts.sealer,
            own: parts.own,
            queues: DashMap::new(),
            lists: Mutex::default(),
            work: Notify::new(),
            fenced: parts.fenced,
            reachability: Reachability::default(),
        }
    }

    fn queue(&self, session: SessionKey) -> Option<Arc<Mutex<SessionQueue>>> {
        self.queues.get(&session).map(|queue| Arc::clone(&queue))
    }

    fn queue_or_new(&self, session: SessionKey) -> Arc<Mutex<SessionQueue>> {
        let new = || Arc::new(Mutex::new(SessionQueue::new(self.own)));
        self.queue(session)
            .unwrap_or_else(|| Arc::clone(&self.queues.entry(session).or_insert_with(new)))
    }

    /// Whether the log of a session is written here.
    pub(super) fn owns(&self, session: SessionKey) -> bool {
        self.queues.contains_key(&session)
    }

    /// All sessions whose log is written here.
    pub(super) fn sessions(&self) -> Vec<SessionKey> {
        self.queues.iter().map(|entry| *entry.key()).collect()
    }

    /// Enqueues events that the local log has just taken.
    pub(super) fn enqueue(&self, at: StreamKey, first: u64, newest: u64) {
        let queue = self.queue_or_new(at.session);
        let mut queue = lock(&queue);
        let lost = queue.push(at.stream, first, newest);
        self.list(at.session, &mut queue);
        drop(queue);
        COUNTERS.events_unlogged.add(lost);
    }

    /// Enqueues all that the local log has of a session.
    pub(super) fn enqueue_all(&self, session: SessionKey) {
        if let Some(queue) = self.queue(session) {
            let mut queue = lock(&queue);
            self.start_over(session, &mut queue);
            self.list(session, &mut queue);
        }
    }

    fn start_over(&self, session: SessionKey, queue: &mut SessionQueue) {
        queue.start_over();
        for (stream, first, newest) in self.local.ranges(session) {
            queue.push(stream, first, newest);
        }
    }

    /// Puts a session with waiting entries on the task's list.
    fn list(&self, session: SessionKey, queue: &mut SessionQueue) {
        if !queue.is_listed && !queue.is_fenced && !queue.is_written() {
            queue.is_listed = true;
            lock(&self.lists).waiting.push_back(session);
            self.work.notify_one();
        }
    }

    /// Takes over the log of a session, whose entries are `kept` (number and bytes).
    pub(super) fn adopt(&self, session: SessionKey, by: Ownership, kept: &[(u64, usize)]) {
        let mut queue = SessionQueue::new(by);
        let now = Instant::now();
        for (number, bytes) in kept {
            queue.keep(*number, *bytes, now);
        }
        self.queues.insert(session, Arc::new(Mutex::new(queue)));
    }

    /// Forgets sessions whose shared log has expired. Their next event begins a new log.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let own = self.own;
        self.queues.retain(|_, queue| {
            let queue = lock(queue);
            queue.ownership != own || !queue.is_expired(self.bounds, now)
        });
    }

    /// Stops writing the log of a session, and has it removed unless another replica owns it.
    pub(super) fn forget(&self, session: SessionKey) {
        let Some((_, queue)) = self.queues.remove(&session) else {
            return;
        };
        let mut queue = lock(&queue);
        let wakers = queue.take_wakers();
        let (ownership, is_fenced) = (queue.ownership, queue.is_fenced);
        drop(queue);
        wake(wakers);
        if !is_fenced {
            let mut lists = lock(&self.lists);
            lists.forgotten.push_back((session, ownership));
            if lists.forgotten.len() > FORGOTTEN {
                lists.forgotten.pop_front();
            }
            drop(lists);
            self.work.notify_one();
        }
    }

    /// See [`EventStore::poll_durable`](super::EventStore::poll_durable).
    pub(super) fn poll_durable(
        &self,
        at: StreamKey,
        seq: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Durability> {
        let Some(queue) = self.queue(at.session) else {
            return Poll::Ready(Durability::Unlogged);
        };
        let mut queue = lock(&queue);
        if queue.is_fenced {
            return Poll::Ready(Durability::Fenced);
        }
        if !queue.has_waiting(at.stream, seq) {
            return Poll::Ready(Durability::Durable);
        }
        if queue.is_failing || self.reachability.is_down() {
            return Poll::Ready(Durability::Unlogged);
        }
        queue.wait(cx.waker());
        Poll::Pending
    }

    /// Appends what waits, for ever. Dropped, it leaves what waits unlogged.
    pub(super) async fn run(self: Arc<Self>) {
        let mut pause = RetryPause::new();
        loop {
            let (calls, appends) = self.next_round();
            if calls.is_empty() {
                self.work.notified().await;
                continue;
            }
            let results = self.store.run(calls).await;
            if self.settle(appends, &results) {
                pause.reset();
            } else {
                tokio::time::sleep(pause.next()).await;
            }
        }
    }

    /// The calls of one round trip. Those without an [`Append`] stand at the end: logs to remove.
    fn next_round(&self) -> (Vec<ScriptCall>, Vec<Append>) {
        let (mut calls, mut appends, mut bytes) = (Vec::new(), Vec::new(), 0);
        while calls.len() < SESSIONS && bytes < BYTES {
            let Some(session) = lock(&self.lists).waiting.pop_front() else {
                break;
            };
            if let Some((call, append)) = self.append_call(session) {
                bytes += append.entries.iter().map(|(_, bytes)| bytes).sum::<usize>();
                calls.push(call);
                appends.push(append);
            }
        }
        let mut lists = lock(&self.lists);
        let room = SESSIONS.min(lists.forgotten.len());
        calls.extend(
            lists
                .forgotten
                .drain(..room)
                .map(|(session, by)| ScriptCall {
                    script: &FORGET,
                    keys: vec![self.keys.events(session), self.keys.record(session)],
                    args: vec![by.to_bytes().to_vec()],
                }),
        );
        drop(lists);
        (calls, appends)
    }

    /// The call that appends the oldest waiting entries of a session.
    fn append_call(&self, session: SessionKey) -> Option<(ScriptCall, Append)> {
        let queue = self.queue(session)?;
        let mut queue = lock(&queue);
        queue.is_listed = false;
        let waiting = queue.next();
        let (first, settles) = (waiting.first()?.number, waiting.last()?.number);
        let mut entries = Vec::with_capacity(waiting.len());
        let mut contents = Vec::with_capacity(2 * waiting.len());
        for wait in &waiting {
            let at = StreamKey {
                session,
                stream: wait.stream,
            };
            let events = self.local.between(at, wait.first, wait.newest);
            let all = wait.newest + 1 - wait.first;
            // Evicted meanwhile.
            COUNTERS.events_unlogged.add(all - events.len() as u64);
            let entry = LogEntry {
                stream: wait.stream,
                events,
            };
            if let Some(sealed) = entry.seal(&self.sealer, session, wait.number) {
                entries.push((wait.number, sealed.len()));
                contents.push(wait.number.to_string().into());
                contents.push(sealed);
            }
        }
        if entries.is_empty() {
            queue.acknowledge(settles, &[], Instant::now());
            self.list(session, &mut queue);
            return None;
        }
        let bytes = entries.iter().map(|(_, bytes)| bytes).sum();
        let oldest = queue.evict(bytes, self.bounds, Instant::now());
        let mut args = vec![
            queue.ownership.to_bytes().to_vec(),
            queue.highest_stream.to_string().into(),
            oldest.unwrap_or(first).to_string().into(),
            self.bounds.max_age.as_millis().to_string().into(),
            queue.ownership.end_of_numbers().to_string().into(),
        ];
        args.append(&mut contents);
        let call = ScriptCall {
            script: &APPEND,
            keys: vec![self.keys.events(session), self.keys.record(session)],
            args,
        };
        let append = Append {
            session,
            settles,
            entries,
        };
        Some((call, append))
    }

    /// Records the outcome of a round trip; `false` if the next one is to wait.
    fn settle(&self, appends: Vec<Append>, results: &[ScriptResult]) -> bool {
        let mut failed = 0;
        let outcomes: Vec<Appended> = appends
            .iter()
            .enumerate()
            .map(|(at, _)| results.get(at).map_or(Appended::Failed, outcome))
            .collect();
        let all = outcomes.len();
        for (append, outcome) in appends.into_iter().zip(outcomes) {
            if outcome == Appended::Failed {
                failed += 1;
            }
            self.settle_one(&append, outcome);
        }
        if all > 0 && self.reachability.record(failed == all) {
            self.wake_all();
        }
        failed == 0
    }

    fn settle_one(&self, append: &Append, outcome: Appended) {
        let Some(queue) = self.queue(append.session) else {
            return;
        };
        let mut queue = lock(&queue);
        match outcome {
            Appended::Written { before } => {
                let lost = queue.has_lost(before);
                queue.acknowledge(append.settles, &append.entries, Instant::now());
                if lost {
                    self.start_over(append.session, &mut queue);
                }
            }
            Appended::Fenced => {
                queue.is_fenced = true;
                queue.start_over();
                self.fenced.add(append.session);
            }
            Appended::Failed => queue.is_failing = true,
        }
        self.list(append.session, &mut queue);
        let wakers = queue.take_wakers();
        drop(queue);
        wake(wakers);
    }

    /// Wakes the readers of all sessions: none of them is to wait for a log that cannot be written.
    fn wake_all(&self) {
        for session in self.sessions() {
            if let Some(queue) = self.queue(session) {
                let wakers = lock(&queue).take_wakers();
                wake(wakers);
            }
        }
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// What a reply of `append.lua` says.
fn outcome(result: &ScriptResult) -> Appended {
    let Ok(reply) = result else {
        return Appended::Failed;
    };
    let mut numbers = elements(reply).iter().map(integer);
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(-1), _) => Appended::Fenced,
        (Some(_), Some(before)) => Appended::Written {
            before: usize::try_from(before).unwrap_or(0),
        },
        _ => Appended::Failed,
    }
}
