//! Whether a message or a stream may be served now: the rate and the running calls, and the wait for both.
//! Spec: SPEC O-01, T-17, L-07; DESIGN §5.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::busy::{RETRY_AFTER, draining};
use super::hand_over::SessionDrain;
use crate::call::OwnerKey;
use crate::config::Config;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::policy::rate::{RateClaim, RateLimiter};
use crate::session::{
    CallCaps, CallEntry, CallPermit, QueueError, QueueLane, QueuedRequest, RateToll,
    RequestedService, Session, SessionRegistry,
};
use crate::telemetry::metrics::COUNTERS;

/// What a message still has to wait for before it is served; `None` if it may be served now.
pub(super) type MessageDue = Option<OwedAdmission>;

/// What a message has to wait for.
#[derive(Debug)]
pub(super) enum OwedAdmission {
    /// A part of its caller's rate.
    Rate(RateClaim),
    /// One more open exchange for its principal. No request waits for that: it is refused. A message that is no request may
    /// still wait for its part of the rate.
    Exchange(Option<RateClaim>),
}

impl OwedAdmission {
    /// An exchange, beside the part of the rate that is `due`.
    pub(super) fn exchange(due: MessageDue) -> Self {
        Self::Exchange(due.and_then(Self::claim))
    }

    pub(super) fn claim(self) -> Option<RateClaim> {
        match self {
            Self::Rate(claim) => Some(claim),
            Self::Exchange(claim) => claim,
        }
    }
}

impl RateToll for RateClaim {
    fn pay(&self) -> Result<(), Duration> {
        RateClaim::pay(self)
    }
}

/// Admits messages and streams: each takes its part of the allowance, and each call a permit.
#[derive(Debug)]
pub(super) struct AdmissionControl {
    pub(super) rate: Arc<RateLimiter>,
    pub(super) settings: Arc<Config>,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) drain: SessionDrain,
}

impl AdmissionControl {
    /// Takes one message out of the allowance of `owner`, or notes that this is still to be done.
    pub(super) fn due(&self, owner: OwnerKey) -> MessageDue {
        let checked = self.rate.check(owner);
        checked
            .is_err()
            .then(|| OwedAdmission::Rate(self.rate.claim(owner)))
    }

    fn caps(&self) -> CallCaps {
        let limits = &self.settings.limits;
        CallCaps {
            session: limits.calls_per_session,
            principal: limits.calls_per_principal,
        }
    }

    fn request(&self, lane: QueueLane, due: Option<RateClaim>) -> RequestedService {
        RequestedService {
            lane,
            toll: due.map(|claim| Box::new(claim) as _),
            patience: self.settings.limits.call_wait,
        }
    }

    /// Admits a request of a session: a permit for it, or the wait for one.
    ///
    /// # Errors
    /// A [`Fault`] when it cannot even wait.
    pub(super) fn enter(
        &self,
        session: &Arc<Session>,
        method: Option<&str>,
        due: MessageDue,
    ) -> Result<CallEntry, Fault> {
        // It is answered here, and a client that gets no answer gives its session up. Spec: SPEC L-07.
        if method == Some("ping") {
            return Ok(CallEntry::Free);
        }
        let request = self.request(QueueLane::requests(session.key()), claim(due)?);
        CallEntry::of(session, request, self.caps()).map_err(refused)
    }

    /// Admits a call of an implicit session, which may wait for `patience`.
    ///
    /// # Errors
    /// A [`Fault`] when it cannot even wait.
    pub(super) fn enter_implicit_session(
        &self,
        session: &Arc<Session>,
        patience: Duration,
    ) -> Result<CallEntry, Fault> {
        let request = RequestedService {
            lane: QueueLane::requests(session.key()),
            toll: None,
            patience,
        };
        let principal = self.caps().principal;
        let caps = CallCaps {
            session: principal,
            principal,
        };
        CallEntry::of(session, request, caps).map_err(refused)
    }

