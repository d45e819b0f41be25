//! The deadline for an HTTP/2 client's connection preface.
//!
//! hyper pings a quiet connection only after the preface: without this deadline, a client that never sends the preface
//! keeps its connection for as long as the socket is open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::runtime::observed_stream::StreamObserver;
use crate::runtime::read_quantum::ReadQuantum;

/// Bytes that every HTTP/2 client sends first. Spec: RFC 9113 §3.4
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Fails a stream when its first bytes are late, and yields after each quantum read.
#[derive(Debug)]
pub(super) struct PrefaceDeadline {
    /// Bytes of the preface still missing, and the deadline; `None` once the preface has arrived.
    waiting: Option<(usize, Pin<Box<Sleep>>)>,
    quantum: ReadQuantum,
}

impl PrefaceDeadline {
    pub(super) fn new(patience: Duration) -> Self {
        let until = Box::pin(tokio::time::sleep(patience));
        Self {
            waiting: Some((PREFACE_BYTES, until)),
            quantum: ReadQuantum::default(),
        }
    }
}

impl StreamObserver for PrefaceDeadline {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.quantum.poll_ready(cx)
    }

    fn on_read(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.quantum.add(bytes);
        let Some((missing, until)) = &mut self.waiting else {
            return outcome;
        };
        *missing = missing.saturating_sub(bytes);
        if *missing == 0 {
            self.waiting = None;
        } else if outcome.is_pending() && until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}
