//! Permits for the running calls of a principal, and the queue of requests that wait for one.
//!
//! A request above the cap on running calls, or above the rate, waits in the queue of its principal. The
//! sessions in a queue take turns; the requests of one session keep their order.

mod principal_queue;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use self::principal_queue::{GrantedService, PrincipalQueue, QueueWaiter, RateAlarm, WantedPermit};
pub use self::principal_queue::{QueueLane, RateToll};
use super::{Session, lock};
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeGuard};

/// How many calls may run. The same number of requests may wait.
#[derive(Debug, Clone, Copy)]
pub struct CallCaps {
    /// Calls of one session.
    pub session: usize,
    /// Calls of one principal.
    pub principal: usize,
}

/// The running calls of one principal, and its waiting requests.
#[derive(Debug, Default)]
pub struct CallPermits {
    running: AtomicUsize,
    waiting: AtomicUsize,
    line: Mutex<PrincipalQueue>,
}

/// The permit of a running call; free again when dropped.
#[derive(Debug)]
#[must_use = "the permit is free again once this is dropped"]
pub struct CallPermit(Arc<Session>);

/// How a call begins.
#[derive(Debug)]
pub enum CallEntry {
    /// It needs no permit.
    Free,
    /// It has its permit.
    Permitted(CallPermit),
    /// It waits for its turn.
    Waits(Box<QueuedRequest>),
}

/// A request in the queue; it leaves the queue when dropped.
#[derive(Debug)]
pub struct QueuedRequest {
    permits: Arc<CallPermits>,
    lane: QueueLane,
    number: u64,
    alarm: Arc<RateAlarm>,
    granted: oneshot::Receiver<GrantedService>,
    deadline: Instant,
    _counted: Option<GaugeGuard>,
}

/// Why a request was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueError {
    /// The queue of the principal is full.
    LineFull,
    /// No permit became free in time.
    NoPermit,
    /// The rate does not allow the request in time; it does after this long.
    Rate(Duration),
}

/// What a request waits for, and for how long.
#[derive(Debug)]
pub struct RequestedService {
    /// The lane of the queue that it waits in.
    pub lane: QueueLane,
    /// The rate, if the request has not been counted against it yet.
    pub toll: Option<Box<dyn RateToll>>,
    /// How long it may wait.
    pub patience: Duration,
}

impl CallPermits {
    /// Whether no call runs and no request waits.
    pub(super) fn are_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0 && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Takes a permit if fewer than `max` are in use.
    pub(super) fn enter(&self, max: usize) -> bool {
        enter(&self.running, max)
    }

    /// Gives a permit back.
    pub(super) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve();
        }
    }

    /// Waits for the rate alone, in a queue of at most as many requests as `caps` allow.
    ///
    /// # Errors
    /// [`QueueError::LineFull`], or [`QueueError::Rate`] if the rate does not allow the request in time.
    pub fn pay(
        self: &Arc<Self>,
        request: RequestedService,
        caps: CallCaps,
    ) -> Result<QueuedRequest, QueueError> {
        self.join(request, caps, None)
    }

    fn join(
        self: &Arc<Self>,
        request: RequestedService,
        caps: CallCaps,
        wanted: Option<WantedPermit>,
    ) -> Result<QueuedRequest, QueueError> {
        let RequestedService {
            lane,
            toll,
            patience,
        } = request;
        let is_first = self.waiting.load(Ordering::SeqCst) == 0;
        let deadline = Instant::now() + patience;
        let (sender, granted) = oneshot::channel();
        let alarm: Arc<RateAlarm> = Arc::default();
        let joined = {
            let mut line = self.lock();
            let waiter = QueueWaiter {
                wanted,
                toll,
                alarm: Arc::clone(&alarm),
                granted: sender,
            };
            let joined = line.join(lane, waiter, caps);
            self.waiting
                .fetch_add(joined.iter().count(), Ordering::SeqCst);
            joined
        };
        let Some(number) = joined else {
            note_refused(lane);
            return Err(QueueError::LineFull);
        };
        self.serve();
        // The rate would allow the request too late: do not wait.
        let late = alarm.due().filter(|due| is_first && *due > deadline);
        if let Some(due) = late
            && self.take_out(lane, number).is_some()
        {
            note_refused(lane);
            let wait = due.saturating_duration_since(Instant::now());
            return Err(QueueError::Rate(wait));
        }
        let counted = lane.is_for_requests().then(|| {
            COUNTERS.calls_waited.add(1);
            GAUGES.calls_waiting.enter()
        });
        Ok(QueuedRequest {
            permits: Arc::clone(self),
            lane,
            number,
            alarm,
            granted,
            deadline,
            _counted: counted,
        })
    }

    /// Takes a request out of the queue, unless it was served.
    fn take_out(&self, lane: QueueLane, number: u64) -> Option<QueueWaiter> {
        let left = self.lock().leave(lane, number)?;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        // The alarm of the rate may have been with this request.
        self.serve();
        Some(left)
    }

    /// Serves the requests that can be served now, one lane after the other.
    fn serve(&self) {
        let served = self.lock().serve();
        self.waiting.fetch_sub(served.count, Ordering::SeqCst);
        // A permit for a request that has left goes to the next one.
        drop(served.unclaimed);
    }

    fn lock(&self) -> MutexGuard<'_, PrincipalQueue> {
        lock(&self.line)
    }
}

