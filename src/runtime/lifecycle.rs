//! Background work and the two steps of stopping: drain, then stop.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// After the hard stop, how long tasks may take to notice it.
const NOTICE_STOP: Duration = Duration::from_millis(500);
/// From the end of the grace period to the end of the process: for tasks to notice the hard stop, for
/// upstream sessions and for children.
const AFTER_DRAIN: Duration = Duration::from_secs(2);
/// Of [`AFTER_DRAIN`], for what is done between the drain and the hard stop.
const LAST_WORK: Duration = Duration::from_millis(700);
/// After the first signal, how long further ones count as copies of it: GNU `timeout` signals the process and then its
/// group, and a terminal signals the group that a wrapper passes its signal on to.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// The one place that spawns: every background task is counted and sees both tokens.
#[derive(Debug, Clone, Default)]
pub struct TaskSpawner {
    tracker: TaskTracker,
    drain: CancellationToken,
    stop: CancellationToken,
}

impl TaskSpawner {
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

    /// The same on another runtime than the present one.
    pub fn spawn_on<F>(&self, runtime: &Handle, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(runtime.spawn(self.tracker.track_future(work)));
    }

    /// Runs `work` in the background for `limit` at most, also where the returned future is dropped, which resolves
    /// when it is over; a drain waits for it.
    pub fn finish<F>(&self, limit: Duration, work: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let over = CancellationToken::new();
        let running = over.clone().drop_guard();
        self.spawn(async move {
            drop(tokio::time::timeout(limit, work).await);
            drop(running);
        });
        async move { over.cancelled().await }
    }

    /// Runs `work` in the background; it is dropped at the hard stop and no drain waits for it.
    pub fn spawn_service<F>(&self, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.spawn_stopped(work));
    }

    /// Runs `work` as [`spawn_service`](Self::spawn_service) does, and drops it as soon as the handle is dropped.
    pub fn spawn_owned<F>(&self, work: F) -> AbortOnDropHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        AbortOnDropHandle::new(self.spawn_stopped(work))
    }

    fn spawn_stopped<F>(&self, work: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
        tokio::spawn(async move {
            tokio::select! {
                // In this order: `stop` is looked at only where the work waits.
                biased;
                () = work => {}
                () = stop.cancelled() => {}
            }
        })
    }

    /// Work that is none of the tasks here; a drain waits until the hold is dropped.
    pub fn hold(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Waits until all tasks that a drain waits for have ended. To be called once the drain has begun.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn ended(&self) {
        self.tracker.wait().await;
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
    ///
    /// # Cancel safety
    /// When dropped, the drain has begun and the hard stop has not; calling it again goes on.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        let clean = self.drain(grace).await;
        self.stop(clean).await;
        clean
    }

    /// Starts the drain, and waits up to `grace` for the tracked tasks; whether all have ended.
    async fn drain(&self, grace: Duration) -> bool {
        self.drain.cancel();
        self.tracker.close();
        let ended = tokio::time::timeout(grace, self.tracker.wait());
        ended.await.is_ok()
    }

    /// Stops what is left, after a drain that was `clean` or not.
    async fn stop(&self, clean: bool) {
        self.stop.cancel();
        if !clean {
            // Children are killed and sockets closed by the tasks that own them.
            drop(tokio::time::timeout(NOTICE_STOP, self.tracker.wait()).await);
        }
    }
}

/// How a drain went.
#[derive(Debug, Clone, Copy)]
pub struct DrainResult {
    /// Whether everything ended by itself.
    pub clean: bool,
    /// When the process has to be gone.
    pub by: Instant,
    /// Whether a signal asked for it. Else a task has begun the drain, as the process cannot go on.
    pub is_asked: bool,
}

