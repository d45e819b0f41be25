//! `EventWriter`: the sessions whose log is written here, and what waits for the task that appends it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::memory::{LogBounds, MemoryEvents};
use super::super::{Durability, SessionKey, StreamKey};
use super::queue::{KeptBounds, SessionQueue, StreamCalls};
use crate::lock::lock;
use crate::ownership::{Fence, Ownership};
use crate::seal::Sealer;
use crate::store::calls::WorkStage;
use crate::store::fenced::FencedSessions;
use crate::store::scripts::{ScriptRunner, StoreKeys};
use crate::telemetry::metrics::COUNTERS;

/// Entries of one session in the shared log at most.
const ENTRIES: usize = 1024;
/// Logs that wait to be removed at most; the others expire.
const FORGOTTEN: usize = 4096;

/// What a shared log is made of.
#[derive(Debug)]
pub struct SharedLogParts {
    /// Bounds of the log in this process. For each session, bytes and age are also those in the shared store.
    pub bounds: LogBounds,
    /// Runs the scripts.
    pub store: Arc<dyn ScriptRunner>,
    /// Names of the keys.
    pub keys: StoreKeys,
    /// Seals the events.
    pub sealer: Arc<Sealer>,
    /// Ownership of the sessions that begin here.
    pub own: Ownership,
    /// Told of sessions whose log another replica writes.
    pub fenced: Arc<FencedSessions>,
    /// Closed while another replica may write any of the logs: nothing of them is shown then.
    pub fence: Fence,
}

/// The owner's side of the shared log.
#[derive(Debug)]
pub(super) struct EventWriter {
    pub(super) local: MemoryEvents,
    pub(super) store: Arc<dyn ScriptRunner>,
    pub(super) keys: StoreKeys,
    pub(super) sealer: Arc<Sealer>,
    pub(super) own: Ownership,
    pub(super) bounds: KeptBounds,
    fence: Fence,
    queues: DashMap<SessionKey, Arc<Mutex<SessionQueue>>>,
    pub(super) lists: Mutex<WorkLists>,
    pub(super) work: Notify,
    fenced: Arc<FencedSessions>,
}

/// What the task is to do.
#[derive(Debug, Default)]
pub(super) struct WorkLists {
    /// Sessions with entries that wait, each once.
    pub(super) waiting: VecDeque<SessionKey>,
    /// Ended sessions.
    pub(super) forgotten: VecDeque<(SessionKey, Ownership)>,
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
            fence: parts.fence,
            queues: DashMap::new(),
            lists: Mutex::default(),
            work: Notify::new(),
            fenced: parts.fenced,
        }
    }

    pub(super) fn queue(&self, session: SessionKey) -> Option<Arc<Mutex<SessionQueue>>> {
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

    /// How many these are.
    pub(super) fn session_count(&self) -> usize {
        self.queues.len()
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

    /// Notes the calls of a stream, for its entries.
    pub(super) fn note_calls(&self, at: StreamKey, calls: StreamCalls) {
        let queue = self.queue_or_new(at.session);
        lock(&queue).note_calls(at.stream, calls);
    }

    /// Enqueues all that the local log has of a session.
    pub(super) fn enqueue_all(&self, session: SessionKey) {
        if let Some(queue) = self.queue(session) {
            let mut queue = lock(&queue);
            self.start_over(session, &mut queue);
            self.list(session, &mut queue);
        }
    }

    /// Enqueues all that the local log has of a session in `queue`, in place of what waits there.
    pub(super) fn start_over(&self, session: SessionKey, queue: &mut SessionQueue) {
        let waited = queue.start_over();
        for (stream, first, newest) in self.local.ranges(session) {
            let lost = queue.push(stream, first, newest);
            COUNTERS.events_unlogged.add(lost);
        }
        for entry in waited {
            // Evicted here before it was sent, as a whole or up to the first event that waits again.
            let kept = queue.first_waiting(entry.stream).unwrap_or(u64::MAX);
            let kept = kept.min(entry.newest + 1);
            if kept > entry.first {
                queue.given_up.add(entry.stream, kept - 1);
            }
        }
    }

    /// Puts a session with waiting entries on the task's list.
    pub(super) fn list(&self, session: SessionKey, queue: &mut SessionQueue) {
        if queue.may_be_listed() {
            queue.stage = WorkStage::Listed;
            lock(&self.lists).waiting.push_back(session);
            self.work.notify_one();
        }
    }

    /// Has a session told that another replica owns it, unless its log has been taken over again.
    pub(super) fn fence(&self, session: SessionKey, queue: &Arc<Mutex<SessionQueue>>) {
        if self
            .queue(session)
            .is_some_and(|present| Arc::ptr_eq(&present, queue))
        {
            let by = lock(queue).ownership;
            self.fenced.add(session, by);
        }
    }

    /// Takes over the log of a session, whose entries are `kept` (number and bytes). A queue of the same ownership, made
    /// by an event that came while the log was read, stays with what waits there, and one of a later epoch as it is.
    pub(super) fn adopt(&self, session: SessionKey, by: Ownership, kept: &[(u64, usize)]) {
        let new = || Arc::new(Mutex::new(SessionQueue::new(by)));
        let mut entry = self.queues.entry(session).or_insert_with(new);
        let known = lock(&entry).ownership;
        if known.epoch > by.epoch {
            return;
        }
        let mut wakers = Vec::new();
        if known != by {
            let former = std::mem::replace(&mut *entry, new());
            wakers = lock(&former).take_wakers();
        }
        let queue = Arc::clone(&entry);
        drop(entry);
        lock(&queue).take_over(kept, Instant::now());
        wake(wakers);
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
        if queue.is_fenced || !self.fence.is_open() {
            return Poll::Ready(Durability::Fenced);
        }
        if !queue.has_waiting(at.stream, seq) {
            return Poll::Ready(if queue.given_up.has(at.stream, seq) {
                Durability::Unlogged
            } else {
                Durability::Durable
            });
        }
        if queue.is_failing || !self.store.is_reachable() {
            return Poll::Ready(Durability::Unlogged);
        }
        queue.wait(cx.waker());
        Poll::Pending
    }

    /// Ready once nothing of a session waits; `false` where it is not written.
    pub(super) fn poll_written(&self, session: SessionKey, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(queue) = self.queue(session) else {
            return Poll::Ready(true);
        };
        let mut queue = lock(&queue);
        if queue.is_written() {
            return Poll::Ready(!queue.is_fenced);
        }
        if queue.is_failing || queue.is_fenced || !self.store.is_reachable() {
            return Poll::Ready(false);
        }
        queue.wait(cx.waker());
        Poll::Pending
    }

    /// Wakes the readers of all sessions: none of them is to wait for a log that cannot be written.
    pub(super) fn wake_all(&self) {
        for session in self.sessions() {
            if let Some(queue) = self.queue(session) {
                let wakers = lock(&queue).take_wakers();
                wake(wakers);
            }
        }
    }
}

/// To be called without the lock of a queue.
pub(super) fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
