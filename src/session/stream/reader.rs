//! Who reads an event stream: a position in its log, and what has not been logged yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::{EventStream, HungUp, READ_AT_ONCE, StreamAudience, StreamPermit, StreamState, wake};
use crate::store::events::{Durability, LoggedEvent, ReplayResult};
use crate::telemetry::metrics::COUNTERS;

/// A reader of a stream, which is served while no newer one is open; detaches when dropped.
#[derive(Debug)]
pub struct StreamReader {
    stream: Arc<EventStream>,
    number: u64,
    position: u64,
    /// Taken from the stream, and shown once the store has made them durable. After a replay with a gap, the
    /// reply at first: nothing else is still known.
    taken: Vec<LoggedEvent>,
    /// Whether events were gone before they were read.
    missed: bool,
}

/// A reader that stays open beside a newer one, and is served once that one is gone.
#[derive(Debug)]
pub(super) struct StandbyReader {
    reader: u64,
    waker: Option<Waker>,
    permit: Option<StreamPermit>,
}

/// Why a stream cannot be resumed from a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the events after this id are no longer kept")]
pub struct NotKept;

/// One step of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum ReaderStep {
    /// Events to write.
    Events(Vec<LoggedEvent>),
    /// The stream is complete and all of it was read.
    Finished,
    /// A newer reader took over by resuming: this one ends.
    Superseded,
    /// The upstream closed its own stream and goes on later: this reader ends, and is to come back
    /// after the time that the upstream named.
    HungUp(Option<Duration>),
}

impl EventStream {
    /// Closes the stream towards its present readers, whose clients resume it: after the events that
    /// are on it comes [`ReaderStep::HungUp`]. Nothing happens where no reader is open or the stream has
    /// its last message. Spec: SPEC T-27.
    pub fn hang_up(&self, retry: Option<Duration>) {
        let mut state = self.lock();
        if state.finished {
            return;
        }
        let readers = match state.audience {
            StreamAudience::Nobody => return,
            StreamAudience::Awaited => state.readers + 1,
            StreamAudience::Attached => state.readers,
        };
        state.hung_up = Some(HungUp { readers, retry });
        wake(state);
    }

    /// A new reader of what is unread; older ones are served again when it is gone (SPEC T-29).
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> StreamReader {
        self.attach_with(None)
    }

    /// The same, with the reader's permit, which is released as soon as the reader is dropped or
    /// another takes its place.
    #[must_use]
    pub fn attach_with(self: &Arc<Self>, permit: Option<StreamPermit>) -> StreamReader {
        let mut state = self.lock();
        let position = state.read;
        let number = take_over(&mut state);
        state.permit = permit;
        drop(state);
        StreamReader::new(Arc::clone(self), number, position, Vec::new())
    }

    /// Waits for what another process has logged of the stream after `seq`, before [`resume`](Self::resume).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait; nothing is lost.
    pub async fn recall(&self, seq: u64) {
        if let Some(recalled) = self.store.recall(self.key, seq) {
            let newest = recalled.await;
            let mut state = self.lock();
            state.logged = state.logged.max(newest);
        }
    }

    /// A new reader that starts right after the event `seq`. Spec: SPEC T-25. Older readers are
    /// superseded, most likely dead connections of the same client; not so if the resuming client's own
    /// reader was superseded at `seq`, or two clients would end each other for ever.
    ///
    /// # Errors
    /// [`NotKept`] when events after `seq` were evicted, unless the stream has ended and its reply is
    /// still kept: then the reply alone is replayed (DESIGN §5).
    pub fn resume(self: &Arc<Self>, seq: u64) -> Result<StreamReader, NotKept> {
        let mut state = self.lock();
        self.log_fresh(&mut state);
        let mut taken = Vec::new();
        let mut position = seq;
        match self.replay(&state, seq, usize::MAX) {
            ReplayResult::Events(_) => {}
            ReplayResult::Evicted(events) => {
                let reply = events.into_iter().find(|event| event.last);
                let reply = reply.ok_or(NotKept)?;
                position = reply.seq;
                taken.push(reply);
            }
            // An empty stream: its reader was given the initial position.
            ReplayResult::Unknown if seq == state.gone && state.logged == seq => {}
            ReplayResult::Unknown => return Err(NotKept),
        }
        let number = take_over(&mut state);
        let replaced = if state.turned_out.comes_back(seq) {
            Vec::new()
        } else {
            supersede(&mut state)
        };
        drop(state);
        // The permits of dead connections are free before the caller asks for its own.
        drop(replaced);
        Ok(StreamReader::new(Arc::clone(self), number, position, taken))
    }

    /// Ends the oldest open reader, whose permit is free at once; `false` when there is none.
    pub fn turn_out_oldest(&self) -> bool {
        let mut state = self.lock();
        let replaced = turn_out_oldest(&mut state);
        drop(state);
        replaced.is_some()
    }
}

