//! Messages that the byte budget has no room for. Requests are refused before they begin; messages without an
//! id (answers, cancellations) are read into the reserve and taken. Spec: SPEC T-17.

use axum::body::Body;
use bytes::Bytes;
use http::{Extensions, Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::body::{BodyError, BodyReader, ReadStopped, collect, without_mark};
use super::busy::RETRY_AFTER;
use super::client_notifications::is_never_dropped;
use super::listener::ConnectionPermit;
use super::refused_body::{RefusedBody, too_large};
use super::reply;
use super::room::{BodyMemory, CollectedBody, OutOfMemory};
use crate::budget::{BudgetExhausted, BudgetHolder};
use crate::call::Principal;
use crate::config::AuthMode;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::{Message, MessageKind};
use crate::telemetry::metrics::COUNTERS;

/// Why a body was not read into the reserve.
pub(super) enum ReserveRefusal {
    /// Requests of a live session are refused with the fault, other bodies with the status.
    Refused(Box<RefusedBody>, Fault, StatusCode),
    /// The answer to give instead.
    Answered(Response<Body>),
}

/// The refusal of a request without room in the byte budget; counted.
pub(super) fn over_budget(exhausted: BudgetExhausted) -> Fault {
    exhausted.count_refusal();
    let (kind, text) = match exhausted {
        BudgetExhausted::Share => (
            FaultKind::CallerBusy,
            "your messages under way take too much memory, try again later",
        ),
        BudgetExhausted::Total => (
            FaultKind::GatewayBusy,
            "the messages of all callers take too much memory, try again later",
        ),
    };
    Fault::new(kind, FaultSide::Gateway, text).retry(RetryHint::After(RETRY_AFTER))
}

/// Whether a message in the reserve is dropped: a notification without a waiting caller. Counts the drop. Answers to
/// questions, and what [is never dropped](is_never_dropped), are always processed.
pub(super) fn is_dropped(message: &Message) -> bool {
    let is_dropped = message.kind() == MessageKind::Notification && !is_never_dropped(message);
    if is_dropped {
        COUNTERS.messages_dropped.add(1);
    }
    is_dropped
}

impl BodyReader {
    /// Whose share the messages of a caller are taken out of: the principal's, or the client address's (of
    /// IPv6: its /64's) where no token is asked for and all callers are one principal.
    pub(super) fn holder(&self, principal: &Principal, extensions: &Extensions) -> BudgetHolder {
        let address = match self.settings.auth.mode {
            AuthMode::None => extensions.get().and_then(ConnectionPermit::client),
            AuthMode::OAuth => None,
        };
        address.map_or(principal.owner().into(), |address| {
            BudgetHolder::Address(address.into())
        })
    }

    /// Reads a body that was not read for its size, where the byte budget alone has no room for it and `holder`, the
    /// caller with a live session, may use the reserve. A request in it is still to be refused.
    ///
    /// # Errors
    /// As for [`read_reserved`](Self::read_reserved).
    pub(super) async fn read_otherwise(
        &self,
        holder: Option<BudgetHolder>,
        unread: BodyError,
    ) -> Result<(Bytes, BudgetExhausted), ReserveRefusal> {
        match (unread, holder) {
            (BodyError::Answered(response), _) => Err(ReserveRefusal::Answered(response)),
            (BodyError::Full(OutOfMemory::NoRoom(exhausted), body), Some(holder)) => {
                let read = self.read_reserved(holder, *body, exhausted).await;
                read.map(|bytes| (bytes, exhausted))
            }
            (BodyError::Full(full, body), _) => Err(self.refused(full, body)),
        }
    }

    fn refused(&self, full: OutOfMemory, body: Box<RefusedBody>) -> ReserveRefusal {
        let (fault, status) = match full {
            OutOfMemory::TooLarge => {
                let fault = too_large(self.settings.limits.body);
                (fault, StatusCode::PAYLOAD_TOO_LARGE)
            }
            OutOfMemory::NoRoom(exhausted) => {
                let fault = over_budget(exhausted);
                let status = reply::legacy_status(fault.kind);
                (fault, status)
            }
        };
        ReserveRefusal::Refused(body, fault, status)
    }

    /// Reads a body of a live session into the reserve: requests are refused later, other messages processed. Waits for
    /// the reserve until the deadline of the body: the permit that is awaited is freed by then, as another body of the
    /// same caller holds it, and an answer to a question that is refused ends the session of some clients.
    ///
    /// # Errors
    /// There is no place in the reserve, the body is too large, or the answer to give instead.
    ///
    /// # Cancel safety
    /// Not cancel safe: what was read is lost.
    async fn read_reserved(
        &self,
        holder: BudgetHolder,
        mut body: RefusedBody,
        exhausted: BudgetExhausted,
    ) -> Result<Bytes, ReserveRefusal> {
        let body_timeout = self.settings.server.body_timeout;
        let permit = timeout_at(body.until, self.budget.reserve(holder)).await;
        // The wait is not the client's delay. Without a permit the body is still searched for the ids of its requests.
        body.until = Instant::now() + body_timeout;
        let Ok(permit) = permit else {
            return Err(self.refused(OutOfMemory::NoRoom(exhausted), Box::new(body)));
        };
        let room = BodyMemory::Reserve(permit);
        let full = match CollectedBody::begin(self.settings.limits.body, None, room) {
            Ok(mut collected) => match collect_all(&mut collected, &mut body).await {
                Ok(()) => return Ok(without_mark(collected.finish())),
                Err(ReadStopped::Full(full, piece)) => {
                    body.begun = vec![collected.finish(), piece];
                    full
                }
                Err(ReadStopped::Answered(answer)) => {
                    return Err(ReserveRefusal::Answered(*answer));
                }
            },
            Err(full) => full,
        };
        Err(self.refused(full, Box::new(body)))
    }
}

async fn collect_all(
    collected: &mut CollectedBody<'_>,
    body: &mut RefusedBody,
) -> Result<(), ReadStopped> {
    for piece in std::mem::take(&mut body.begun) {
        if let Err(full) = collected.push(&piece) {
            return Err(ReadStopped::Full(full, piece));
        }
    }
    collect(collected, &mut body.rest, body.until).await
}
