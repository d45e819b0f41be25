//! Background work and the two steps of stopping: drain, then stop.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The one place that spawns: every background task is counted and sees both tokens.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    drain: CancellationToken,
    stop: CancellationToken,
}

impl Tasks {
    /// An empty tracker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` in the background until it ends; a drain waits for it.
    pub fn spawn<F>(&self, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
        drop(tokio::spawn(self.tracker.track_future(work)));
    }

    /// Runs `work` in the background; it is dropped at the hard stop and no drain waits for it.
    pub fn spawn_service<F>(&self, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
        drop(tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        }));
    }

    /// Cancelled when new work is no longer taken.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.drain
    }

    /// Cancelled when everything has to end now.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts the drain, waits up to `grace` for the tracked tasks, then stops the rest.
    ///
    /// Returns whether everything ended by itself.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        self.drain.cancel();
        self.tracker.close();
        let clean = tokio::time::timeout(grace, self.tracker.wait())
            .await
            .is_ok();
        self.stop.cancel();
        clean
    }
}
