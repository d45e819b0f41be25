//! `MessageSink`: the receiver of an upstream's event stream.

use std::time::Duration;

use crate::budget::ReplyLease;
use crate::protocol::{Message, ProgressNotice};
use crate::upstream::room::GrowingReply;

/// Receiver of a stream's messages, in order. A closure takes messages only.
pub(crate) trait MessageSink: Send {
    /// Takes a message; `Some` is the awaited reply, which ends the reading.
    fn message(&mut self, message: Message) -> Option<Message>;

    /// Whether the reply to our request `id` is awaited.
    fn awaits(&self, _id: u64) -> bool {
        false
    }

    /// Room for a reply while it is read, with nothing taken yet; `None` where it counts in no caller's share.
    fn growing(&self) -> Option<GrowingReply> {
        None
    }

    /// Whether [`message`](Self::message) itself takes room for what has to stay. The room of the stream is given back
    /// before it then, as the same bytes would count twice in one share.
    fn takes_room(&self) -> bool {
        false
    }

    /// Keeps the room of a reply that is read, until its call is answered.
    fn keep(&mut self, _lease: ReplyLease) {}

    /// Takes a progress notification that needs no closer look; `false` leaves it, and it comes
    /// again as a message.
    fn progress(&mut self, _progress: &ProgressNotice<'_>) -> bool {
        false
    }

    /// The upstream closed the stream before the reply and continues it on resumption, after the time
    /// `retry`.
    fn closed(&mut self, _retry: Option<Duration>) {}

    /// Called after each batch of bytes that arrived at once, with or without a message.
    fn taken(&mut self) {}
}

impl<F: FnMut(Message) -> Option<Message> + Send> MessageSink for F {
    fn message(&mut self, message: Message) -> Option<Message> {
        self(message)
    }
}
