//! Closes HTTP/2 connections that stay without a stream, and resets unread streams (`docs/adr/0031`).
//!
//! hyper pings a quiet connection; a client that answers pings and sends no request would keep its permit for good.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Notify;

use super::h2_stall::{StreamWindow, StreamWindows};
use crate::lock::lock;

/// Spawns and counts the streams of one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamSpawner(Arc<StreamCounts>);

#[derive(Debug, Default)]
struct StreamCounts {
    begun: AtomicU64,
    ended: AtomicU64,
    windows: StreamWindows,
    /// Whether the client's token was refused; `refused` is notified when this becomes true.
    is_refused: AtomicBool,
    refused: Notify,
    /// Window of the next stream: set by `window()`, taken when hyper spawns the stream.
    next: Mutex<Option<Arc<StreamWindow>>>,
}

/// A running stream, counted as ended on drop.
struct RunningStream {
    counts: Arc<StreamCounts>,
    number: u64,
}

impl StreamSpawner {
    /// Resolves when no stream was open for `patience`; takes up to twice `patience`. A timer reset by every stream
    /// would cost each request more.
    ///
    /// # Cancel safety
    /// Restarts the wait.
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

    /// Resolves when the client's token was refused and no stream was open for `patience` after the refusal.
    ///
    /// # Cancel safety
    /// Restarts the wait.
    pub(super) async fn idle_after_refusal(&self, patience: Duration) {
        loop {
            if self.0.is_refused.load(Ordering::Relaxed) {
                self.idle(patience).await;
                if self.0.is_refused.load(Ordering::Relaxed) {
                    return;
                }
            }
            self.0.refused.notified().await;
        }
    }

    /// Notes whether the client was refused for its token.
    pub(super) fn refused(&self, is_refused: bool) {
        if self.0.is_refused.swap(is_refused, Ordering::Relaxed) != is_refused && is_refused {
            self.0.refused.notify_one();
        }
    }

    /// Whether no stream is open.
    pub(super) fn are_none_open(&self) -> bool {
        let (begun, ended) = self.counts();
        begun == ended
    }

    /// The window of the request that is served now: hyper calls the service, and then hands over the
    /// stream before it takes the next request. For a CONNECT that succeeds it would hand over another
    /// future later, in between: none does, as its target has no path and every endpoint has one.
    pub(super) fn window(&self) -> Arc<StreamWindow> {
        let window = self.0.windows.new_window();
        *lock(&self.0.next) = Some(Arc::clone(&window));
        window
    }

    /// Resets every stream whose peer reads nothing for `patience`, which may grow.
    ///
    /// # Cancel safety
    /// Restarts the watch: streams seen so far get another `patience`.
    pub(super) async fn watch(&self, patience: impl Fn() -> Duration) -> Infallible {
        self.0.windows.watch(patience).await
    }

    /// Resolves when, for `patience`, no stream was open and no queued byte of earlier streams was sent.
    ///
    /// # Cancel safety
    /// Restarts the wait.
    pub(super) async fn deserted(&self, patience: Duration) {
        loop {
            let sent = self.0.windows.sent();
            self.idle(patience).await;
            if sent == self.0.windows.sent() {
                return;
            }
        }
    }

    fn counts(&self) -> (u64, u64) {
        let StreamCounts { begun, ended, .. } = &*self.0;
        (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed))
    }
}

impl<F> Executor<F> for StreamSpawner
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let open = RunningStream {
            number: self.0.begun.fetch_add(1, Ordering::Relaxed),
            counts: Arc::clone(&self.0),
        };
        let window = lock(&self.0.next).take();
        if let Some(window) = &window {
            self.0.windows.enter(open.number, Arc::clone(window));
        }
        TokioExecutor::new().execute(async move {
            match window {
                // A stream that is dropped unfinished is reset.
                Some(window) => tokio::select! {
                    biased;
                    ended = stream => drop(ended),
                    () = window.given_up() => {}
                },
                None => drop(stream.await),
            }
            drop(open);
        });
    }
}

impl Drop for RunningStream {
    fn drop(&mut self) {
        self.counts.windows.forget(self.number);
        self.counts.ended.fetch_add(1, Ordering::Relaxed);
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
        let streams = StreamSpawner::default();
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
        let streams = StreamSpawner::default();
        let mut idle = std::pin::pin!(streams.idle(PATIENCE));
        for _ in 0..5 {
            let waits = timeout(PATIENCE / 2, idle.as_mut()).await;
            assert!(waits.is_err(), "a stream was there");
            streams.execute(std::future::ready(()));
        }
        idle.await;
    }
}
