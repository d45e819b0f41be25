//! The event log: messages of legacy streams, so that a lost connection can be resumed.
//!
//! One writer (the replica that owns the session) assigns sequence numbers; readers ask for the events
//! after a number. Spec: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".

mod batch;
mod live;
mod memory;
#[cfg(test)]
mod remote;
mod shared;

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::protocol::RequestId;

pub use live::LiveEvents;
pub use memory::{LogBounds, MemoryEvents, RestoredStream};
#[cfg(test)]
pub(crate) use remote::RemoteEvents;
pub use shared::{FetchedLog, RestoredLog, SharedEvents, SharedLogParts};

/// A session inside the log.
pub type SessionKey = [u8; 16];

/// One stream of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The session.
    pub session: SessionKey,
    /// The stream's number in the session; 0 is the GET stream.
    pub stream: u32,
}

/// One logged event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Position in its stream, from 1; 0 if not logged: a client gets the event without an id.
    pub seq: u64,
    /// The JSON-RPC message; empty for a priming event and for the end of a cancelled call.
    pub payload: Bytes,
    /// Whether the event ends the stream.
    pub last: bool,
}

impl LoggedEvent {
    /// An event not logged yet that does not end its stream.
    #[must_use]
    pub fn of(payload: Bytes) -> Self {
        Self {
            seq: 0,
            payload,
            last: false,
        }
    }
}

/// Gives events their positions after `newest`, which moves on: the only place that numbers events.
fn number(events: &mut [LoggedEvent], newest: &mut u64) {
    for event in events {
        *newest += 1;
        event.seq = *newest;
    }
}

/// Whether an event outlives this process as long as its store promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The store has the event: its id may be written to the client. Earlier ones that the store lacks count as evicted.
    Durable,
    /// The store cannot be written to now, or the event was given up before it was written. It is delivered without an id,
    /// as no other process could resume after it.
    Unlogged,
    /// Another process owns the session: the event is not delivered here.
    Fenced,
}

/// Result of a replay request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayResult {
    /// All events after the requested position, oldest first.
    Events(Vec<LoggedEvent>),
    /// Some events after the position were evicted; the remaining ones, oldest first.
    Evicted(Vec<LoggedEvent>),
    /// The log does not know the stream or the position.
    Unknown,
}

/// Keeps events for replay. Bounded in age and size; eviction is counted, oldest first.
///
/// Positions are given and events read without waiting, so that no call waits for a store. Two things may wait
/// for one outside this process: what is written to a client (`poll_durable`) and what is resumed (`recall`).
/// Reasons: `docs/adr/0018`.
pub trait EventStore: Send + Sync + std::fmt::Debug {
    /// Appends to a stream and gives the events their positions. They are kept, and may be evicted,
    /// together. When the `last` event of a stream is evicted, the stream is forgotten.
    fn append(&self, at: StreamKey, events: &mut [LoggedEvent]);

    /// Appends events that the stream's reader already holds: it asks only for later ones, unless its client
    /// resumes.
    fn append_read(&self, at: StreamKey, events: &mut [LoggedEvent]) {
        self.append(at, events);
    }

    /// Notes the calls whose stream this is, for a process that has to end the stream without their replies. Before the
    /// first event of the stream. Such a process makes a single call again where its `request` is given, and is short. A
    /// store in this process needs no such note.
    fn note_calls(&self, _at: StreamKey, _ids: &[RequestId], _request: Option<&Bytes>) {}

    /// Ready once the events of a stream up to `seq` are durable, or cannot be made so in time. Until then they
    /// are not written to a client. A store in this process is always ready.
    fn poll_durable(&self, _at: StreamKey, _seq: u64, _cx: &mut Context<'_>) -> Poll<Durability> {
        Poll::Ready(Durability::Durable)
    }

    /// Fetches events after `seq` that another process has logged, so that `after` finds them, and
    /// returns the newest position of the stream; `None` if this process has every event. Dropping the future
    /// abandons the fetch.
    fn recall(&self, _at: StreamKey, _seq: u64) -> Option<BoxFuture<'_, u64>> {
        None
    }

    /// Replaces the payload of an unread event; `false` if the event was evicted.
    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool;

    /// At most `limit` events after `seq`.
    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> ReplayResult;

    /// Forgets a session.
    fn forget(&self, session: SessionKey);

    /// Drops expired events. Called on a schedule.
    fn sweep(&self);

    /// Events and bytes kept now.
    fn size(&self) -> (usize, usize);
}
