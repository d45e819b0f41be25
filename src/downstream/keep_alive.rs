//! When a stream of events has been quiet for so long that it needs a sign of life.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Keep-alive clock of a stream: the timer is reset only when it fires, not with every write.
pub(super) struct KeepAlive {
    timer: Pin<Box<Sleep>>,
    every: Duration,
    last_written: Instant,
}

impl KeepAlive {
    /// For a stream that may be quiet for `every`, from now on.
    pub(super) fn new(every: Duration) -> Self {
        Self {
            timer: Box::pin(tokio::time::sleep(every)),
            every,
            last_written: Instant::now(),
        }
    }

    /// Bytes were written: the quiet time starts again.
    pub(super) fn written(&mut self) {
        self.last_written = Instant::now();
    }

    /// Ready once nothing was written for the whole time.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let due = self.last_written + self.every;
            let now = Instant::now();
            if due <= now {
                self.timer.as_mut().reset(now + self.every);
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    async fn quiet(keep_alive: &mut KeepAlive) -> Duration {
        let started = Instant::now();
        std::future::poll_fn(|cx| keep_alive.poll_quiet(cx)).await;
        started.elapsed()
    }

    // SPEC T-15.
    #[tokio::test(start_paused = true)]
    async fn the_quiet_is_counted_from_the_last_write() {
        let mut keep_alive = KeepAlive::new(EVERY);
        tokio::time::advance(EVERY * 2 / 3).await;
        keep_alive.written();
        let rest = quiet(&mut keep_alive).await;
        assert!((EVERY..EVERY + EVERY / 3).contains(&rest), "{rest:?}");
    }

    // SPEC T-15.
    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_is_kept_alive_again_and_again() {
        let mut keep_alive = KeepAlive::new(EVERY);
        for _ in 0..2 {
            let waited = quiet(&mut keep_alive).await;
            assert!((EVERY..EVERY + EVERY / 3).contains(&waited), "{waited:?}");
            keep_alive.written();
        }
    }
}
