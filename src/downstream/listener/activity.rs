//! What a connection does now, as far as it matters for who may be closed to make room.

use tokio::time::Instant;

use super::head_clock::HeadClock;
use super::streams::Streams;

/// Where it can be seen whether a connection is in use.
#[derive(Debug)]
pub(super) enum Activity {
    /// By the wait for the next head.
    Http1(HeadClock),
    /// By the streams that are open.
    Http2(Streams),
}

/// What is lost when a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing: it waits for a request. Says until when, where that is known.
    Idle(Option<Instant>),
    /// An answer that its peer does not take.
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
