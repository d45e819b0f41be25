//! One stream adapter for all that watch or hold back the bytes of a connection: `ObservedStream` passes reads and
//! writes on, and its `StreamObserver` sees each of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Observer of the reads and writes of one [`ObservedStream`]. A method that is not overridden changes nothing.
pub trait StreamObserver {
    /// Called before each read. `Pending` holds the read back: the observer then has seen to the wake-up.
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Called after each read that was not held back, with the bytes that it brought; returns its outcome.
    fn on_read(
        &mut self,
        _cx: &mut Context<'_>,
        _bytes: usize,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        outcome
    }

    /// Called after each write; returns its outcome.
    fn on_write(
        &mut self,
        _cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        outcome
    }

    /// Called after each flush; returns its outcome.
    fn on_flush(
        &mut self,
        _cx: &mut Context<'_>,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        outcome
    }

    /// Called after each attempt to shut the stream down; returns its outcome.
    fn on_shutdown(
        &mut self,
        _cx: &mut Context<'_>,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        outcome
    }
}

/// A stream whose reads and writes an observer sees.
#[derive(Debug)]
pub struct ObservedStream<S, O> {
    stream: S,
    observer: O,
}

impl<S, O> ObservedStream<S, O> {
    /// Reads from and writes to `stream`.
    pub fn new(stream: S, observer: O) -> Self {
        Self { stream, observer }
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

impl<S: AsyncRead + Unpin, O: StreamObserver + Unpin> AsyncRead for ObservedStream<S, O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.observer.poll_read_ready(cx));
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = buf.filled().len().saturating_sub(before);
        self.observer.on_read(cx, bytes, outcome)
    }
}

impl<S: AsyncWrite + Unpin, O: StreamObserver + Unpin> AsyncWrite for ObservedStream<S, O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.observer.on_write(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.observer.on_flush(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.observer.on_shutdown(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.observer.on_write(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Counts, and holds reads back once it was told to.
    #[derive(Default)]
    struct Counting {
        read: usize,
        written: usize,
        flushed: usize,
        is_shut: bool,
        is_held: bool,
    }

    impl StreamObserver for Counting {
        fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
            if self.is_held {
                return Poll::Pending;
            }
            Poll::Ready(())
        }

        fn on_read(
            &mut self,
            _cx: &mut Context<'_>,
            bytes: usize,
            outcome: Poll<io::Result<()>>,
        ) -> Poll<io::Result<()>> {
            self.read += bytes;
            outcome
        }

        fn on_write(
            &mut self,
            _cx: &mut Context<'_>,
            outcome: Poll<io::Result<usize>>,
        ) -> Poll<io::Result<usize>> {
            if let Poll::Ready(Ok(bytes)) = &outcome {
                self.written += bytes;
            }
            outcome
        }

        fn on_flush(
            &mut self,
            _cx: &mut Context<'_>,
            outcome: Poll<io::Result<()>>,
        ) -> Poll<io::Result<()>> {
            self.flushed += 1;
            outcome
        }

        fn on_shutdown(
            &mut self,
            _cx: &mut Context<'_>,
            _outcome: Poll<io::Result<()>>,
        ) -> Poll<io::Result<()>> {
            self.is_shut = true;
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
    }

    #[tokio::test]
    async fn observer_sees_reads_and_writes_and_has_the_last_word() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut stream = ObservedStream::new(ours, Counting::default());
        theirs.write_all(b"abc").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        stream.write_all(b"four").await.unwrap();
        let bufs = [io::IoSlice::new(b"f"), io::IoSlice::new(b"ive")];
        assert_eq!(stream.write_vectored(&bufs).await.unwrap(), 4);
        stream.flush().await.unwrap();
        let seen = stream.observer();
        assert_eq!((seen.read, seen.written, seen.flushed), (3, 8, 1));
        let shut = stream.shutdown().await.unwrap_err();
        assert_eq!(shut.kind(), io::ErrorKind::TimedOut);
        assert!(stream.observer().is_shut);
    }

    #[tokio::test]
    async fn read_that_is_held_back_takes_nothing() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut stream = ObservedStream::new(ours, Counting::default());
        stream.observer.is_held = true;
        theirs.write_all(b"abc").await.unwrap();
        let read = futures_util::FutureExt::now_or_never(stream.read_u8());
        assert!(read.is_none());
        stream.observer.is_held = false;
        assert_eq!(stream.read_u8().await.unwrap(), b'a');
        assert_eq!(stream.observer().read, 1);
    }
}