    /// Waits for the permit of a call, until `over` at the latest.
    ///
    /// # Errors
    /// A [`Fault`] when there was no permit in time, the call was cancelled, or the gateway stops.
    ///
    /// # Cancel safety
    /// A call whose future is dropped has left the line.
    pub(super) async fn seat(
        &self,
        entry: CallEntry,
        over: &CancellationToken,
    ) -> Result<Option<CallPermit>, Fault> {
        match entry {
            CallEntry::Free => Ok(None),
            CallEntry::Permitted(permit) => Ok(Some(permit)),
            CallEntry::Waits(waiting) => Box::pin(self.wait(waiting, over)).await,
        }
    }

    async fn wait(
        &self,
        waiting: Box<QueuedRequest>,
        over: &CancellationToken,
    ) -> Result<Option<CallPermit>, Fault> {
        tokio::select! {
            biased;
            () = over.cancelled() => {
                Err(Fault::downstream(FaultKind::Cancelled, "cancelled while it waited"))
            }
            () = self.drain.of(true).refuses() => Err(draining().retry(RetryHint::After(RETRY_AFTER))),
            turn = waiting.turn() => turn.map_err(refused),
        }
    }

    /// Waits for the allowance of a GET stream of a session.
    ///
    /// # Errors
    /// A [`Fault`] when it did not come in time, the session ended, or the gateway stops.
    ///
    /// # Cancel safety
    /// A stream whose future is dropped has left the line.
    pub(super) async fn pay_for_stream(
        &self,
        session: &Session,
        due: MessageDue,
    ) -> Result<(), Fault> {
        let Some(due) = claim(due)? else {
            return Ok(());
        };
        let request = self.request(QueueLane::streams(session.key()), Some(due));
        let waiting = session.call_permits().pay(request, self.caps());
        let waiting = Box::new(waiting.map_err(refused)?);
        self.wait(waiting, session.closed()).await.map(drop)
    }

    /// Waits for the allowance of a request without a session.
    ///
    /// # Errors
    /// A [`Fault`] when it did not come in time.
    ///
    /// # Cancel safety
    /// A request whose future is dropped has left the line.
    pub(super) async fn pay(&self, owner: OwnerKey, due: MessageDue) -> Result<(), Fault> {
        let due = claim(due)?;
        if due.is_none() {
            return Ok(());
        }
        let principal = self.caps().principal;
        let caps = CallCaps {
            session: principal,
            principal,
        };
        let request = self.request(QueueLane::sessionless(), due);
        let waiting = self.sessions.pay(owner, request, caps);
        let waiting = Box::new(waiting.map_err(refused)?);
        self.wait(waiting, &CancellationToken::new())
            .await
            .map(drop)
    }

    /// Waits for the allowance of a notification of a session; `false` when it did not come in time.
    ///
    /// # Cancel safety
    /// A notification whose future is dropped has left the line.
    pub(super) async fn pay_for_notification(&self, session: &Session, due: RateClaim) -> bool {
        let request = self.request(QueueLane::notifications(session.key()), Some(due));
        match session.call_permits().pay(request, self.caps()) {
            Ok(waiting) => self.wait(Box::new(waiting), session.closed()).await.is_ok(),
            Err(_) => false,
        }
    }
}

/// The part of the rate that a request has to wait for, if any.
///
/// # Errors
/// The principal has too many exchanges open: the request is refused without waiting.
pub(super) fn claim(due: MessageDue) -> Result<Option<RateClaim>, Fault> {
    match due {
        None => Ok(None),
        Some(OwedAdmission::Rate(claim)) => Ok(Some(claim)),
        Some(OwedAdmission::Exchange(_)) => Err(crowded()),
    }
}

/// The refusal where a principal has as many exchanges and streams open as it may.
pub(super) fn crowded() -> Fault {
    let text = "too many requests and streams are open";
    Fault::new(FaultKind::CallerBusy, FaultSide::Gateway, text).retry(RetryHint::After(RETRY_AFTER))
}

/// The refusal of a request that was not served in time.
fn refused(unserved: QueueError) -> Fault {
    let (text, after) = match unserved {
        QueueError::LineFull => ("too many calls are running and waiting", RETRY_AFTER),
        QueueError::NoPermit => ("too many calls are running", RETRY_AFTER),
        QueueError::Rate(after) => {
            COUNTERS.rate_limited.add(1);
            ("too many requests, slow down", after)
        }
    };
    Fault::new(FaultKind::CallerBusy, FaultSide::Gateway, text).retry(RetryHint::After(after))
}
