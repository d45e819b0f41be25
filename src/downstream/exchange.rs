//! One legacy call and its HTTP exchange: JSON if the reply comes first, else a stream of events.
//! Spec: SPEC T-13, T-22, T-23; DESIGN §3, §5.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use tokio::sync::Semaphore;

use super::Front;
use super::access_log::AccessRecord;
use super::event_body::{EventBody, Parts};
use super::reply;
use crate::auth;
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::Revision;
use crate::protocol::headers::X_ACCEL_BUFFERING;
use crate::relay::Failure;
use crate::session::{CallLink, EventStream, Session, StreamPermit};
use crate::telemetry::metrics::{COUNTERS, GAUGES};
use crate::telemetry::names::{attribute, error_type};
use crate::telemetry::trace::{self, CallSpan};

/// Sessions older than 2025-11-25 cannot resume a stream that was closed early, so that their
/// clients get a plain reply for longer.
const SSE_AFTER_OLD: Duration = Duration::from_secs(10);

/// What came of a call.
pub(super) enum Outcome {
    /// The whole JSON-RPC response, and the status it has when no stream has begun.
    Response(StatusCode, Bytes),
    /// Refused by policy before anything was sent upstream.
    Denied(auth::Denied, Bytes),
    /// The responses of a JSON-RPC array that are not on its stream.
    Many(Vec<Bytes>),
    /// Nobody is owed an answer.
    Cancelled,
}

/// A call that runs. Dropped unfinished it goes on in the background.
pub(super) struct Running {
    pub(super) future: Option<BoxFuture<'static, Outcome>>,
    /// The call, or every call of an array: they share one stream.
    pub(super) links: Links,
    pub(super) background: Background,
}

/// The calls of one exchange, never none.
pub(super) struct Links(pub(super) Arc<CallLink>, pub(super) Vec<Arc<CallLink>>);

impl Links {
    fn each(&self, mut act: impl FnMut(&CallLink)) {
        act(&self.0);
        self.1.iter().for_each(|link| act(link));
    }
}

/// Where calls go whose exchange is gone.
#[derive(Debug, Clone)]
pub(super) struct Background {
    pub(super) tasks: crate::lifecycle::Tasks,
    pub(super) places: Arc<Semaphore>,
}

impl Running {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        let outcome = futures_util::ready!(future.as_mut().poll(cx));
        self.future = None;
        self.links.each(CallLink::end);
        Poll::Ready(outcome)
    }

    /// Drives the call; puts its reply on its stream when it is there.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let outcome = futures_util::ready!(self.poll(cx));
        finish(&self.links.0, outcome);
        Poll::Ready(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        self.links.each(CallLink::abandon);
        let links = Links(Arc::clone(&self.links.0), std::mem::take(&mut self.links.1));
        let Ok(place) = Arc::clone(&self.background.places).try_acquire_owned() else {
            // Dropping the future cancels the call upstream.
            COUNTERS.calls_detach_refused.add(1);
            drop(future);
            links.each(CallLink::end);
            finish(&links.0, Outcome::Cancelled);
            return;
        };
        COUNTERS.calls_detached.add(1);
        let counted = GAUGES.calls_detached_now.enter();
        self.background.tasks.spawn(async move {
            let outcome = future.await;
            links.each(CallLink::end);
            finish(&links.0, outcome);
            drop((place, counted));
        });
    }
}

fn finish(link: &CallLink, outcome: Outcome) {
    let Some(stream) = link.opened() else { return };
    match outcome {
        Outcome::Response(_, body) | Outcome::Denied(_, body) => stream.finish(Some(body)),
        Outcome::Many(bodies) => {
            for body in bodies {
                stream.put(body);
            }
            stream.finish(None);
        }
        Outcome::Cancelled => stream.finish(None),
    }
}

enum First {
    Done(Outcome),
    Stream(Arc<EventStream>),
}

