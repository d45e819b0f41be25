//! Detects a dead client of a socket: no frames come from it, and no written bytes are taken.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::observed_stream::StreamObserver;

/// Bytes that every living client reads between two pings. With more on the way a pong may be late,
/// as the ping waits behind them in the buffers of both systems.
const SMALL: u64 = 64 * 1024;

/// Liveness of the client of one socket.
#[derive(Debug)]
pub(super) struct ClientLiveness {
    /// How long the client may be silent.
    silence: Duration,
    /// The same while it has much to read.
    stall: Duration,
    heard: Notify,
    /// Bytes of all messages that were written, or are being written.
    written: AtomicU64,
    /// Bytes that the client has read, according to its pongs.
    read: AtomicU64,
}

impl ClientLiveness {
    pub(super) fn new(silence: Duration, stall: Duration) -> Arc<Self> {
        Arc::new(Self {
            silence,
            stall: stall.max(silence),
            heard: Notify::new(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        })
    }

    /// The client sent a frame, or read bytes that had to wait.
    pub(super) fn heard(&self) {
        self.heard.notify_one();
    }

    /// Adds `bytes` that are about to be written.
    pub(super) fn writing(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The payload of a ping: a pong repeats it once the client has read everything before.
    /// Spec: RFC 6455 §5.5.3.
    pub(super) fn ping(&self) -> Bytes {
        let written = self.written.load(Ordering::Relaxed);
        Bytes::copy_from_slice(&written.to_be_bytes())
    }

    /// Takes the payload of a pong.
    pub(super) fn pong(&self, payload: &[u8]) {
        if let Ok(read) = payload.try_into().map(u64::from_be_bytes)
            && read <= self.written.load(Ordering::Relaxed)
        {
            self.read.fetch_max(read, Ordering::Relaxed);
        }
    }

    /// Whether the client has much to read.
    pub(super) fn is_behind(&self) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        written.saturating_sub(self.read.load(Ordering::Relaxed)) > SMALL
    }

    fn patience(&self) -> Duration {
        if self.is_behind() {
            self.stall
        } else {
            self.silence
        }
    }

    /// Resolves once the client was silent for too long.
    ///
    /// # Cancel safety
    /// The silence is counted from the call.
    pub(super) async fn lost(&self) {
        let mut last = Instant::now();
        loop {
            tokio::select! {
                () = self.heard.notified() => last = Instant::now(),
                () = tokio::time::sleep_until(last + self.patience()) => {
                    // A large write may have begun meanwhile.
                    if last.elapsed() >= self.patience() {
                        return;
                    }
                }
            }
        }
    }
}

/// Reports the client of a stream as alive when bytes that had to wait are written.
#[derive(Debug)]
pub(super) struct WrittenBytes {
    liveness: Arc<ClientLiveness>,
    /// Whether the last write found no room.
    waits: bool,
}

impl WrittenBytes {
    pub(super) fn of(liveness: Arc<ClientLiveness>) -> Self {
        Self {
            liveness,
            waits: false,
        }
    }

    fn note<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &outcome {
            Poll::Pending => self.waits = true,
            Poll::Ready(Ok(_)) if std::mem::take(&mut self.waits) => self.liveness.heard(),
            Poll::Ready(_) => {}
        }
        outcome
    }
}

impl StreamObserver for WrittenBytes {
    fn on_write(
        &mut self,
        _cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.note(outcome)
    }

    fn on_flush(
        &mut self,
        _cx: &mut Context<'_>,
        outcome: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.note(outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::runtime::observed_stream::ObservedStream;

    const SILENCE: Duration = Duration::from_secs(45);
    const STALL: Duration = Duration::from_mins(10);

    async fn lost_after(liveness: &ClientLiveness) -> Duration {
        let since = Instant::now();
        liveness.lost().await;
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_client_is_lost_after_its_patience() {
        let liveness = ClientLiveness::new(SILENCE, STALL);
        assert!(lost_after(&liveness).await < SILENCE * 2);
        liveness.writing(1000);
        assert!(lost_after(&liveness).await < SILENCE * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn client_with_much_to_read_has_longer() {
        let liveness = ClientLiveness::new(SILENCE, STALL);
        let wait = lost_after(&liveness);
        let write = async {
            tokio::time::sleep(SILENCE / 2).await;
            liveness.writing(1 << 20);
        };
        let (waited, ()) = tokio::join!(wait, write);
        assert!((STALL..STALL * 2).contains(&waited), "{waited:?}");
        // The client has read every byte.
        liveness.pong(&liveness.ping());
        assert!(lost_after(&liveness).await < SILENCE * 2);
    }

    #[test]
    fn pong_that_was_not_asked_for_is_ignored() {
        let liveness = ClientLiveness::new(SILENCE, STALL);
        liveness.writing(1 << 20);
        for payload in [&b""[..], b"12345678", &u64::MAX.to_be_bytes()] {
            liveness.pong(payload);
            assert!(liveness.is_behind());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_takes_bytes_slowly_is_heard() {
        let liveness = ClientLiveness::new(SILENCE, STALL);
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut moving = ObservedStream::new(ours, WrittenBytes::of(Arc::clone(&liveness)));
        liveness.writing(1 << 20);
        let write = async { moving.write_all(&[0; 10 * 1024]).await.unwrap() };
        let read = async {
            let mut some = [0; 1024];
            for _ in 0..10 {
                tokio::time::sleep(STALL / 2).await;
                theirs.read_exact(&mut some).await.unwrap();
            }
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(write, read) } => {}
            () = liveness.lost() => panic!("it reads"),
        }
    }
}
