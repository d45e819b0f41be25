//! One event stream of a session: messages, log position and readers.
//!
//! A reader is a position in the event log, so that a stream does not depend on a socket, and a
//! resumed stream is the same stream. While a reader is attached or awaited, messages wait in
//! `StreamState::fresh` beside the log, and the reader logs them in one batch before handing them on.
//! Without a reader, messages are logged at once.

mod gap;
mod reader;
mod superseded_readers;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

pub use reader::{NotKept, ReaderStep, StreamReader};

use self::reader::StandbyReader;
use self::superseded_readers::SupersededReaders;
use super::StreamPermit;
use crate::call::{Notice, NoticeKind};
use crate::lock::lock;
use crate::store::events::{EventStore, LoggedEvent, ReplayResult, RestoredStream, StreamKey};
use crate::telemetry::metrics::COUNTERS;

/// Unread notifications of one stream before they are merged or dropped.
const UNREAD_FRAMES: usize = 64;
/// Unread bytes of one stream before notifications are merged or dropped.
const UNREAD_BYTES: usize = 256 * 1024;
/// Events handed to a reader at once, and messages that wait for it beside the log.
const READ_AT_ONCE: usize = 64;
/// Bytes that wait for a reader beside the log.
const FRESH_BYTES: usize = 64 * 1024;

/// A stream's shared state.
#[derive(Debug)]
pub struct EventStream {
    key: StreamKey,
    store: Arc<dyn EventStore>,
    state: Mutex<StreamState>,
}

#[derive(Debug, Default)]
struct StreamState {
    /// Messages not logged yet, oldest first; empty in [`StreamAudience::Nobody`].
    fresh: Vec<UnloggedMessage>,
    fresh_bytes: usize,
    /// Logged, unread notifications, oldest first.
    unread: VecDeque<UnreadMessages>,
    /// Unread notifications, logged or not, and their bytes.
    notices: usize,
    notice_bytes: usize,
    /// Position up to which the current reader, or the last one, has read.
    read: u64,
    logged: u64,
    /// Up to here a former owner may have shown events, none of which is left; 0 if there was none.
    gone: u64,
    finished: bool,
    /// Whether the newest message ends the stream.
    ended: bool,
    /// Counts readers.
    readers: u64,
    /// Number of the reader that is served: the newest open one.
    current: u64,
    /// The current reader's permit.
    permit: Option<StreamPermit>,
    /// Where an older reader continues once the newer one is dropped: after the newer one's position.
    goes_on: u64,
    /// Older open readers, the oldest first; at most as many as the session may have streams.
    beside: Vec<StandbyReader>,
    /// Readers up to this one have to end, rather than stay open without messages.
    superseded: u64,
    /// Superseded readers that were told to end.
    turned_out: SupersededReaders,
    /// A planned close, after which the client reconnects while the call runs on.
    hung_up: Option<HungUp>,
    audience: StreamAudience,
    /// Whether replies wait in `fresh` for the current reader, however large, rather than in the log,
    /// which evicts older events for newer ones.
    holds_replies: bool,
    /// Waker of the current reader.
    waker: Option<Waker>,
}

/// A planned close of a stream that is not finished.
#[derive(Debug, Clone, Copy)]
struct HungUp {
    /// Readers up to this number end; a later number is the client that reconnected.
    readers: u64,
    /// The wait that the upstream asks for.
    retry: Option<Duration>,
}

/// Who reads a stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StreamAudience {
    /// No reader; one may attach later.
    #[default]
    Nobody,
    /// The first reader is about to attach.
    Awaited,
    /// A reader is attached.
    Attached,
}

/// A message that is not logged yet; the kind where it is a notification.
#[derive(Debug)]
struct UnloggedMessage {
    payload: Bytes,
    kind: Option<NoticeKind>,
}

#[derive(Debug)]
struct UnreadMessages {
    seq: u64,
    kind: NoticeKind,
    bytes: usize,
}

impl EventStream {
    /// An empty stream.
    #[must_use]
    pub fn new(key: StreamKey, store: Arc<dyn EventStore>) -> Arc<Self> {
        Arc::new(Self {
            key,
            store,
            state: Mutex::default(),
        })
    }

