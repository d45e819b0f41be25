//! A legacy call and its HTTP exchange: JSON if the reply is the first message, else an event stream.
//! Spec: SPEC T-13, T-22, T-23; DESIGN §3, §5.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::McpService;
use super::access_log::AccessRecord;
use super::call_telemetry::{ended, log_fault, server_span};
use super::detachable_call::{CallFuture, CallOutcome, DetachableCall, ExchangeLinks, finish};
use super::event_body::{EventBody, EventBodyParts};
use super::media::AcceptedMedia;
use super::reply;
use super::streamable::BegunCall;
use crate::budget::held_with;
use crate::call::{Call, Principal, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::Revision;
use crate::relay::RelayFailure;
use crate::runtime::poll_time;
use crate::session::{CallEntry, EventStream, LegacyClientLink, LostCall, ResponseStream, Session};
use crate::telemetry::metrics::{COUNTERS, GAUGES};
use crate::telemetry::request_tag;

/// Delay until a silent call becomes a stream, for a client that accepts `text/event-stream` without naming it (`*/*`,
/// or no `AcceptedMedia`) and whose revision is older than 2025-11-25: JSON-only programs send such headers.
const SSE_AFTER_UNNAMED: Duration = Duration::from_secs(10);

enum FirstEvent {
    Done(CallOutcome),
    Stream(Arc<EventStream>),
}

impl McpService {
    /// Runs a call and answers its exchange.
    ///
    /// # Cancel safety
    /// Dropping the future hands the call to the background.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        begun: BegunCall,
        session: Arc<Session>,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Response<Body> {
        let BegunCall { call, link, entry } = begun;
        let running = DetachableCall {
            future: Some(self.run(call, entry, &link, record)),
            links: ExchangeLinks(link, Vec::new()),
            background: self.background.clone(),
        };
        self.answer(&session, headers, running).await
    }

    /// Makes calls again whose owner was lost, and whose streams wait for their replies. `principal` has the token of the
    /// request that found the session: the caller's, as the session's id is bound to the caller.
    pub(super) fn make_lost_calls(
        self: &Arc<Self>,
        session: &Arc<Session>,
        principal: &Arc<Principal>,
    ) {
        for LostCall { stream, request } in session.take_lost_calls() {
            let id = request.id().map(str::to_owned);
            let refuse = |fault: &Fault| {
                stream.finish(Some(reply::error_response(fault, id.as_deref())));
            };
            let principal = Arc::clone(principal);
            let headers = HeaderMap::new();
            let onto = ResponseStream::begun(Arc::clone(&stream));
            match self.begin(session, principal, &headers, request, onto, None) {
                Ok(BegunCall { call, link, entry }) => {
                    let mut running = DetachableCall {
                        future: Some(self.run(call, entry, &link, &AccessRecord::default())),
                        links: ExchangeLinks(link, Vec::new()),
                        background: self.background.clone(),
                    };
                    if running.detach() {
                        COUNTERS.cluster_calls_repeated.add(1);
                    } else {
                        refuse(&Fault::outcome_unknown("call"));
                    }
                }
                Err(fault) => refuse(&fault),
            }
        }
    }

    /// How long a call may stay silent before it is answered by a stream.
    fn stream_after(&self, session: &Session, headers: &HeaderMap) -> Duration {
        let is_old = session.revision < Revision::V2025_11_25;
        if is_old && !AcceptedMedia::read(headers).names_events {
            SSE_AFTER_UNNAMED
        } else {
            self.settings.server.sse_after
        }
    }

    /// Answers an exchange as its calls go on.
    pub(super) async fn answer(
        self: &Arc<Self>,
        session: &Arc<Session>,
        headers: &HeaderMap,
        mut running: DetachableCall,
    ) -> Response<Body> {
        let polls = session.revision.has_priming_event();
        let wait = self.stream_after(session, headers);
        let link = Arc::clone(&running.links.0);
        let mut timer = pin!(tokio::time::sleep_until(poll_time::now() + wait));
        let first = poll_fn(|cx| {
            link.rest();
            if let Poll::Ready(outcome) = running.poll(cx) {
                return Poll::Ready(FirstEvent::Done(outcome));
            }
            if let Poll::Ready(stream) = link.poll_opened(cx) {
                return Poll::Ready(FirstEvent::Stream(stream));
            }
            timer
                .as_mut()
                .poll(cx)
                .map(|()| FirstEvent::Stream(link.stream()))
        })
        .await;
        match first {
            FirstEvent::Done(outcome) => match link.opened() {
                None => plain_reply(outcome),
                Some(stream) => {
                    let stream = Arc::clone(stream);
                    finish(&link, outcome);
                    self.stream_reply(session, &stream, None, polls)
                }
            },
            FirstEvent::Stream(stream) => self.stream_reply(session, &stream, Some(running), polls),
        }
    }

    fn stream_reply(
        self: &Arc<Self>,
        session: &Arc<Session>,
        stream: &Arc<EventStream>,
        running: Option<DetachableCall>,
        polls: bool,
    ) -> Response<Body> {
        let Ok(permit) = session.open_stream(self.call_streams()) else {
            stream.settle();
            return refuse_stream(running.as_ref());
        };
        reply::event_stream(Body::new(EventBody::new(EventBodyParts {
            running,
            ..self.stream_parts(session, stream.attach_with(Some(permit)), polls)
        })))
    }

    /// Call streams that a session may have open: one for each running or waiting call, and `streams_per_session` more
    /// for resumption.
    pub(super) fn call_streams(&self) -> usize {
        let limits = &self.settings.limits;
        limits.streams_per_session + 2 * limits.calls_per_session
    }

    /// Parts of the body that carries a stream of a session.
    pub(super) fn stream_parts(
        &self,
        session: &Session,
        reader: crate::session::StreamReader,
        polls: bool,
    ) -> EventBodyParts {
        EventBodyParts {
            reader,
            tag: session.tag(),
            running: None,
            keep_alive: self.settings.server.keep_alive,
            ends: None,
            polls,
            opens: false,
        }
    }

    /// The whole way of a call, as a future of its own.
    pub(super) fn run(
        self: &Arc<Self>,
        mut call: Call,
        entry: CallEntry,
        link: &Arc<LegacyClientLink>,
        record: &AccessRecord,
    ) -> CallFuture {
        let (service, link) = (Arc::clone(self), Arc::clone(link));
        let session = Arc::clone(link.session());
        let is_tool_call = call.message.method() == Some("tools/call");
        let span = server_span(&call, Some(&session));
        let record = record.clone();
        record.trace(span.context().trace_id());
        call.trace = span.context().clone();
        request_tag::keep(Box::pin(async move {
            let answer = match service.seat(entry, &call.cancel).await {
                Ok(place) => {
                    let counted = GAUGES.calls_running.enter();
                    let answer = service.relay.handle(&call, &session).await;
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
            service.outcome(&call, answer)
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
                CallOutcome::Response(reply::session_status(fault.kind), reply.into_response(id))
            }
        }
    }
}

/// The answer of calls that find no room for their stream; the calls run on.
fn refuse_stream(running: Option<&DetachableCall>) -> Response<Body> {
    let fault = Fault::downstream(FaultKind::CallerBusy, "too many streams are open");
    let fault = reply::overload(fault);
    let ids = running.map(|running| running.links.ids());
    match ids.as_deref() {
        Some([id]) => reply::refusal(&fault, Some(id)),
        Some(ids) => {
            let each = ids.iter().map(|id| reply::error_response(&fault, Some(id)));
            let each: Vec<_> = each.collect();
            reply::json_response(StatusCode::OK, reply::array(&each))
        }
        None => reply::fault_response(&fault, None),
    }
}

fn plain_reply(outcome: CallOutcome) -> Response<Body> {
    match outcome {
        CallOutcome::Response(status, body) => reply::retryable(reply::json_response(status, body)),
        CallOutcome::Denied(denied, body) => reply::denied_call(&denied, body),
        CallOutcome::Many(bodies) if !bodies.is_empty() => {
            let array = reply::array(&bodies);
            reply::json_response(StatusCode::OK, held_with(array, bodies))
        }
        // A cancelled call, or an array with only cancelled calls, has no response: an event stream that ends without a
        // message is the answer to its POST. Spec: SPEC T-06, T-13, T-30.
        CallOutcome::Many(_) | CallOutcome::Cancelled => {
            let mut response = reply::empty(StatusCode::OK);
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        }
    }
}