impl StreamReader {
    /// The reader `number` of a stream, which has read up to `position`; it hands out `taken`
    /// first.
    fn new(stream: Arc<EventStream>, number: u64, position: u64, taken: Vec<LoggedEvent>) -> Self {
        Self {
            stream,
            number,
            position,
            taken,
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

    /// Gives the reader its permit, which is released as soon as the reader is dropped or another
    /// takes its place.
    pub fn hold(&self, permit: StreamPermit) {
        let mut state = self.stream.lock();
        let place = if state.current == self.number {
            Some(&mut state.permit)
        } else {
            let mut beside = state.beside.iter_mut();
            let this = beside.find(|beside| beside.reader == self.number);
            this.map(|beside| &mut beside.permit)
        };
        // A reader that was ended meanwhile needs none.
        if let Some(place) = place {
            *place = Some(permit);
        }
    }

    /// Goes on reading in spite of [`ReaderStep::HungUp`].
    pub fn stay(&self) {
        self.stream.lock().hung_up = None;
    }

    /// Clears the waker until the next [`poll_next`](Self::poll_next). For a caller that is about to do
    /// work that may put messages on the stream, and polls afterwards anyway.
    pub fn rest(&self) {
        let mut state = self.stream.lock();
        if state.current == self.number {
            state.waker = None;
        }
    }

    /// The next events, once they are durable, or end of the stream; pending while a newer reader is open
    /// (SPEC T-29). Events that the store cannot take now have the position 0.
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ReaderStep> {
        if self.taken.is_empty() {
            match ready!(self.poll_taken(cx)) {
                ReaderStep::Events(events) => self.taken = events,
                end => return Poll::Ready(end),
            }
        }
        let newest = self.taken.last().map_or(0, |event| event.seq);
        let stream = &self.stream;
        let durability = ready!(stream.store.poll_durable(stream.key, newest, cx));
        if durability == Durability::Fenced {
            // Its client comes back, and is led to the owner. That may be this replica again: `taken` stays unread.
            return Poll::Ready(ReaderStep::Finished);
        }
        let mut events = std::mem::take(&mut self.taken);
        if durability == Durability::Unlogged {
            COUNTERS.events_unlogged.add(events.len() as u64);
            for event in &mut events {
                event.seq = 0;
            }
        }
        Poll::Ready(ReaderStep::Events(events))
    }

    /// Takes the next events from the stream; never none.
    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<ReaderStep> {
        let mut state = self.stream.lock();
        if self.number <= state.superseded {
            state.turned_out.note(self.position);
            return Poll::Ready(ReaderStep::Superseded);
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
                ReplayResult::Events(events) => events,
                ReplayResult::Evicted(events) => {
                    self.missed = true;
                    events
                }
                ReplayResult::Unknown => return Poll::Ready(ReaderStep::Finished),
            };
            let newest = events.last().map_or(state.logged, |event| event.seq);
            self.position = newest;
            mark_read(&mut state, newest);
            if !events.is_empty() {
                return Poll::Ready(ReaderStep::Events(events));
            }
        }
        if !state.fresh.is_empty() {
            let events = self.stream.take_fresh(&mut state);
            self.position = state.logged;
            mark_read(&mut state, self.position);
            return Poll::Ready(ReaderStep::Events(events));
        }
        if state.finished {
            return Poll::Ready(ReaderStep::Finished);
        }
        if let Some(hung_up) = state.hung_up
            && self.number <= hung_up.readers
        {
            return Poll::Ready(ReaderStep::HungUp(hung_up.retry));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        let permit = if state.current == self.number {
            // Taken, but not shown before they were durable: the next reader shows them.
            if let Some(first) = self.taken.first() {
                state.read = state.read.min(first.seq.saturating_sub(1));
            }
            let permit = hand_back(&mut state);
            if state.audience == StreamAudience::Nobody {
                self.stream.log_fresh(&mut state);
            }
            permit
        } else {
            let mut beside = state.beside.iter();
            let this = beside.position(|beside| beside.reader == self.number);
            this.and_then(|at| state.beside.remove(at).permit)
        };
        drop(state);
        drop(permit);
    }
}

/// Makes a new reader the one that is served; its number.
fn take_over(state: &mut StreamState) -> u64 {
    let (waker, permit) = (state.waker.take(), state.permit.take());
    if state.audience == StreamAudience::Attached {
        let reader = state.current;
        state.beside.push(StandbyReader {
            reader,
            waker,
            permit,
        });
    }
    state.readers += 1;
    state.current = state.readers;
    state.goes_on = 0;
    state.audience = StreamAudience::Attached;
    state.current
}

/// Ends every reader but the newest; their permits, for the caller to drop without the lock.
fn supersede(state: &mut StreamState) -> Vec<StreamPermit> {
    state.superseded = state.current - 1;
    let older = std::mem::take(&mut state.beside).into_iter();
    let permits = older.filter_map(|older| {
        if let Some(waker) = older.waker {
            waker.wake();
        }
        older.permit
    });
    permits.collect()
}

/// Ends the oldest reader; its permit, for the caller to drop without the lock. `None` when there is
/// no reader with a permit.
fn turn_out_oldest(state: &mut StreamState) -> Option<StreamPermit> {
    // Readers without a permit have been ended already.
    let mut beside = state.beside.iter();
    let oldest = beside.position(|beside| beside.permit.is_some());
    let oldest = oldest.map(|at| state.beside.remove(at));
    let (reader, waker, permit) = match oldest {
        Some(oldest) => (oldest.reader, oldest.waker, oldest.permit),
        None => (state.current, state.waker.take(), state.permit.take()),
    };
    let permit = permit?;
    state.superseded = reader;
    if let Some(waker) = waker {
        waker.wake();
    }
    Some(permit)
}

/// The served reader is gone: the next newest is served, if there is one. The permit of the one that is
/// gone, for the caller to drop without the lock.
fn hand_back(state: &mut StreamState) -> Option<StreamPermit> {
    state.waker = None;
    let next = state.beside.pop();
    let Some(next) = next else {
        state.audience = StreamAudience::Nobody;
        return state.permit.take();
    };
    state.current = next.reader;
    state.goes_on = state.read;
    if let Some(waker) = next.waker {
        waker.wake();
    }
    std::mem::replace(&mut state.permit, next.permit)
}

/// Marks everything up to `seq` as read, and counts the unread notifications left.
fn mark_read(state: &mut StreamState, seq: u64) {
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
