//! One event stream of a session: what was put on it, and who reads it now.
//!
//! Messages go straight into the event log; a reader is a position in it. So nothing depends on a
//! socket being there, and a resumed stream is the same stream.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::call::{Notice, NoticeKind};
use crate::store::events::{Event, EventStore, Replay, StreamKey};
use crate::telemetry::metrics::COUNTERS;

/// Unread notifications of one stream before they are merged or dropped.
const UNREAD_FRAMES: usize = 64;
/// Unread bytes of one stream before notifications are merged or dropped.
const UNREAD_BYTES: usize = 256 * 1024;
/// Events handed to a reader at once.
const READ_AT_ONCE: usize = 64;

/// A stream's shared state.
#[derive(Debug)]
pub struct EventStream {
    key: StreamKey,
    store: Arc<dyn EventStore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Unread notifications, oldest first.
    unread: VecDeque<Unread>,
    unread_bytes: usize,
    /// What the current reader has taken, or the last one had.
    read: u64,
    written: u64,
    finished: bool,
    /// Counts readers; only the newest is served.
    reader: u64,
    /// Whether older readers have to end, rather than stay open without messages.
    resumed: bool,
    attached: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Unread {
    seq: u64,
    kind: NoticeKind,
    bytes: usize,
}

/// The newest reader of a stream; detaches when dropped.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<EventStream>,
    number: u64,
    position: u64,
    /// Left over from a replay that had a gap: only the reply is still known.
    pending: VecDeque<Event>,
    /// Whether events were gone before they were read.
    missed: bool,
}

/// Why a stream cannot be resumed from a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the events after this id are no longer kept")]
pub struct NotKept;

/// One step of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Events to write.
    Events(Vec<Event>),
    /// The stream is complete and all of it was read.
    Finished,
    /// A newer reader took over by resuming: this one ends.
    Superseded,
    /// A newer reader was opened beside this one and is served instead (SPEC T-29).
    Quiet,
}

impl EventStream {
    /// A stream with nothing on it.
    #[must_use]
    pub fn new(key: StreamKey, store: Arc<dyn EventStore>) -> Arc<Self> {
        Arc::new(Self {
            key,
            store,
            state: Mutex::default(),
        })
    }

