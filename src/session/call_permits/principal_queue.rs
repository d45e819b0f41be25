//! The queue of one principal: a lane for each session; the lanes take turns.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::{CallCaps, CallPermit, QueueError};
use crate::lock::lock;
use crate::session::Session;
use crate::store::events::SessionKey;

/// Counts one request against the rate of its principal.
pub trait RateToll: Send + std::fmt::Debug {
    /// Counts the request.
    ///
    /// # Errors
    /// The rate is used up; says after how long to try again.
    fn pay(&self) -> Result<(), Duration>;
}

/// A lane of the queue: the requests of a session, its notifications, or its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLane {
    session: Option<SessionKey>,
    kind: LaneKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneKind {
    Requests,
    Notifications,
    Streams,
}

impl QueueLane {
    /// The requests of a session.
    #[must_use]
    pub fn requests(session: SessionKey) -> Self {
        Self {
            session: Some(session),
            kind: LaneKind::Requests,
        }
    }

    /// The notifications of a session, which wait for no request.
    #[must_use]
    pub fn notifications(session: SessionKey) -> Self {
        Self {
            session: Some(session),
            kind: LaneKind::Notifications,
        }
    }

    /// The GET streams of a session. They wait for no request, since a running one may need the stream.
    #[must_use]
    pub fn streams(session: SessionKey) -> Self {
        Self {
            session: Some(session),
            kind: LaneKind::Streams,
        }
    }

    /// Requests before there is a session, or without one.
    #[must_use]
    pub fn sessionless() -> Self {
        Self {
            session: None,
            kind: LaneKind::Requests,
        }
    }

    pub(super) fn is_for_requests(self) -> bool {
        self.kind == LaneKind::Requests
    }
}

/// When the rate has to be checked again. One waiting request of the queue checks it for all.
#[derive(Debug, Default)]
pub(super) struct RateAlarm {
    due: Mutex<Option<Instant>>,
    changed: Notify,
}

impl RateAlarm {
    pub(super) fn due(&self) -> Option<Instant> {
        *lock(&self.due)
    }

    pub(super) fn clear(&self) {
        *lock(&self.due) = None;
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn set(&self, due: Instant) {
        *lock(&self.due) = Some(due);
        self.changed.notify_one();
    }
}

/// A permit for a call of this session.
#[derive(Debug)]
pub(super) struct WantedPermit {
    pub(super) session: Arc<Session>,
    pub(super) caps: CallCaps,
}

/// The permit of a served request, if it wanted one.
pub(super) type GrantedService = Option<CallPermit>;

/// A waiting request.
#[derive(Debug)]
pub(super) struct QueueWaiter {
    pub(super) wanted: Option<WantedPermit>,
    pub(super) toll: Option<Box<dyn RateToll>>,
    pub(super) alarm: Arc<RateAlarm>,
    pub(super) granted: oneshot::Sender<GrantedService>,
}

impl QueueWaiter {
    /// Takes the permit and counts against the rate, if both are possible now: without a free permit nothing is counted.
    /// `is_used_up`: the rate allows no request.
    fn admit(&self, is_used_up: &mut bool) -> Option<GrantedService> {
        if self.toll.is_some() && *is_used_up {
            return None;
        }
        let mut pay = || {
            if let Some(toll) = &self.toll
                && let Err(wait) = toll.pay()
            {
                *is_used_up = true;
                self.alarm.set(Instant::now() + wait);
                return false;
            }
            true
        };
        match &self.wanted {
            None => pay().then_some(None),
            Some(wanted) => CallPermit::take_paid(&wanted.session, wanted.caps, pay).map(Some),
        }
    }

    /// The same for a request that has left the queue, as its time is over: it may have stood behind others. Without a free
    /// permit it is not counted against the rate.
    pub(super) fn serve_last(self) -> Result<GrantedService, QueueError> {
        let permit = match &self.wanted {
            None => None,
            Some(wanted) => {
                let permit = CallPermit::take(&wanted.session, wanted.caps);
                Some(permit.ok_or(QueueError::NoPermit)?)
            }
        };
        if let Some(toll) = &self.toll {
            toll.pay().map_err(QueueError::Rate)?;
        }
        Ok(permit)
    }
}

/// The line of one principal.
#[derive(Debug, Default)]
pub(super) struct PrincipalQueue {
    /// Never empty ones. The first is the next whose turn it is.
    lanes: VecDeque<(QueueLane, VecDeque<(u64, QueueWaiter)>)>,
    requests: usize,
    notifications: usize,
    next: u64,
}

/// The result of one look at the line.
#[derive(Debug, Default)]
pub(super) struct QueueStep {
    pub(super) count: usize,
    /// Places whose request has gone.
    pub(super) unclaimed: Vec<GrantedService>,
}

impl PrincipalQueue {
    /// Takes one in at the end of its lane and gives its number; nothing when the lane or the line is
    /// full.
    pub(super) fn join(
        &mut self,
        lane: QueueLane,
        waiter: QueueWaiter,
        caps: CallCaps,
    ) -> Option<u64> {
        if *self.count(lane) >= caps.principal {
            return None;
        }
        let number = self.next;
        match self.lanes.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, waiters)) if waiters.len() >= caps.session => return None,
            Some((_, waiters)) => waiters.push_back((number, waiter)),
            None if caps.session == 0 => return None,
            None => {
                let waiters = VecDeque::from([(number, waiter)]);
                self.lanes.push_back((lane, waiters));
            }
        }
        self.next += 1;
        *self.count(lane) += 1;
        Some(number)
    }

    /// Takes one out that still waits.
    pub(super) fn leave(&mut self, lane: QueueLane, number: u64) -> Option<QueueWaiter> {
        let at = self.lanes.iter().position(|(known, _)| *known == lane)?;
        let (_, waiters) = self.lanes.get_mut(at)?;
        // Numbers grow along a lane.
        let place = waiters
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()?;
        let (_, waiter) = waiters.remove(place)?;
        if waiters.is_empty() {
            drop(self.lanes.remove(at));
        }
        *self.count(lane) -= 1;
        Some(waiter)
    }

    /// Serves the heads of the lanes in turns, until none can be served.
    pub(super) fn serve(&mut self) -> QueueStep {
        let mut served = QueueStep::default();
        let mut is_used_up = false;
        let mut passed = 0;
        while passed < self.lanes.len() {
            let Some((lane, mut waiters)) = self.lanes.pop_front() else {
                break;
            };
            let head = waiters.front();
            let granted = head.and_then(|(_, head)| head.admit(&mut is_used_up));
            passed += 1;
            if let Some(permit) = granted
                && let Some((_, waiter)) = waiters.pop_front()
            {
                passed = 0;
                *self.count(lane) -= 1;
                served.count += 1;
                served.unclaimed.extend(waiter.granted.send(permit).err());
            }
            if !waiters.is_empty() {
                self.lanes.push_back((lane, waiters));
            }
        }
        served
    }

    fn count(&mut self, lane: QueueLane) -> &mut usize {
        match lane.kind {
            LaneKind::Requests | LaneKind::Streams => &mut self.requests,
            LaneKind::Notifications => &mut self.notifications,
        }
    }
}