    /// An empty stream for calls, whose first reader is about to attach; if none does, the caller calls
    /// [`settle`](Self::settle). The number of running calls bounds the replies and questions that wait in
    /// `fresh`.
    #[must_use]
    pub(super) fn awaited(key: StreamKey, store: Arc<dyn EventStore>) -> Arc<Self> {
        let stream = Self::new(key, store);
        let mut state = stream.lock();
        state.audience = StreamAudience::Awaited;
        state.holds_replies = true;
        drop(state);
        stream
    }

    /// A stream of a session that another process owned, whose events are in `store`. Nothing of it counts as unread: a
    /// client that has missed events resumes.
    #[must_use]
    pub(super) fn restored(
        key: StreamKey,
        store: Arc<dyn EventStore>,
        restored: RestoredStream,
    ) -> Arc<Self> {
        let stream = Self::new(key, store);
        stream.restore(restored);
        stream
    }

    /// The same for a stream that is there already and has no event yet.
    pub(super) fn restore(&self, restored: RestoredStream) {
        let mut state = self.lock();
        (state.logged, state.read) = (restored.newest, restored.newest);
        (state.finished, state.ended) = (restored.is_finished, restored.is_finished);
    }

    /// Stops waiting for the first reader and logs `fresh`; a client may still resume.
    pub fn settle(&self) {
        let mut state = self.lock();
        if state.audience != StreamAudience::Attached {
            state.audience = StreamAudience::Nobody;
            self.log_fresh(&mut state);
        }
    }

