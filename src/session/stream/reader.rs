//! Who reads an event stream: a position in its log, and what has not been logged yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Audience, EventStream, READ_AT_ONCE, State};
use crate::store::events::{Event, Replay};

/// A reader of a stream, which is served while no newer one is open; detaches when dropped.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<EventStream>,
    number: u64,
    position: u64,
    /// Left over from a replay that had a gap: only the reply is still known.
    pending: Option<Event>,
    /// Whether events were gone before they were read.
    missed: bool,
}

/// A reader that stays open beside a newer one, and is served once that one is gone.
#[derive(Debug)]
pub(super) struct Beside {
    reader: u64,
    waker: Option<Waker>,
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
}

impl Reader {
    /// The reader `number` of a stream, which has read up to `position`; it hands out `pending`
    /// first.
    pub(super) fn new(
        stream: Arc<EventStream>,
        number: u64,
        position: u64,
        pending: Option<Event>,
    ) -> Self {
        Self {
            stream,
            number,
            position,
            pending,
            missed: false,
        }
    }

    /// The stream it reads.
    #[must_use]
    pub fn stream(&self) -> &Arc<EventStream> {
        &self.stream
    }

    /// After which event it goes on, and its number among the readers of the stream.
    #[must_use]
    pub fn place(&self) -> (u64, u64) {
        (self.position, self.number)
    }

    /// Whether something was gone before it could be read: it did not keep up.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.missed
    }

    /// Wants no wake-up until it is polled the next time: for whoever is about to do that, after work
    /// that may put something on the stream.
    pub fn rest(&self) {
        let mut state = self.stream.lock();
        if state.current == self.number {
            state.waker = None;
        }
    }

    /// What comes next; nothing while a newer reader is open beside this one (SPEC T-29).
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if let Some(event) = self.pending.take() {
            return Poll::Ready(Next::Events(vec![event]));
        }
        let mut state = self.stream.lock();
        if self.number <= state.superseded {
            state.turned_out.note(self.position);
            return Poll::Ready(Next::Superseded);
        }
        if state.current != self.number {
            let mut beside = state.beside.iter_mut();
            if let Some(this) = beside.find(|beside| beside.reader == self.number) {
                this.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        // Each message goes to one reader. Spec: SPEC T-21.
        self.position = self.position.max(state.goes_on);
        if state.logged > self.position {
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
            let newest = events.last().map_or(state.logged, |event| event.seq);
            self.position = newest;
            mark_read(&mut state, newest);
            if !events.is_empty() {
                return Poll::Ready(Next::Events(events));
            }
        }
        if !state.fresh.is_empty() {
            let events = self.stream.take_fresh(&mut state);
            self.position = state.logged;
            mark_read(&mut state, self.position);
            return Poll::Ready(Next::Events(events));
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
        if state.current != self.number {
            state.beside.retain(|beside| beside.reader != self.number);
            return;
        }
        hand_back(&mut state);
        if state.audience == Audience::Nobody {
            self.stream.log_fresh(&mut state);
        }
    }
}

/// Makes a new reader the one that is served; its number.
pub(super) fn take_over(state: &mut State) -> u64 {
    let waker = state.waker.take();
    if state.audience == Audience::Attached {
        let reader = state.current;
        state.beside.push(Beside { reader, waker });
    }
    state.readers += 1;
    state.current = state.readers;
    state.goes_on = 0;
    state.audience = Audience::Attached;
    state.current
}

/// Ends every reader but the newest.
pub(super) fn supersede(state: &mut State) {
    state.superseded = state.current - 1;
    let older = std::mem::take(&mut state.beside).into_iter();
    older.filter_map(|older| older.waker).for_each(Waker::wake);
}

/// The reader that is served is gone: the next newest is, or nobody.
fn hand_back(state: &mut State) {
    state.waker = None;
    match state.beside.pop() {
        None => state.audience = Audience::Nobody,
        Some(next) => {
            state.current = next.reader;
            state.goes_on = state.read;
            if let Some(waker) = next.waker {
                waker.wake();
            }
        }
    }
}

/// Everything up to `seq` is read; all that is unread after it is logged.
fn mark_read(state: &mut State, seq: u64) {
    state.read = state.read.max(seq);
    while state.unread.front().is_some_and(|unread| unread.seq <= seq) {
        state.unread.pop_front();
    }
    if state.unread.is_empty() {
        state.unread = VecDeque::new();
    }
    let fresh = state.fresh.iter().filter(|fresh| fresh.kind.is_some());
    state.notices = state.unread.len() + fresh.clone().count();
    state.notice_bytes = fresh.map(|fresh| fresh.payload.len()).sum::<usize>()
        + state
            .unread
            .iter()
            .map(|unread| unread.bytes)
            .sum::<usize>();
}
