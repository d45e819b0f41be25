//! How long an HTTP/2 connection may stay without a stream.
//!
//! hyper asks a quiet connection whether it is alive: one that only ever answers would keep its place
//! for good.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;

/// Runs the streams of one connection, and counts them.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A stream that has begun; it ends when this is dropped.
struct Open(Arc<Counts>);

impl Streams {
    /// Resolves when no stream was open for `patience`, before twice that has passed: a timer that
    /// started anew with every stream would cost each of them.
    ///
    /// # Cancel safety
    /// Begins to wait anew.
    pub(super) async fn idle(&self, patience: Duration) {
        loop {
            let before = self.counts();
            tokio::time::sleep(patience).await;
            let (begun, ended) = before;
            if begun == ended && before == self.counts() {
                return;
            }
        }
    }

    fn counts(&self) -> (u64, u64) {
        let Counts { begun, ended } = &*self.0;
        (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed))
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        let open = Open(Arc::clone(&self.0));
        TokioExecutor::new().execute(async move {
            drop(stream.await);
            drop(open);
        });
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::{Instant, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_its_last_stream_is_long_over() {
        let streams = Streams::default();
        let (end, ended) = oneshot::channel::<()>();
        streams.execute(ended);
        let waits = timeout(10 * PATIENCE, streams.idle(PATIENCE)).await;
        assert!(waits.is_err(), "a stream is open");
        drop(end);
        let begun = Instant::now();
        streams.idle(PATIENCE).await;
        assert!((PATIENCE..=2 * PATIENCE).contains(&begun.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_stream_keeps_a_connection() {
        let streams = Streams::default();
        let mut idle = std::pin::pin!(streams.idle(PATIENCE));
        for _ in 0..5 {
            let waits = timeout(PATIENCE / 2, idle.as_mut()).await;
            assert!(waits.is_err(), "a stream was there");
            streams.execute(std::future::ready(()));
        }
        idle.await;
    }
}
