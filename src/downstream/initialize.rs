//! `initialize`: how a legacy client gets its session, over any transport. Spec: SPEC L-01.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::access_log::AccessRecord;
use super::busy::{draining, fenced};
use super::call_telemetry::{log_fault, note_request, note_session, refused};
use super::forwarding::RequestForwarder;
use super::{McpService, reply};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::Message;
use crate::relay::RelayFailure;
use crate::session::{DeliveryMode, Session};
use crate::telemetry::names::error_type;
use crate::telemetry::trace::{self, CallSpan, SpanOutcome, TRACEPARENT, TRACESTATE, TraceContext};

/// Opens a session as an `initialize` request asks, and gives the response to it.
pub(super) async fn open_session(
    service: &McpService,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    headers: &HeaderMap,
    message: &Message,
    record: &AccessRecord,
    delivery: DeliveryMode,
) -> Result<(Arc<Session>, Bytes), Fault> {
    // A session opened before the drain is handed over like all sessions.
    let outlives = matches!(delivery, DeliveryMode::Streams);
    if service.tasks.draining().is_cancelled() && !service.drain.of(outlives).hands_over() {
        return Err(draining());
    }
    // Its record could not be written, and no other replica would know the session.
    if service
        .forwarder
        .as_ref()
        .is_some_and(RequestForwarder::is_fenced)
    {
        return Err(fenced());
    }
    let id = message.id().unwrap_or("null").to_owned();
    let parent =
        TraceContext::incoming(headers, message.meta(TRACEPARENT), message.meta(TRACESTATE));
    let mut span = CallSpan::server(&parent, "initialize", &endpoint.name);
    record.trace(span.context().trace_id());
    let opener = &service.relay.opener;
    let answer = opener.initialize(principal, Arc::clone(endpoint), message, delivery);
    // Token requests are spans below it.
    let parent = Some(span.context().clone());
    let answer = trace::below(parent, Box::pin(answer)).await;
    if let Ok((session, _)) = &answer {
        note_request(&mut span, message, session.revision);
        note_session(&mut span, session);
    }
    span.finish(match &answer {
        Ok(_) => SpanOutcome::Ok,
        Err(RelayFailure::Fault(fault)) => refused(fault, reply::legacy_code),
        Err(RelayFailure::Denied(_)) => {
            let code = reply::legacy_code(FaultKind::InvalidRequest);
            SpanOutcome::Refused(error_type::DENIED, code)
        }
    });
    match answer {
        Ok((session, result)) => {
            record.session(session.tag());
            Ok((session, result.into_response(&id)))
        }
        Err(RelayFailure::Fault(fault)) => {
            log_fault(&fault);
            Err(fault)
        }
        Err(RelayFailure::Denied(denial)) => Err(Fault::downstream(
            FaultKind::InvalidRequest,
            denial.public(),
        )),
    }
}
