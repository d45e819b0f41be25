//! Counts bytes read of a socket message that is not whole yet: tungstenite assembles the frames inside, where the
//! count is not visible.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use super::observed_stream::{ObservedStream, StreamObserver};

/// Bytes that one socket has read since its last whole message.
#[derive(Debug)]
pub struct ReadMeter {
    /// Bytes read, frame heads included.
    read: AtomicUsize,
    /// How many may be read before room is made for more.
    allowed: AtomicUsize,
    /// Whether a read was held back for that.
    is_held_back: AtomicBool,
}

/// A stream whose reads are counted, and held back at a bound.
pub type MeteredStream<S> = ObservedStream<S, MeteredReads>;

/// Counts reads with a [`ReadMeter`].
#[derive(Debug)]
pub struct MeteredReads(Arc<ReadMeter>);

impl ReadMeter {
    /// Counts from zero, and lets `allowed` bytes be read.
    #[must_use]
    pub fn new(allowed: usize) -> Arc<Self> {
        Arc::new(Self {
            read: AtomicUsize::new(0),
            allowed: AtomicUsize::new(allowed),
            is_held_back: AtomicBool::new(false),
        })
    }

    /// Bytes of the message that is not whole.
    #[must_use]
    pub fn read(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    /// How many bytes may be read before room is made for more.
    #[must_use]
    pub fn allowed(&self) -> usize {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Lets so many bytes be read.
    pub fn allow(&self, bytes: usize) {
        self.allowed.store(bytes, Ordering::Relaxed);
    }

    /// Whether a read was held back since this was last asked.
    #[must_use]
    pub fn was_held_back(&self) -> bool {
        self.is_held_back.swap(false, Ordering::Relaxed)
    }

    /// A frame of so many bytes is no part of the message.
    pub fn without(&self, bytes: usize) {
        let read = self.read().saturating_sub(bytes);
        self.read.store(read, Ordering::Relaxed);
    }

    /// Restarts the count after a whole message. Bytes of the next message already read are less than a read buffer.
    pub fn restart(&self, allowed: usize) {
        self.read.store(0, Ordering::Relaxed);
        self.allow(allowed);
    }
}

impl MeteredReads {
    /// Reads are counted by `meter`.
    #[must_use]
    pub fn by(meter: Arc<ReadMeter>) -> Self {
        Self(meter)
    }

    /// Stops holding back: further bytes are discarded, not kept.
    pub fn release(&self) {
        self.0.allow(usize::MAX);
    }
}

impl StreamObserver for MeteredReads {
    /// Registers no waker while holding back: the polling task checks [`ReadMeter::was_held_back`], and polls again
    /// once the budget has room.
    fn poll_read_ready(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        if self.0.read() < self.0.allowed() {
            return Poll::Ready(());
        }
        self.0.is_held_back.store(true, Ordering::Relaxed);
        Poll::Pending
    }

    fn on_read(
        &mut self,
        _cx: &mut Context<'_>,
        bytes: usize,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.0.read.fetch_add(bytes, Ordering::Relaxed);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn reads_are_held_back_at_the_bound() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let meter = ReadMeter::new(100);
        let mut metered = MeteredStream::new(ours, MeteredReads::by(Arc::clone(&meter)));
        theirs.write_all(&[0; 300]).await.unwrap();
        let mut some = [0; 60];
        metered.read_exact(&mut some).await.unwrap();
        metered.read_exact(&mut some).await.unwrap();
        assert_eq!(meter.read(), 120);
        let held_back = futures_util::FutureExt::now_or_never(metered.read(&mut some));
        assert!(held_back.is_none());
        assert!(meter.was_held_back() && !meter.was_held_back());
        meter.allow(500);
        metered.read_exact(&mut some).await.unwrap();
        meter.without(30);
        assert_eq!(meter.read(), 150);
        meter.restart(100);
        metered.read_exact(&mut some).await.unwrap();
        assert_eq!(meter.read(), 60);
    }
}
