//! Whether a connection is in use, for the choice of connections to evict.

use tokio::time::Instant;

use super::head_clock::HeadClock;
use super::streams::StreamSpawner;

/// The source that tells whether a connection is in use.
#[derive(Debug)]
pub(super) enum ConnectionActivity {
    /// HTTP/1: the wait for the next request head.
    Http1(HeadClock),
    /// HTTP/2: the open streams.
    Http2(StreamSpawner),
}

/// The cost of closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionUse {
    /// No loss: the connection is idle, until this deadline if known.
    Idle(Option<Instant>),
    /// An answer that the peer does not read.
    Unread,
    /// An exchange.
    Busy,
}

impl ConnectionActivity {
    pub(super) fn now(&self) -> ConnectionUse {
        match self {
            Self::Http1(clock) => clock.activity(),
            Self::Http2(streams) if streams.are_none_open() => ConnectionUse::Idle(None),
            Self::Http2(_) => ConnectionUse::Busy,
        }
    }

    /// The connection has been refused for its token, or has brought a good one.
    pub(super) fn refused(&self, refused: bool) {
        match self {
            Self::Http1(clock) => clock.refused(refused),
            Self::Http2(streams) => streams.refused(refused),
        }
    }
}
