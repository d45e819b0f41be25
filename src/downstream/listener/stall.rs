//! Closes connections whose peer reads nothing for `stall_timeout`.
//!
//! A connection whose buffers are full waits for its peer, possibly for ever: no request deadline and no idle timeout
//! runs while a write is pending, and the connection would keep its permit for good.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::telemetry::metrics::COUNTERS;

/// The deadline of the pending write, if a write is pending.
///
/// The kernel reports the socket writable only when a third of its buffer, 4 MiB at most, is free: with a patience of
/// ten minutes, a peer that reads 3 KiB a second is not cut off.
#[derive(Debug)]
pub(super) struct WriteStall {
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl WriteStall {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            waiting: None,
        }
    }

    /// Whether a write waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// The outcome of a write, or the end of our patience.
    pub(super) fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let over = || Box::pin(tokio::time::sleep(self.patience));
        let over = self.waiting.get_or_insert_with(over).as_mut().poll(cx);
        over.map(|()| {
            COUNTERS.connections_stalled.add(1);
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}