impl CallEntry {
    /// A permit for a call of `session`, at once or after a wait.
    ///
    /// # Errors
    /// [`QueueError`] when the request cannot even wait.
    pub fn of(
        session: &Arc<Session>,
        request: RequestedService,
        caps: CallCaps,
    ) -> Result<Self, QueueError> {
        let permits = &session.permits;
        // No request overtakes a waiting one.
        if request.toll.is_none()
            && permits.waiting.load(Ordering::SeqCst) == 0
            && let Some(permit) = CallPermit::take(session, caps)
        {
            return Ok(Self::Permitted(permit));
        }
        let wanted = WantedPermit {
            session: Arc::clone(session),
            caps,
        };
        let waiting = permits.join(request, caps, Some(wanted))?;
        Ok(Self::Waits(Box::new(waiting)))
    }
}

impl CallPermit {
    /// A permit for a call of `session`, if one is free.
    pub(super) fn take(session: &Arc<Session>, caps: CallCaps) -> Option<Self> {
        if !enter(&session.calls_running, caps.session) {
            return None;
        }
        if !session.permits.enter(caps.principal) {
            session.calls_running.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        Some(Self(Arc::clone(session)))
    }

    /// The same for a request that must also `pay` to begin; `None` where it has no permit or cannot pay. For a caller that
    /// holds the lock of the queue: giving an unpaid permit back does not serve the queue again.
    fn take_paid(
        session: &Arc<Session>,
        caps: CallCaps,
        pay: impl FnOnce() -> bool,
    ) -> Option<Self> {
        if !enter(&session.calls_running, caps.session) {
            return None;
        }
        if session.permits.enter(caps.principal) {
            if pay() {
                return Some(Self(Arc::clone(session)));
            }
            session.permits.running.fetch_sub(1, Ordering::SeqCst);
        }
        session.calls_running.fetch_sub(1, Ordering::SeqCst);
        None
    }
}

fn note_refused(lane: QueueLane) {
    if lane.is_for_requests() {
        COUNTERS.calls_refused.add(1);
    }
}

fn enter(running: &AtomicUsize, max: usize) -> bool {
    let more = |n: usize| (n < max).then_some(n + 1);
    running
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
        .is_ok()
}

impl QueuedRequest {
    /// Waits for its turn; returns the permit, if one was wanted.
    ///
    /// # Errors
    /// [`QueueError`] when its time is over.
    ///
    /// # Cancel safety
    /// A request whose future is dropped has left the queue, and its permit is free.
    pub async fn turn(mut self) -> Result<Option<CallPermit>, QueueError> {
        let late = tokio::time::sleep_until(self.deadline);
        let mut late = std::pin::pin!(late);
        loop {
            let due = self.alarm.due().unwrap_or(self.deadline);
            tokio::select! {
                biased;
                granted = &mut self.granted => return granted.map_err(|_| QueueError::NoPermit),
                () = &mut late => return self.give_up(),
                () = self.alarm.changed() => {}
                () = tokio::time::sleep_until(due) => {
                    self.alarm.clear();
                    self.permits.serve();
                }
            }
        }
    }

    fn give_up(&mut self) -> Result<Option<CallPermit>, QueueError> {
        let left = self.leave();
        if let Ok(permit) = self.granted.try_recv() {
            return Ok(permit);
        }
        let served = left.map_or(Err(QueueError::NoPermit), QueueWaiter::serve_last);
        if served.is_err() {
            note_refused(self.lane);
        }
        served
    }

    /// Takes the request out of the queue, unless it was served.
    fn leave(&self) -> Option<QueueWaiter> {
        self.permits.take_out(self.lane, self.number)
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.calls_running.fetch_sub(1, Ordering::SeqCst);
        self.0.permits.leave();
    }
}