impl Front {
    /// Runs a call and answers its exchange.
    ///
    /// # Cancel safety
    /// Dropping the future hands the call to the background.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        call: Call,
        session: Arc<Session>,
        link: Arc<CallLink>,
        record: &AccessRecord,
    ) -> Response<Body> {
        let running = Running {
            future: Some(self.run(call, Arc::clone(&session), record)),
            links: Links(link, Vec::new()),
            background: self.background.clone(),
        };
        self.answer(&session, running).await
    }

    /// Answers an exchange as its calls go on.
    pub(super) async fn answer(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mut running: Running,
    ) -> Response<Body> {
        let polls = session.revision >= Revision::V2025_11_25;
        let wait = if polls {
            self.settings.server.sse_after
        } else {
            SSE_AFTER_OLD
        };
        let link = Arc::clone(&running.links.0);
        let mut timer = pin!(tokio::time::sleep(wait));
        let first = poll_fn(|cx| {
            link.rest();
            if let Poll::Ready(outcome) = running.poll(cx) {
                return Poll::Ready(First::Done(outcome));
            }
            if let Poll::Ready(stream) = link.poll_opened(cx) {
                return Poll::Ready(First::Stream(stream));
            }
            timer
                .as_mut()
                .poll(cx)
                .map(|()| First::Stream(link.stream()))
        })
        .await;
        match first {
            First::Done(outcome) => match link.opened() {
                None => plain_reply(outcome),
                Some(stream) => {
                    let stream = Arc::clone(stream);
                    finish(&link, outcome);
                    self.stream_reply(session, &stream, None, polls)
                }
            },
            First::Stream(stream) => self.stream_reply(session, &stream, Some(running), polls),
        }
    }

    fn stream_reply(
        self: &Arc<Self>,
        session: &Arc<Session>,
        stream: &Arc<EventStream>,
        running: Option<Running>,
        polls: bool,
    ) -> Response<Body> {
        let limit = self.settings.limits.streams_per_session;
        let Ok(permit) = session.open_stream(limit + self.settings.limits.calls_per_session) else {
            stream.settle();
            let fault = Fault::downstream(FaultKind::CallerBusy, "too many streams are open");
            return reply::fault_response(&fault, None);
        };
        self.stream_body(session, stream.attach(), running, None, polls, permit)
    }

    /// The response that carries a stream of a session.
    pub(super) fn stream_body(
        &self,
        session: &Arc<Session>,
        reader: crate::session::Reader,
        running: Option<Running>,
        ends: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
        polls: bool,
        permit: StreamPermit,
    ) -> Response<Body> {
        let body = EventBody::new(Parts {
            reader,
            tag: session.tag(),
            running,
            keep_alive: self.settings.server.keep_alive,
            ends,
            polls,
            permit,
        });
        event_stream(Body::new(body))
    }

    /// The whole way of a call, as a future of its own.
    pub(super) fn run(
        self: &Arc<Self>,
        call: Call,
        session: Arc<Session>,
        record: &AccessRecord,
    ) -> BoxFuture<'static, Outcome> {
        let front = Arc::clone(self);
        let span = server_span(&call, Some(&session));
        let record = record.clone();
        record.trace(span.context().trace_id());
        let counted = GAUGES.calls_running.enter();
        let call = Call {
            trace: span.context().clone(),
            ..call
        };
        Box::pin(async move {
            let answer = front.relay.handle(&call, &session).await;
            let outcome = ended(&answer);
            if let Some(word) = outcome.error_type() {
                record.outcome(word);
            }
            drop((record, counted));
            span.finish(outcome);
            front.outcome(&call, answer)
        })
    }

    fn outcome(&self, call: &Call, answer: Result<Reply, Failure>) -> Outcome {
        let id = call.message.id().unwrap_or("null");
        match answer {
            Ok(reply) => Outcome::Response(StatusCode::OK, reply.into_response(id)),
            Err(Failure::Denied(denial)) => {
                let fault = Fault::downstream(FaultKind::InvalidParams, denial.public());
                let body = Reply::Error(reply::error_object(&fault)).into_response(id);
                if denial.missing_scopes.is_empty() {
                    return Outcome::Response(StatusCode::OK, body);
                }
                let denied = self.auth.insufficient_scope(
                    &call.endpoint,
                    &denial.missing_scopes,
                    &call.principal,
                );
                Outcome::Denied(denied, body)
            }
            Err(Failure::Fault(fault)) if fault.kind == FaultKind::Cancelled => Outcome::Cancelled,
            Err(Failure::Fault(fault)) => {
                log_fault(&fault);
                let is_tool = call.message.method() == Some("tools/call");
                let reply = if is_tool && reply::is_tool_error(fault.kind) {
                    Reply::Result(reply::tool_error(&fault))
                } else {
                    Reply::Error(reply::error_object(&fault))
                };
                Outcome::Response(reply::legacy_status(fault.kind), reply.into_response(id))
            }
        }
    }
}

