//! How long a peer may take nothing of what is written to it.
//!
//! A connection whose buffers are full waits for its peer, who may never read: no deadline of a
//! request or an idle connection runs meanwhile, and its place would be taken for good.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::telemetry::metrics::COUNTERS;

/// The present wait of a writer, if there is one.
///
/// The system asks for more only when a third of its buffer, 4 MiB at most, has gone: with a patience
/// of ten minutes, who reads 3 KiB a second is not taken for one who does not read.
#[derive(Debug)]
pub(super) struct Stall {
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Stall {
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
