//! The deadline for an HTTP/2 client's connection preface.
//!
//! hyper pings a quiet connection only after the preface: without this deadline, a client that never sends the preface
//! keeps its connection for as long as the socket is open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::runtime::read_quantum::ReadQuantum;

/// Bytes that every HTTP/2 client sends first. Spec: RFC 9113 §3.4
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// A stream that fails when its first bytes are late, and yields after each quantum read.
#[derive(Debug)]
pub(super) struct PrefaceDeadline<S> {
    stream: S,
    /// Bytes of the preface still missing, and the deadline; `None` once the preface has arrived.
    waiting: Option<(usize, Pin<Box<Sleep>>)>,
    quantum: ReadQuantum,
}

impl<S> PrefaceDeadline<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        let until = Box::pin(tokio::time::sleep(patience));
        Self {
            stream,
            waiting: Some((PREFACE_BYTES, until)),
            quantum: ReadQuantum::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefaceDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.quantum.poll_ready(cx));
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        let came = buf.filled().len() - before;
        self.quantum.add(came);
        let Some((missing, until)) = &mut self.waiting else {
            return outcome;
        };
        *missing = missing.saturating_sub(came);
        if *missing == 0 {
            self.waiting = None;
        } else if outcome.is_pending() && until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefaceDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