/// What the system tells this process.
#[derive(Debug)]
pub struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ProcessSignals {
    /// Takes over SIGTERM, SIGINT and SIGHUP. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The system refuses to install a handler.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next request to end. A SIGHUP makes a line in the log and nothing else.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => tracing::warn!(
                    signal = "SIGHUP",
                    "the configuration is not read again: restart to use a changed one"
                ),
            }
        }
    }

    /// Waits for a signal that asks for the end at once: one that comes [`SAME_REQUEST`] after the `first` or later, or any
    /// one where a task has begun the drain.
    ///
    /// # Cancel safety
    /// No signal is lost.
    async fn next_after(&mut self, first: Option<Instant>) -> &'static str {
        loop {
            let name = self.next().await;
            if first.is_none_or(|first| first.elapsed() >= SAME_REQUEST) {
                return name;
            }
            tracing::info!(
                signal = name,
                "signal repeated within a second, the drain goes on; a later one ends it"
            );
        }
    }

    /// Does `work`, which is part of the start; `None` where a request to end comes first.
    ///
    /// # Cancel safety
    /// As that of `work`, which is dropped at a signal.
    pub async fn before<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            name = self.next() => {
                tracing::info!(signal = name, "stopped before the start was complete");
                None
            }
        }
    }

    /// Waits for the first signal, or until a task has begun the drain, then drains; another signal cuts the grace period
    /// short, unless it comes within a second of the first. After the drain, and before what is left is stopped, comes
    /// `last`, which is told the time by which it has to be over: the end of the grace period, or shortly after it.
    ///
    /// # Cancel safety
    /// As that of [`TaskSpawner::shut_down`].
    pub async fn drain(
        &mut self,
        tasks: &TaskSpawner,
        grace: Duration,
        last: impl AsyncFnOnce(Instant),
    ) -> DrainResult {
        let signal = tokio::select! {
            name = self.next() => Some(name),
            () = tasks.draining().cancelled() => None,
        };
        let first = signal.map(|_| Instant::now());
        let mut until = Instant::now() + grace;
        tracing::info!(signal, grace_secs = grace.as_secs_f64(), "draining");
        let clean = tokio::select! {
            clean = tasks.drain(grace) => clean,
            name = self.next_after(first) => {
                tracing::warn!(signal = name, "stopping at once");
                until = Instant::now();
                tasks.drain(Duration::ZERO).await
            }
        };
        let mut by = until + AFTER_DRAIN;
        tokio::select! {
            () = last(until.max(Instant::now() + LAST_WORK)) => {}
            name = self.next_after(first) => {
                tracing::warn!(signal = name, "stopping at once");
                by = Instant::now() + AFTER_DRAIN;
            }
        }
        tasks.stop(clean).await;
        DrainResult {
            clean,
            by,
            is_asked: signal.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn a_task_that_begins_the_drain_ends_the_process_unasked() {
        let tasks = TaskSpawner::new();
        let mut signals = ProcessSignals::install().unwrap();
        tasks.draining().cancel();
        let drained = signals.drain(&tasks, LONG, async |_: Instant| {});
        let drained = tokio::time::timeout(LONG, drained).await;
        let drained = drained.expect("no signal is waited for");
        assert!(drained.clean && !drained.is_asked);
        assert!(tasks.stopping().is_cancelled());
    }

    #[tokio::test]
    async fn a_drain_waits_for_running_work() {
        let tasks = TaskSpawner::new();
        let (finish, finished) = oneshot::channel::<()>();
        tasks.spawn(async move { drop(finished.await) });
        let mut draining = std::pin::pin!(tasks.shut_down(LONG));
        assert!(futures_util::poll!(draining.as_mut()).is_pending());
        assert!(tasks.draining().is_cancelled() && !tasks.stopping().is_cancelled());
        finish.send(()).unwrap();
        assert!(draining.await);
    }

    #[tokio::test]
    async fn a_drain_waits_for_a_hold() {
        let tasks = TaskSpawner::new();
        let hold = tasks.hold();
        let mut draining = std::pin::pin!(tasks.shut_down(LONG));
        assert!(futures_util::poll!(draining.as_mut()).is_pending());
        drop(hold);
        assert!(draining.await);
    }

    #[tokio::test]
    async fn what_is_not_done_within_the_grace_period_is_told_to_stop() {
        let tasks = TaskSpawner::new();
        let stopping = tasks.stopping().clone();
        let (told, hears) = oneshot::channel();
        tasks.spawn(async move {
            stopping.cancelled().await;
            told.send(()).unwrap();
        });
        assert!(!tasks.shut_down(Duration::from_millis(10)).await);
        hears.await.unwrap();
    }

    #[tokio::test]
    async fn services_do_not_hold_a_drain_up() {
        let tasks = TaskSpawner::new();
        tasks.spawn_service(std::future::pending());
        assert!(tasks.shut_down(LONG).await);
    }
}