    /// The stream's number within the session.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.key.stream
    }

    /// Whether somebody reads it now.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.lock().attached
    }

    /// Whether anything of it can still be replayed.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.store.after(self.key, 0, 0) != Replay::Unknown
    }

    /// Whether its last message was put on it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Puts a notification on the stream. When nobody keeps up, change notices and progress give
    /// way to newer ones of their kind and log messages are dropped and counted (DESIGN §3).
    ///
    /// Returns `false` when it was dropped.
    pub fn notify(&self, notice: Notice) -> bool {
        let mut state = self.lock();
        if state.finished {
            return false;
        }
        let size = notice.bytes.len();
        let crowded = state.unread.len() >= UNREAD_FRAMES
            || state.unread_bytes + size > UNREAD_BYTES
            || (!state.attached && merges_when_unread(&notice.kind));
        if crowded {
            if let Some(unread) = state
                .unread
                .iter_mut()
                .find(|unread| merge(unread, &notice))
            {
                let (seq, old) = (unread.seq, unread.bytes);
                unread.bytes = size;
                state.unread_bytes = state.unread_bytes - old + size;
                COUNTERS.notices_coalesced.add(1);
                return self.store.replace(self.key, seq, notice.bytes);
            }
            if state.unread.len() >= UNREAD_FRAMES || state.unread_bytes + size > UNREAD_BYTES {
                COUNTERS.notices_dropped.add(1);
                return false;
            }
        }
        let seq = self.store.append(self.key, notice.bytes, false);
        state.written = seq;
        state.unread_bytes += size;
        state.unread.push_back(Unread {
            seq,
            kind: notice.kind,
            bytes: size,
        });
        wake(state);
        true
    }

    /// Puts a question or one of several replies on the stream; never dropped before its end.
    pub fn put(&self, message: Bytes) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.written = self.store.append(self.key, message, false);
        wake(state);
    }

    /// Puts an empty event with an id on the stream. Spec: SPEC T-26.
    pub fn prime(&self) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.written = self.store.append(self.key, Bytes::new(), false);
        wake(state);
    }

    /// Ends the stream with its reply, or with an empty last event when the call was cancelled.
    pub fn finish(&self, reply: Option<Bytes>) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        state.finished = true;
        state.written = self.store.append(self.key, reply.unwrap_or_default(), true);
        wake(state);
    }

    /// Ends the stream without a message: its session is over, and nothing more may be logged.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.finished = true;
        wake(state);
    }

    /// A new reader of what is unread; an older one is superseded.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Reader {
        let mut state = self.lock();
        let position = state.read;
        let number = take_over(&mut state, false);
        drop(state);
        Reader {
            stream: Arc::clone(self),
            number,
            position,
            pending: VecDeque::new(),
            missed: false,
        }
    }

    /// A new reader that starts right after the event `seq`. Spec: SPEC T-25.
    ///
    /// # Errors
    /// [`NotKept`] when events after `seq` are gone, unless the stream has ended and its reply is
    /// still there: then that alone is replayed (DESIGN §5).
    pub fn resume(self: &Arc<Self>, seq: u64) -> Result<Reader, NotKept> {
        let mut state = self.lock();
        let mut pending = VecDeque::new();
        let mut position = seq;
        match self.store.after(self.key, seq, usize::MAX) {
            Replay::Events(_) => {}
            Replay::Evicted(events) => {
                COUNTERS.streams_unresumable.add(1);
                let reply = events.into_iter().find(|event| event.last).ok_or(NotKept)?;
                position = reply.seq;
                pending.push_back(reply);
            }
            Replay::Unknown => return Err(NotKept),
        }
        let number = take_over(&mut state, true);
        drop(state);
        Ok(Reader {
            stream: Arc::clone(self),
            number,
            position,
            pending,
            missed: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// The stream it reads.
    #[must_use]
    pub fn stream(&self) -> &Arc<EventStream> {
        &self.stream
    }

    /// Whether something was gone before it could be read: it did not keep up.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.missed
    }

    /// What comes next.
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if let Some(event) = self.pending.pop_front() {
            return Poll::Ready(Next::Events(vec![event]));
        }
        let mut state = self.stream.lock();
        if state.reader != self.number {
            return Poll::Ready(if state.resumed {
                Next::Superseded
            } else {
                Next::Quiet
            });
        }
        if state.written > self.position {
            let replay = self
                .stream
                .store
                .after(self.stream.key, self.position, READ_AT_ONCE);
            let events = match replay {
                Replay::Events(events) => events,
                Replay::Evicted(events) => {
                    self.missed = true;
                    events
                }
                Replay::Unknown => return Poll::Ready(Next::Finished),
            };
            let newest = events.last().map_or(state.written, |event| event.seq);
            self.position = newest;
            mark_read(&mut state, newest);
            if !events.is_empty() {
                return Poll::Ready(Next::Events(events));
            }
        }
        if state.finished {
            return Poll::Ready(Next::Finished);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if state.reader == self.number {
            state.attached = false;
            state.waker = None;
        }
    }
}

fn take_over(state: &mut State, resumed: bool) -> u64 {
    state.resumed = resumed;
    state.reader += 1;
    state.attached = true;
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
    state.reader
}

fn mark_read(state: &mut State, seq: u64) {
    state.read = state.read.max(seq);
    while let Some(front) = state.unread.front() {
        if front.seq > seq {
            break;
        }
        state.unread_bytes -= front.bytes;
        state.unread.pop_front();
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Idempotent notices: while nobody reads, one of a kind is enough.
fn merges_when_unread(kind: &NoticeKind) -> bool {
    matches!(
        kind,
        NoticeKind::ListChanged { .. } | NoticeKind::ResourceUpdated { .. }
    )
}

fn merge(unread: &Unread, notice: &Notice) -> bool {
    unread.kind == notice.kind
        && !matches!(
            notice.kind,
            NoticeKind::Log | NoticeKind::ElicitationComplete | NoticeKind::Other
        )
}

#[cfg(test)]
mod tests;
