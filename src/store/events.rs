//! The event log: what a legacy stream carried, so that a lost connection can be resumed.
//!
//! One writer (the replica that owns the session) assigns sequence numbers; readers ask for what
//! came after one. Spec: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".

mod batch;
mod live;
mod memory;

use bytes::Bytes;

pub use live::LiveEvents;
pub use memory::{Bounds, MemoryEvents};

/// A session inside the log.
pub type SessionKey = [u8; 16];

/// One stream of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The session.
    pub session: SessionKey,
    /// Its stream; 0 is the one that GET opens.
    pub stream: u32,
}

/// One logged event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Position in its stream, from 1.
    pub seq: u64,
    /// The JSON-RPC message; empty for a priming event and for the end of a cancelled call.
    pub payload: Bytes,
    /// Whether it ends the stream.
    pub last: bool,
}

impl Event {
    /// One that is not logged yet and does not end its stream.
    #[must_use]
    pub fn of(payload: Bytes) -> Self {
        Self {
            seq: 0,
            payload,
            last: false,
        }
    }
}

/// What can be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// Everything after the asked position that there is, oldest first.
    Events(Vec<Event>),
    /// Something in between is no longer kept; what remains, oldest first.
    Evicted(Vec<Event>),
    /// The log does not know the stream or the position.
    Unknown,
}

/// Keeps events for replay. Bounded in age and size; eviction is counted, oldest first.
pub trait EventStore: Send + Sync + std::fmt::Debug {
    /// Appends to a stream and gives the events their positions. They are kept, and may be evicted,
    /// together. When the `last` event of a stream is evicted, the stream is forgotten.
    fn append(&self, at: StreamKey, events: &mut [Event]);

    /// The same with events that the stream's reader has in hand: it asks for what comes after them
    /// only, unless it comes back.
    fn append_read(&self, at: StreamKey, events: &mut [Event]) {
        self.append(at, events);
    }

    /// Replaces the payload of an event that nobody has read yet; `false` when it is gone.
    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool;

    /// At most `limit` events after `seq`.
    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> Replay;

    /// Forgets a session.
    fn forget(&self, session: SessionKey);

    /// Drops what is over age. Called on a schedule.
    fn sweep(&self);

    /// Events and bytes kept now.
    fn size(&self) -> (usize, usize);
}
