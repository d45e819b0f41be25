//! Calls of sessions, over any transport: begun with their place in the session, run to the reply.
//! Spec: DESIGN §3.3.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::access_log::AccessRecord;
use super::admission::{AdmissionControl, MessageDue};
use super::busy::RETRY_AFTER;
use super::call_telemetry::{ended, log_fault, server_span};
use super::detachable_call::{CallFuture, CallOutcome};
use super::reply;
use crate::auth::Authenticator;
use crate::call::{Call, Principal, Reply};
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::{Message, RequestId};
use crate::relay::{Relay, RelayFailure};
use crate::session::{CallEntry, LegacyClientLink, NoRoom, ResponseStream, Session};
use crate::telemetry::metrics::GAUGES;
use crate::telemetry::request_tag;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE, TraceContext};

/// A call that was begun, and how it comes to its place.
pub(super) struct BegunCall {
    pub(super) call: Call,
    pub(super) link: Arc<LegacyClientLink>,
    pub(super) entry: CallEntry,
}

/// Begins the calls of sessions, and runs them.
#[derive(Debug)]
pub(super) struct LegacyCalls {
    pub(super) admission: Arc<AdmissionControl>,
    pub(super) relay: Arc<Relay>,
    pub(super) auth: Arc<Authenticator>,
}

impl LegacyCalls {
    /// Begins a call on its session, which may have to wait for its place; its messages go to `response_stream`.
    pub(super) fn begin(
        &self,
        session: &Arc<Session>,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        message: Message,
        response_stream: Arc<ResponseStream>,
        due: MessageDue,
    ) -> Result<BegunCall, Fault> {
        let id = message.id().and_then(RequestId::parse).ok_or_else(|| {
            Fault::downstream(FaultKind::InvalidRequest, "the request has no usable id")
        })?;
        let is_alone = !response_stream.is_shared();
        let link = session.begin_call(id, response_stream).map_err(no_room)?;
        if is_alone
            && session.is_handed_over()
            && self.relay.is_retry_safe(&session.endpoint, &message)
        {
            link.keep_request(message.bytes().clone());
        }
        let entry = self.admission.enter(session, message.method(), due);
        let entry = entry.inspect_err(|_| link.end())?;
        let call = Call {
            principal,
            endpoint: Arc::clone(&session.endpoint),
            revision: session.revision,
            trace: TraceContext::incoming(
                headers,
                message.meta(TRACEPARENT),
                message.meta(TRACESTATE),
            ),
            link: Arc::clone(&link) as _,
            cancel: link.cancelled().clone(),
            resumption: None,
            param_headers: None,
            message,
        };
        Ok(BegunCall { call, link, entry })
    }

    /// The whole way of a call, as a future of its own.
    pub(super) fn run(
        self: &Arc<Self>,
        mut call: Call,
        entry: CallEntry,
        link: &Arc<LegacyClientLink>,
        record: &AccessRecord,
    ) -> CallFuture {
        let (calls, link) = (Arc::clone(self), Arc::clone(link));
        let session = Arc::clone(link.session());
        let is_tool_call = call.message.method() == Some("tools/call");
        let span = server_span(&call, Some(&session));
        let record = record.clone();
        record.trace(span.context().trace_id());
        call.trace = span.context().clone();
        request_tag::keep(Box::pin(async move {
            let answer = match calls.admission.seat(entry, &call.cancel).await {
                Ok(place) => {
                    let counted = GAUGES.calls_running.enter();
                    let answer = calls.relay.handle(&call, &session).await;
                    drop((counted, place));
                    answer
                }
                Err(fault) => Err(RelayFailure::Fault(fault)),
            };
            let answer = match answer {
                Err(RelayFailure::Fault(fault))
                    if fault.kind == FaultKind::Cancelled && link.is_cut_off() =>
                {
                    record.stopped();
                    Err(RelayFailure::Fault(Fault::cut_off()))
                }
                Err(RelayFailure::Fault(fault)) => {
                    let is_cancelled = call.cancel.is_cancelled();
                    Err(RelayFailure::Fault(wanted(fault, is_cancelled)))
                }
                answer => answer,
            };
            let outcome = ended(&answer, is_tool_call, reply::legacy_code);
            if let Some(word) = outcome.error_type() {
                record.outcome(word);
            }
            if let Some(upstream) = link.upstream() {
                record.upstream(upstream);
            }
            drop((record, link));
            span.finish(outcome);
            calls.outcome(&call, answer)
        }))
    }

    fn outcome(&self, call: &Call, answer: Result<Reply, RelayFailure>) -> CallOutcome {
        let id = call.message.id().unwrap_or("null");
        match answer {
            Ok(reply) => {
                let mut body = reply.into_response(id);
                if let Some(room) = call.link.reply_room() {
                    body = room.kept.hold(body);
                }
                CallOutcome::Response(StatusCode::OK, body)
            }
            Err(RelayFailure::Denied(denial)) => {
                let fault = Fault::downstream(FaultKind::InvalidParams, denial.public());
                let body = Reply::Error(reply::error_object(&fault)).into_response(id);
                if denial.missing_scopes.is_empty() {
                    return CallOutcome::Response(StatusCode::OK, body);
                }
                let denied = self.auth.insufficient_scope(
                    &call.endpoint,
                    &denial.missing_scopes,
                    &call.principal,
                );
                CallOutcome::Denied(denied, body)
            }
            Err(RelayFailure::Fault(fault)) if fault.kind == FaultKind::Cancelled => {
                CallOutcome::Cancelled
            }
            Err(RelayFailure::Fault(fault)) => {
                log_fault(&fault);
                let fault = reply::overload(fault);
                let is_tool = call.message.method() == Some("tools/call");
                let reply = if is_tool && reply::is_tool_error(fault.kind) {
                    Reply::Result(reply::tool_error(&fault))
                } else {
                    Reply::Error(reply::error_object(&fault))
                };
                let body = reply.into_response(id);
                match fault.kind {
                    FaultKind::UnknownSession => CallOutcome::SessionEnded(body),
                    kind => CallOutcome::Response(reply::session_status(kind), body),
                }
            }
        }
    }
}

/// The fault that a client is told which may still wait: only a client that cancelled its call gets no answer.
/// Spec: SPEC T-06.
fn wanted(fault: Fault, is_cancelled: bool) -> Fault {
    if fault.kind == FaultKind::Cancelled && !is_cancelled {
        Fault::connection_closed()
    } else {
        fault
    }
}

pub(super) fn no_room(refused: NoRoom) -> Fault {
    let kind = match refused {
        NoRoom::IdInUse => FaultKind::InvalidRequest,
        NoRoom::TooManyCalls | NoRoom::TooManyStreams => FaultKind::CallerBusy,
    };
    Fault::new(kind, FaultSide::Gateway, refused.to_string()).retry(RetryHint::After(RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_its_client_waits_for_is_answered_when_its_link_closes() {
        let cancelled = || Fault::downstream(FaultKind::Cancelled, "the request was cancelled");
        assert_eq!(wanted(cancelled(), true).kind, FaultKind::Cancelled);
        assert_eq!(wanted(cancelled(), false).kind, FaultKind::UpstreamLost);
        let other = Fault::downstream(FaultKind::InvalidParams, "no such tool");
        assert_eq!(wanted(other, false).kind, FaultKind::InvalidParams);
    }
}
