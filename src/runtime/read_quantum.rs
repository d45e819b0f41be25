//! Bounds how much one task reads before the other tasks of its worker have their turn.
//!
//! A socket whose peer writes as fast as it is read is always ready: without a bound, one poll reads a message of
//! megabytes to its end, and every other call of the worker waits for that.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

/// Bytes that one task reads per turn; the read that exceeds the quantum ends the turn. At 1 GB/s this is a tenth of a
/// millisecond.
pub const QUANTUM: usize = 64 << 10;

/// Bytes that one reader has read since its last yield.
#[derive(Debug, Default)]
pub struct ReadQuantum(u32);

impl ReadQuantum {
    /// Whether the reader may go on. When the quantum is used up, the task yields and is woken behind all tasks that
    /// are ready, sockets included.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if (self.0 as usize) < QUANTUM {
            return Poll::Ready(());
        }
        self.0 = 0;
        // Its first poll leaves the wake-up with the runtime.
        pin!(tokio::task::yield_now()).poll(cx)
    }

    /// Counts `bytes` that were read.
    pub fn add(&mut self, bytes: usize) {
        self.0 = self
            .0
            .saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn reader_yields_to_the_others_when_its_quantum_is_used_up() {
        let (tell, mut told) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "another task of this test")]
        let other = tokio::spawn(async move { tell.send(()) });
        let mut quantum = ReadQuantum::default();
        quantum.add(QUANTUM - 1);
        poll_fn(|cx| quantum.poll_ready(cx)).await;
        assert!(told.try_recv().is_err(), "nothing was yielded yet");
        quantum.add(1);
        poll_fn(|cx| quantum.poll_ready(cx)).await;
        assert_eq!(told.try_recv(), Ok(()));
        other.await.unwrap().unwrap();
    }
}
