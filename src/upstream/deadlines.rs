//! The deadlines of a call: no frame for too long, or too long altogether.
//! Spec: SPEC U-12; DESIGN §6.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::LinkError;
use super::lock;
use crate::budget::ReplyLease;
use crate::runtime::poll_time;

/// When a call last showed life.
#[derive(Debug)]
pub(super) struct CallActivity {
    started: Instant,
    last_ms: AtomicU64,
    questions: AtomicUsize,
    /// Whether its reply waits for room in the byte budget.
    awaits_room: AtomicBool,
}

/// Runs the work before a call is sent, such as opening its upstream, until the call is cancelled and at most for
/// `limit`: a cancelled call must not be sent afterwards.
///
/// # Errors
/// [`LinkError::Cancelled`] and [`LinkError::Timeout`] besides those of `work`, which is dropped then.
pub(super) async fn before_sending<T>(
    cancel: &CancellationToken,
    limit: Duration,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    // Checked first: work that is ready must not run for a cancelled call.
    if cancel.is_cancelled() {
        return Err(LinkError::Cancelled);
    }
    let mut work = pin!(work);
    // Ready at once in nearly all cases, and a timer costs more than that work does.
    if let Poll::Ready(done) = futures_util::poll!(work.as_mut()) {
        return done;
    }
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(LinkError::Cancelled),
        done = tokio::time::timeout(limit, work) => done.unwrap_or(Err(LinkError::Timeout)),
    }
}

/// Stops the idle clock while a question is open.
#[derive(Debug)]
pub(super) struct PausedClock(Arc<CallActivity>);

/// The idle clocks of all calls on a pipe. They stand still while the pipe is not read, also those of calls that begin
/// meanwhile.
#[derive(Debug, Default)]
pub(super) struct PipeClocks(Mutex<Option<Vec<PausedClock>>>);

/// Lets the clocks of a pipe go on when dropped.
#[derive(Debug)]
pub(super) struct StoppedClocks(Arc<PipeClocks>);

impl PipeClocks {
    /// Stops the clocks of the calls that `running` then names, and of those that [`begin`](Self::begin) until the
    /// guard is dropped. One guard at a time.
    pub(super) fn stop<I>(self: &Arc<Self>, running: impl FnOnce() -> I) -> StoppedClocks
    where
        I: IntoIterator<Item = Arc<CallActivity>>,
    {
        // Set before the calls are listed: a call that begins now is found by `begin` or in the list.
        *lock(&self.0) = Some(Vec::new());
        let stopped = StoppedClocks(Arc::clone(self));
        for activity in running() {
            self.begin(&activity);
        }
        stopped
    }

    /// Notes a call that is among the running ones from now on.
    pub(super) fn begin(&self, activity: &Arc<CallActivity>) {
        if let Some(paused) = &mut *lock(&self.0) {
            paused.push(activity.pause());
        }
    }
}

impl Drop for StoppedClocks {
    fn drop(&mut self) {
        let paused = lock(&self.0.0).take();
        drop(paused);
    }
}

impl CallActivity {
    pub(super) fn new() -> Self {
        Self {
            started: poll_time::now(),
            last_ms: AtomicU64::new(0),
            questions: AtomicUsize::new(0),
            awaits_room: AtomicBool::new(false),
        }
    }

    /// When the call began.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// A frame of the call arrived.
    pub(super) fn touch(&self) {
        let age = poll_time::now().saturating_duration_since(self.started);
        let ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// The idle clock stands still until the guard is dropped.
    pub(super) fn pause(self: &Arc<Self>) -> PausedClock {
        self.questions.fetch_add(1, Ordering::Relaxed);
        PausedClock(Arc::clone(self))
    }

    /// Makes room for `len` bytes of the reply in `lease`. The idle clock stands still while that waits.
    ///
    /// # Cancel safety
    /// As that of [`ReplyLease::grow_to`]; [`awaits_room`](Self::awaits_room) then tells of it.
    pub(super) async fn make_room(self: &Arc<Self>, lease: &mut ReplyLease, len: usize) {
        if lease.try_grow_to(len) {
            return;
        }
        let _paused = self.pause();
        self.awaits_room.store(true, Ordering::Relaxed);
        lease.grow_to(len).await;
        self.awaits_room.store(false, Ordering::Relaxed);
    }

    /// Whether the reply waits for room in the byte budget, or did so when its wait was dropped.
    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room.load(Ordering::Relaxed)
    }

    /// Whether a question of the call is open.
    pub(super) fn is_paused(&self) -> bool {
        self.questions.load(Ordering::Relaxed) > 0
    }

    /// Resolves when the call has been silent for `idle`, or has lasted `total`.
    pub(super) async fn expired(&self, idle: Duration, total: Duration) {
        let end = self.started + total;
        loop {
            let last = self.started + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let paused = self.questions.load(Ordering::Relaxed) > 0;
            let now = poll_time::now();
            let due = if paused { now + idle } else { last + idle };
            if now >= end || due <= now {
                return;
            }
            tokio::time::sleep_until(due.min(end)).await;
        }
    }
}

impl Drop for PausedClock {
    fn drop(&mut self) {
        self.0.touch();
        self.0.questions.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_mins(1);
    const TOTAL: Duration = Duration::from_mins(10);

    async fn lasts(activity: Arc<CallActivity>) -> Duration {
        let start = Instant::now();
        activity.expired(IDLE, TOTAL).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_call() {
        assert_eq!(lasts(Arc::new(CallActivity::new())).await, IDLE);
    }

    // SPEC C-03: progress keeps a call alive.
    #[tokio::test(start_paused = true)]
    async fn a_frame_resets_the_idle_clock() {
        let activity = Arc::new(CallActivity::new());
        let other = Arc::clone(&activity);
        let (lasted, ()) = tokio::join!(lasts(activity), async move {
            tokio::time::sleep(Duration::from_secs(50)).await;
            other.touch();
        });
        assert_eq!(lasted, Duration::from_secs(110));
    }

    // Spec: SPEC C-10, U-12.
    #[tokio::test(start_paused = true)]
    async fn what_is_ready_is_not_begun_for_a_cancelled_call_and_nothing_is_waited_for_endlessly() {
        let cancel = CancellationToken::new();
        let ready = before_sending(&cancel, TOTAL, async { Ok(()) }).await;
        assert!(ready.is_ok(), "{ready:?}");
        let never = before_sending::<()>(&cancel, TOTAL, std::future::pending()).await;
        assert!(matches!(never, Err(LinkError::Timeout)), "{never:?}");
        cancel.cancel();
        let ready = before_sending(&cancel, TOTAL, async { Ok(()) }).await;
        assert!(matches!(ready, Err(LinkError::Cancelled)), "{ready:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_question_stops_the_idle_clock_but_not_the_total() {
        let activity = Arc::new(CallActivity::new());
        let _paused = activity.pause();
        assert_eq!(lasts(Arc::clone(&activity)).await, TOTAL);
    }
}
