//! Reads the frames of a socket within the byte budget and the time for one message.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tokio_tungstenite::tungstenite::error::Error;
use tokio_tungstenite::tungstenite::protocol::Message;

use super::room::BodyMemory;
use crate::budget::{BudgetExhausted, BudgetHolder, ByteBudget, EXEMPT_BYTES};
use crate::runtime::read_meter::ReadMeter;

/// Bytes around the payload of a control frame of a client: head and mask. Spec: RFC 6455 §5.2.
const CONTROL_HEAD: usize = 6;
/// First step in which room for a message is taken, bytes.
const FIRST_STEP: usize = 64 << 10;

/// The reading side of one socket.
#[derive(Debug)]
pub(super) struct SocketReader<'a> {
    budget: &'a Arc<ByteBudget>,
    holder: BudgetHolder,
    meter: Arc<ReadMeter>,
    /// The longest message, and how long one may take from its first bytes on.
    limit: usize,
    patience: Duration,
    room: BodyMemory<'a>,
    /// Why the message is in the reserve.
    over: Option<BudgetExhausted>,
    /// Deadline of the current message; `None` between messages.
    until: Option<Pin<Box<Sleep>>>,
    /// Budget room of the socket's read buffer, beside the message.
    buffer: BodyMemory<'a>,
    /// Set when the budget has no room for the read buffer.
    full: Option<BudgetExhausted>,
    /// The last large message. While it lives, the next read takes a buffer of its own and not the large one
    /// again, which the socket would then keep.
    last: Bytes,
}

/// What came.
pub(super) enum IncomingFrame {
    /// A frame, an error, or the end.
    Frame(Option<Result<Message, Error>>),
    /// The message took too long.
    Slow,
    /// There was no room for the message in time.
    NoRoom(BudgetExhausted),
}

impl<'a> SocketReader<'a> {
    /// For messages of at most `limit` bytes, each within `patience`; `meter` counts what the socket reads.
    pub(super) fn new(
        budget: &'a Arc<ByteBudget>,
        holder: BudgetHolder,
        meter: Arc<ReadMeter>,
        (limit, patience): (usize, Duration),
    ) -> Self {
        meter.restart(EXEMPT_BYTES);
        Self {
            budget,
            holder,
            meter,
            limit,
            patience,
            room: BodyMemory::share(budget, holder),
            over: None,
            buffer: BodyMemory::share(budget, holder),
            full: None,
            until: None,
            last: Bytes::new(),
        }
    }

    /// Waits for the next frame.
    ///
    /// # Cancel safety
    /// Nothing is lost, but a message that waits for the reserve has left the line.
    pub(super) async fn next<S>(&mut self, stream: &mut S) -> IncomingFrame
    where
        S: Stream<Item = Result<Message, Error>> + Unpin,
    {
        if let Some(exhausted) = self.full {
            return IncomingFrame::NoRoom(exhausted);
        }
        loop {
            match poll_fn(|cx| self.poll(stream, cx)).await {
                Some(IncomingFrame::Frame(frame)) => {
                    if let Some(Ok(Message::Ping(payload) | Message::Pong(payload))) = &frame {
                        self.meter.without(CONTROL_HEAD + payload.len());
                        self.note_begun();
                    }
                    return IncomingFrame::Frame(frame);
                }
                Some(other) => return other,
                None => {
                    if let Err(exhausted) = self.make_room().await {
                        return IncomingFrame::NoRoom(exhausted);
                    }
                }
            }
        }
    }

    /// `None` where room has to be made first.
    fn poll<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<Option<IncomingFrame>>
    where
        S: Stream<Item = Result<Message, Error>> + Unpin,
    {
        let polled = stream.poll_next_unpin(cx);
        self.last = Bytes::new();
        if let Poll::Ready(frame) = polled {
            return Poll::Ready(Some(IncomingFrame::Frame(frame)));
        }
        if self.meter.was_held_back() {
            return Poll::Ready(None);
        }
        self.note_begun();
        match &mut self.until {
            Some(until) => until.as_mut().poll(cx).map(|()| Some(IncomingFrame::Slow)),
            None => Poll::Pending,
        }
    }

    /// Begins the time of a message with its first bytes, and ends it where there are none.
    fn note_begun(&mut self) {
        if self.meter.read() == 0 {
            self.until = None;
        } else if self.until.is_none() {
            self.until = Some(Box::pin(sleep_until(Instant::now() + self.patience)));
        }
    }

    /// Takes room for more of the message: out of the share, else in the reserve.
    async fn make_room(&mut self) -> Result<(), BudgetExhausted> {
        self.note_begun();
        let doubled = self.meter.allowed().saturating_mul(2);
        let len = doubled.max(FIRST_STEP).min(self.limit);
        let Err(exhausted) = self.room.grow_to(len) else {
            // The whole message has room then; further bytes are heads of frames.
            let is_all = len >= self.limit;
            self.meter.allow(if is_all { usize::MAX } else { len });
            return Ok(());
        };
        let until = self.until.as_ref().map(|until| until.deadline());
        let until = until.unwrap_or_else(|| Instant::now() + self.patience);
        let permit = timeout_at(until, self.budget.reserve(self.holder)).await;
        self.room = BodyMemory::Reserve(permit.map_err(|_| exhausted)?);
        self.over = Some(exhausted);
        self.meter.allow(usize::MAX);
        Ok(())
    }

    /// Extends the deadline of the message by the time in which reading was paused.
    pub(super) fn paused(&mut self, since: Instant) {
        if let Some(until) = &mut self.until {
            let later = until.deadline() + since.elapsed();
            until.as_mut().reset(later);
        }
    }

    /// Takes a whole message: it holds its room from now on. Also why its requests are to be refused, where
    /// it is in the reserve.
    pub(super) fn whole(&mut self, message: Bytes) -> (Bytes, Option<BudgetExhausted>) {
        self.meter.restart(EXEMPT_BYTES);
        self.until = None;
        let room = std::mem::replace(&mut self.room, BodyMemory::share(self.budget, self.holder));
        if message.len() <= EXEMPT_BYTES {
            return (message, self.over.take());
        }
        if message.is_unique() {
            self.keep(message.len());
        }
        let message = room.hold(message);
        self.last = message.clone();
        (message, self.over.take())
    }

    /// A message in fragments was copied out of the buffer of the socket, which stays as large as a fragment:
    /// the socket takes that out of its caller's share until it ends, and ends where there is no room.
    fn keep(&mut self, len: usize) {
        // A message weighs twice its size, and the buffer once.
        self.full = self.buffer.grow_to(len / 2).err().or(self.full);
    }
}
