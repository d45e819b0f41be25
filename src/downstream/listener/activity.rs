//! Whether a connection is in use, for the choice of connections to evict.

use tokio::time::Instant;

use super::head_clock::HeadClock;
use super::streams::Streams;

/// The source that tells whether a connection is in use.
#[derive(Debug)]
pub(super) enum Activity {
    /// HTTP/1: the wait for the next request head.
    Http1(HeadClock),
    /// HTTP/2: the open streams.
    Http2(Streams),
}

/// The cost of closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// No loss: the connection is idle, until this deadline if known.
    Idle(Option<Instant>),
    /// An answer that the peer does not read.
    Unread,
    /// An exchange.
    Busy,
}

impl Activity {
    pub(super) fn now(&self) -> Use {
        match self {
            Self::Http1(clock) => clock.activity(),
            Self::Http2(streams) if streams.are_none_open() => Use::Idle(None),
            Self::Http2(_) => Use::Busy,
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