/// A response whose body is a stream of events. Spec: SPEC T-14.
pub(super) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// The span of a call, with what is known before it runs; the session where the client has one.
/// SPEC C-99.
pub(super) fn server_span(call: &Call, session: Option<&Session>) -> CallSpan {
    let message = &call.message;
    let method = message.method().unwrap_or_default();
    let mut span = CallSpan::server(&call.trace, method, &call.endpoint.name);
    match method {
        "tools/call" => {
            if let Some(name) = message.param_str("name") {
                span.tool(&name);
            }
        }
        "prompts/get" => span.prompt(|| message.param_str("name")),
        _ => {}
    }
    span.attribute(attribute::PROTOCOL_VERSION, || call.revision.as_str());
    if let Some(session) = session {
        span.attribute(attribute::SESSION, || format!("{:016x}", session.tag()));
    }
    span.attribute(attribute::REQUEST_ID, || {
        message.id().unwrap_or_default().to_owned()
    });
    if span.is_recorded()
        && let Some(uri) = message.param_str("uri")
    {
        span.attribute(attribute::RESOURCE, || uri.into_owned());
    }
    span
}

/// The outcome as spans and durations tell it.
pub(super) fn ended(answer: &Result<Reply, Failure>) -> trace::Outcome {
    match answer {
        Ok(reply) => match reply.error_code() {
            Some(code) => trace::Outcome::Rpc(code),
            None if reply.is_tool_error() => trace::Outcome::ToolError,
            None => trace::Outcome::Ok,
        },
        Err(failure) => failed(failure),
    }
}

/// The same for what has no reply.
pub(super) fn failed(failure: &Failure) -> trace::Outcome {
    trace::Outcome::Failed(match failure {
        Failure::Denied(_) => error_type::DENIED,
        Failure::Fault(fault) => error_word(fault.kind),
    })
}

/// A fault as spans, metrics and access lines call it.
pub(super) fn error_word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Cancelled => error_type::CANCELLED,
        FaultKind::UpstreamTimeout => error_type::TIMEOUT,
        FaultKind::UpstreamUnavailable => error_type::UNAVAILABLE,
        FaultKind::UpstreamLost => error_type::LOST,
        FaultKind::UpstreamInvalid => error_type::INVALID,
        FaultKind::CallerBusy | FaultKind::GatewayBusy => error_type::BUSY,
        FaultKind::UnknownSession | FaultKind::MissingSession => error_type::SESSION,
        FaultKind::Internal => error_type::INTERNAL,
        _ => error_type::BAD_REQUEST,
    }
}

/// A fault is logged once, here, with its whole chain.
pub(super) fn log_fault(fault: &Fault) {
    let mut chain = String::new();
    let mut source = std::error::Error::source(fault);
    while let Some(error) = source {
        chain.push_str(": ");
        chain.push_str(&error.to_string());
        source = error.source();
    }
    if fault.kind == FaultKind::Internal {
        tracing::error!(kind = ?fault.kind, side = ?fault.side, "{fault}{chain}");
    } else {
        tracing::debug!(kind = ?fault.kind, side = ?fault.side, "{fault}{chain}");
    }
}

fn plain_reply(outcome: Outcome) -> Response<Body> {
    match outcome {
        Outcome::Response(status, body) => reply::retryable(reply::json_response(status, body)),
        Outcome::Denied(denied, _) => reply::denied(&denied),
        Outcome::Many(bodies) => reply::json_response(StatusCode::OK, reply::array(&bodies)),
        // Nothing is owed: a stream that ends without a message says just that.
        Outcome::Cancelled => {
            let mut response = reply::empty(StatusCode::OK);
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        }
    }
}