    /// The stream's number within the session.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.key.stream
    }

    /// Whether a reader is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.lock().audience == StreamAudience::Attached
    }

    /// Readers of this stream so far.
    #[must_use]
    pub(super) fn readers(&self) -> u64 {
        self.lock().readers
    }

    /// Whether any event can still be replayed.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.lock().fresh.is_empty() || self.store.after(self.key, 0, 0) != ReplayResult::Unknown
    }

    /// Whether its last message was put on it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Puts a notification on the stream. When the reader falls behind (`UNREAD_FRAMES`,
    /// `UNREAD_BYTES`), change notices and progress replace the unread one of their kind, and log
    /// messages are dropped and counted (DESIGN §3).
    ///
    /// Returns `false` when it was dropped.
    pub fn notify(&self, notice: Notice) -> bool {
        let mut state = self.lock();
        let taken = self.admit(&mut state, notice);
        wake(state);
        taken
    }

    /// Puts a batch of notifications on the stream under one lock, each as [`notify`](Self::notify) would.
    pub fn notify_all(&self, notices: impl Iterator<Item = Notice>) {
        let mut state = self.lock();
        // One more for the reply that may follow the notices.
        let expected = notices.size_hint().0.min(UNREAD_FRAMES) + 1;
        state.fresh.reserve(expected);
        for notice in notices {
            self.admit(&mut state, notice);
        }
        wake(state);
    }

    fn admit(&self, state: &mut StreamState, notice: Notice) -> bool {
        if state.finished {
            return false;
        }
        let size = notice.bytes.len();
        let full = state.notices >= UNREAD_FRAMES || state.notice_bytes + size > UNREAD_BYTES;
        let is_read = state.audience == StreamAudience::Attached;
        if full || (!is_read && merges_when_unread(&notice.kind)) {
            if let Some(merged) = self.merge(state, &notice) {
                COUNTERS.notices_coalesced.add(1);
                return merged;
            }
            if full {
                COUNTERS.notices_dropped.add(1);
                return false;
            }
        }
        state.notices += 1;
        state.notice_bytes += size;
        self.add(state, notice.bytes, Some(notice.kind));
        true
    }

    /// Puts a question or one of several replies on the stream; never dropped before its end.
    pub fn put(&self, message: Bytes) {
        let mut state = self.lock();
        if !state.finished {
            self.add(&mut state, message, None);
            wake(state);
        }
    }

    /// Puts an empty event with an id on the stream. Spec: SPEC T-26.
    pub fn prime(&self) {
        self.put(Bytes::new());
    }

    /// Ends the stream with its reply, or with an empty last event when the call was cancelled.
    pub fn finish(&self, reply: Option<Bytes>) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.finished = true;
        state.ended = true;
        self.add(&mut state, reply.unwrap_or_default(), None);
        wake(state);
    }

    /// Ends the stream without a message: its session is over, and nothing more may be logged.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.finished = true;
        state.fresh = Vec::new();
        wake(state);
    }

    fn add(&self, state: &mut StreamState, payload: Bytes, kind: Option<NoticeKind>) {
        state.fresh_bytes += payload.len();
        state.fresh.push(UnloggedMessage { payload, kind });
        let is_left = state.audience == StreamAudience::Nobody;
        let is_much = state.fresh.len() >= READ_AT_ONCE || state.fresh_bytes > FRESH_BYTES;
        let may_be_missed =
            |fresh: &UnloggedMessage| fresh.kind.is_some() || fresh.payload.is_empty();
        let waits = state.holds_replies && !state.fresh.iter().all(may_be_missed);
        if is_left || is_much && !waits {
            self.log_fresh(state);
        }
    }

    /// Replaces the newest unread notification of the same kind. The older ones stay in their order: progress must only
    /// grow. `None` if the kind does not merge or has no unread notification; `Some(false)` if the store no longer
    /// has the event.
    fn merge(&self, state: &mut StreamState, notice: &Notice) -> Option<bool> {
        if !merges(&notice.kind) {
            return None;
        }
        let size = notice.bytes.len();
        let mut fresh = state.fresh.iter_mut().rev();
        if let Some(fresh) = fresh.find(|fresh| fresh.kind.as_ref() == Some(&notice.kind)) {
            let old = std::mem::replace(&mut fresh.payload, notice.bytes.clone()).len();
            state.notice_bytes = state.notice_bytes - old + size;
            state.fresh_bytes = state.fresh_bytes - old + size;
            return Some(true);
        }
        let mut unread = state.unread.iter_mut().rev();
        let unread = unread.find(|unread| unread.kind == notice.kind)?;
        let old = std::mem::replace(&mut unread.bytes, size);
        let seq = unread.seq;
        state.notice_bytes = state.notice_bytes - old + size;
        Some(self.store.replace(self.key, seq, notice.bytes.clone()))
    }

    /// Logs `fresh` as unread events.
    fn log_fresh(&self, state: &mut StreamState) {
        if state.fresh.is_empty() {
            return;
        }
        let mut fresh = std::mem::take(&mut state.fresh);
        let kinds = fresh.iter_mut().map(|message| message.kind.take());
        let kinds: Vec<Option<NoticeKind>> = kinds.collect();
        let mut events = unlogged(state, fresh);
        self.store.append(self.key, &mut events);
        for (LoggedEvent { seq, payload, .. }, kind) in events.iter().zip(kinds) {
            state.logged = *seq;
            if let Some(kind) = kind {
                let (seq, bytes) = (*seq, payload.len());
                state.unread.push_back(UnreadMessages { seq, kind, bytes });
            }
        }
    }

    /// Logs `fresh` and returns the events to the current reader.
    fn take_fresh(&self, state: &mut StreamState) -> Vec<LoggedEvent> {
        let fresh = std::mem::take(&mut state.fresh);
        let mut events = unlogged(state, fresh);
        self.store.append_read(self.key, &mut events);
        state.logged = events.last().map_or(state.logged, |event| event.seq);
        events
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        lock(&self.state)
    }
}

/// Converts `fresh` to events without positions.
fn unlogged(state: &mut StreamState, fresh: Vec<UnloggedMessage>) -> Vec<LoggedEvent> {
    state.fresh_bytes = 0;
    let payloads = fresh.into_iter().map(|fresh| fresh.payload);
    let mut events: Vec<LoggedEvent> = payloads.map(LoggedEvent::of).collect();
    if let Some(newest) = events.last_mut() {
        newest.last = state.ended;
    }
    events
}

fn wake(mut state: MutexGuard<'_, StreamState>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Idempotent notices: without a reader, one of a kind is enough.
fn merges_when_unread(kind: &NoticeKind) -> bool {
    matches!(
        kind,
        NoticeKind::ListChanged { .. } | NoticeKind::ResourceUpdated { .. }
    )
}

fn merges(kind: &NoticeKind) -> bool {
    !matches!(
        kind,
        NoticeKind::Log | NoticeKind::ElicitationComplete | NoticeKind::Other
    )
}

#[cfg(test)]
mod tests;
