//! The modern service: revision 2026-07-28, where every request stands alone. Legacy and modern service share their
//! URLs; the body of a message decides which service handles the message.
//! Spec: SPEC §2; DESIGN §3.

mod answers;
pub(super) mod calls;
mod envelope;
mod exchange;
mod homes;
mod keeper;
pub(super) mod link;
mod listen;
pub(super) mod parking;
mod parsed_request;
mod refusal;
mod request_state;
mod response_queue;
mod retry;
mod round;
mod socket;
mod url_elicitations;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::request::Parts;
use http::{Response, StatusCode};

pub(super) use envelope::{is_modern, names_modern};
pub(super) use socket::{SocketCalls, SocketFrames, on_message, on_socket};

use self::envelope::RequestEnvelope;
use self::parsed_request::{EarlyEnd, ParsedRequest, shared_connection};
use super::access_log::AccessRecord;
use super::admission::MessageDue;
use super::call_telemetry::error_word;
use super::{McpService, reply};
use crate::budget::ReplyShare;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::protocol::{Message, MessageKind};
use crate::relay::modern_notification;
use crate::session::ImplicitHome;
use crate::telemetry::names::error_type;

/// The request for a stream of changes, which has no end of its own.
pub(super) const LISTEN: &str = "subscriptions/listen";

/// POST of one message of the modern era.
pub(super) async fn post(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    (message, due): (Message, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    match message.kind() {
        MessageKind::Request => {}
        // A notification has no id and never waits.
        MessageKind::Notification if due.is_some() => {
            record.outcome(error_type::BUSY);
            return reply::over_the_rate(Duration::ZERO);
        }
        // None is defined for this way, and whose call would one cancel? Spec: SPEC M-22.
        MessageKind::Notification => {
            modern_notification(&message);
            return reply::empty(StatusCode::ACCEPTED);
        }
        MessageKind::Response => {
            record.outcome(error_type::BAD_REQUEST);
            return reply::message_fault(&refusal::not_a_request(), &message);
        }
    }
    let envelope = match envelope::read(&parts.headers, &message) {
        Ok(envelope) => envelope,
        Err(refusal) => {
            record.outcome(error_type::BAD_REQUEST);
            return refusal.response(message.id());
        }
    };
    let Some(forwarder) = &service.forwarder else {
        let asked = (message, envelope);
        let answer = answer(
            service,
            (endpoint, principal),
            parts,
            asked,
            (None, due),
            record,
        );
        return answer.await;
    };
    let reached = homes::ReachedUpstreams {
        service,
        forwarder,
        extensions: &parts.extensions,
        owner: principal.owner(),
        upstreams: service.relay.opener.reached(endpoint, &message),
    };
    let unplaced = homes::UnplacedRequest {
        reached: &reached,
        parts,
        principal: &principal,
        endpoint,
        message: &message,
        envelope: &envelope,
    };
    let place = unplaced.place_for_good(due, record);
    let (home, due, used) = match Box::pin(place).await {
        homes::PlacedRequest::Answered(response) => return response,
        homes::PlacedRequest::Here(home, due, used) => (home, due, used),
    };
    let asked = (message, envelope);
    let answer = answer(
        service,
        (endpoint, principal),
        parts,
        asked,
        (home, due),
        record,
    );
    let response = reached.answered(home, answer.await, record);
    drop(used);
    response
}

/// Answers a request here, in the implicit session `home` where it needs the only one of all replicas.
async fn answer(
    service: &Arc<McpService>,
    (endpoint, principal): (&Arc<Endpoint>, Arc<Principal>),
    parts: &Parts,
    (message, envelope): (Message, RequestEnvelope),
    (home, due): (Option<ImplicitHome>, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    let id = message.id().unwrap_or("null").to_owned();
    let holder = service.bodies.holder(&principal, &parts.extensions);
    let mut asked = ParsedRequest {
        principal,
        endpoint: Arc::clone(endpoint),
        message,
        envelope,
        patience: service.settings.limits.call_wait,
        share: Some(ReplyShare::new(&service.replies, holder)),
        connection: shared_connection(parts),
        home,
        claim: None,
    };
    if due.is_some()
        && let Err(fault) = Box::pin(service.modern.pay(&mut asked, due)).await
    {
        record.outcome(error_word(fault.kind));
        return refusal::fault_response(&fault, Some(&id));
    }
    let claimed = service.sessions.claim_implicit(
        (&asked.principal, &asked.endpoint),
        &asked.envelope.capabilities,
        asked.home.is_some(),
    );
    asked.claim = claimed.await;
    if asked.method() == LISTEN {
        return Box::pin(listen::open(service, asked)).await;
    }
    match service
        .modern
        .begin_exchange(asked, Some(&parts.headers), record)
        .await
    {
        Ok(exchange) => {
            exchange
                .answer(id, service.settings.server.keep_alive)
                .await
        }
        Err(EarlyEnd::Refused(refusal)) => refusal.response(Some(&id)),
        Err(EarlyEnd::Failed(fault)) => refusal::fault_response(&fault, Some(&id)),
    }
}
