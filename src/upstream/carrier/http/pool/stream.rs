//! The socket under a pooled connection, which tells an unread request from one that may have run.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::runtime::read_quantum::ReadQuantum;

/// A request is on its way, and no byte of its answer has come.
const ASKED: u8 = 1;
/// A part of the request was written.
const WROTE: u8 = 1 << 1;
/// Everything that was written has left for the kernel.
const FLUSHED: u8 = 1 << 2;
/// The request was not read.
const UNREAD: u8 = 1 << 3;
/// The next read asks the kernel whether the peer has closed.
const PROBE: u8 = 1 << 4;

/// The state of one exchange, shared by the socket and the pool. One task uses both, so plain loads and
/// stores suffice.
#[derive(Debug, Default)]
pub(super) struct ExchangeState(AtomicU8);

impl ExchangeState {
    /// An exchange begins.
    pub(super) fn begin(&self) {
        self.0.store(ASKED, Ordering::Relaxed);
    }

    /// The exchange has its answer.
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Makes the next read ask the kernel, whatever the reactor has seen.
    pub(super) fn probe(&self) {
        self.set(PROBE);
    }

    /// Whether the failed request was provably not read: sending it again runs it once.
    pub(super) fn is_unread(&self) -> bool {
        self.has(UNREAD)
    }

    fn has(&self, bits: u8) -> bool {
        self.0.load(Ordering::Relaxed) & bits == bits
    }

    fn set(&self, bits: u8) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old | bits, Ordering::Relaxed);
    }

    fn clear(&self, bits: u8) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old & !bits, Ordering::Relaxed);
    }

    /// The connection broke. A request cannot have been read if a part never left. Nothing else proves
    /// that: a close with a reset behind it looks alike before and after the request was read.
    fn broke(&self) {
        if self.has(ASKED) && !self.has(FLUSHED) {
            self.set(UNREAD);
        }
    }

    fn wrote(&self, written: &io::Result<usize>) {
        match written {
            Ok(_) => self.set(WROTE),
            Err(_) => self.broke(),
        }
    }
}

/// A TCP connection, with TLS or without.
#[derive(Debug)]
pub(super) struct PooledStream {
    socket: PlainOrTls,
    exchange: Arc<ExchangeState>,
    quantum: ReadQuantum,
}

/// A socket in the clear, or with TLS.
pub(super) type PlainOrTls = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Whether the peer has closed, or has sent bytes without a request.
pub(super) fn is_over(socket: &PlainOrTls) -> bool {
    let tcp = match socket {
        Either::Left(tcp) => tcp,
        Either::Right(tls) => tls.get_ref().0,
    };
    let mut byte = [0_u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(
        recv(tcp, &mut byte, flags),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
    )
}

impl PooledStream {
    pub(super) fn new(socket: PlainOrTls, exchange: Arc<ExchangeState>) -> Self {
        Self {
            socket,
            exchange,
            quantum: ReadQuantum::default(),
        }
    }
}

impl AsyncRead for PooledStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.exchange.has(PROBE) {
            this.exchange.clear(PROBE);
            if is_over(&this.socket) {
                return Poll::Ready(Ok(()));
            }
        }
        ready!(this.quantum.poll_ready(cx));
        let (before, room) = (buf.filled().len(), buf.remaining());
        let read = ready!(Pin::new(&mut this.socket).poll_read(cx, buf));
        this.quantum.add(buf.filled().len() - before);
        let closed = read.is_err() || room > 0 && buf.filled().len() == before;
        if closed {
            this.exchange.broke();
        } else {
            this.exchange.clear(ASKED);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for PooledStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.socket).poll_write(cx, buf));
        this.exchange.wrote(&written);
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.socket).poll_write_vectored(cx, bufs));
        this.exchange.wrote(&written);
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = ready!(Pin::new(&mut this.socket).poll_flush(cx));
        match &flushed {
            Ok(()) if this.exchange.has(WROTE) => this.exchange.set(FLUSHED),
            Ok(()) => {}
            Err(_) => this.exchange.broke(),
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use futures_util::FutureExt as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::runtime::read_quantum::QUANTUM;

    #[tokio::test]
    async fn reply_of_megabytes_is_read_in_many_polls() {
        const PIECE: usize = QUANTUM / 4;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (mut peer, _) = listener.accept().unwrap();
        let exchange = Arc::new(ExchangeState::default());
        let mut stream = PooledStream::new(Either::Left(socket.unwrap()), exchange);
        peer.write_all(&vec![b'x'; 2 * QUANTUM]).unwrap();
        let mut piece = [0; PIECE];
        for _ in 0..QUANTUM / PIECE {
            stream.read_exact(&mut piece).await.unwrap();
        }
        assert!(stream.read_exact(&mut piece).now_or_never().is_none());
        stream.read_exact(&mut piece).await.unwrap();
    }
}
