//! A legacy call and its HTTP exchange: JSON if the reply is the first message, else an event stream.
//! Spec: SPEC T-13, T-22, T-23; DESIGN §3, §5.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::access_log::AccessRecord;
use super::detachable_call::{
    BackgroundCalls, CallFuture, CallOutcome, DetachableCall, ExchangeLinks, finish,
};
use super::event_body::{EventBody, EventBodyParts};
use super::forwarding::{is_forwarded, say_begun};
use super::legacy_calls::{BegunCall, LegacyCalls};
use super::media::AcceptedMedia;
use super::reply;
use crate::budget::held_with;
use crate::call::Principal;
use crate::config::Config;
use crate::fault::{Fault, FaultKind};
use crate::protocol::Revision;
use crate::runtime::poll_time;
use crate::session::{EventId, EventStream, LostCall, ResponseStream, Session, StreamReader};
use crate::telemetry::metrics::COUNTERS;

/// Delay until a silent call becomes a stream, for a client that accepts `text/event-stream` without naming it (`*/*`,
/// or no `AcceptedMedia`) and whose revision is older than 2025-11-25: JSON-only programs send such headers.
const SSE_AFTER_UNNAMED: Duration = Duration::from_secs(10);

enum FirstEvent {
    Done(CallOutcome),
    Stream(Arc<EventStream>),
}

/// Answers the exchanges of legacy calls.
#[derive(Debug)]
pub(super) struct LegacyExchanges {
    pub(super) settings: Arc<Config>,
    pub(super) background: BackgroundCalls,
}

impl LegacyExchanges {
    /// Repeats a call whose owner was lost, when its stream is resumed; `None` if the stream has ended already. The exchange
    /// that resumes the stream drives the call, like any other exchange its own call. `principal` has the token of that
    /// request, which is the caller's: the session's id is bound to the caller.
    pub(super) fn make_again(
        &self,
        calls: &Arc<LegacyCalls>,
        session: &Arc<Session>,
        principal: &Arc<Principal>,
        LostCall { stream, request }: LostCall,
    ) -> Option<DetachableCall> {
        let id = request.id().map(str::to_owned);
        let principal = Arc::clone(principal);
        let headers = HeaderMap::new();
        let onto = ResponseStream::begun(Arc::clone(&stream));
        match calls.begin(session, principal, &headers, request, onto, None) {
            Ok(BegunCall { call, link, entry }) => {
                COUNTERS.cluster_calls_repeated.add(1);
                Some(DetachableCall {
                    future: Some(calls.run(call, entry, &link, &AccessRecord::default())),
                    links: ExchangeLinks(link, Vec::new()),
                    background: self.background.clone(),
                })
            }
            Err(fault) => {
                stream.finish(Some(reply::error_response(&fault, id.as_deref())));
                None
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

    /// Answers an exchange with the calls of `links`, which `future` runs.
    ///
    /// # Cancel safety
    /// Dropping the future hands the calls to the background.
    pub(super) async fn answer(
        &self,
        session: &Arc<Session>,
        parts: &Parts,
        (future, links): (CallFuture, ExchangeLinks),
    ) -> Response<Body> {
        let mut running = DetachableCall {
            future: Some(future),
            links,
            background: self.background.clone(),
        };
        let polls = session.revision.has_priming_event();
        let wait = self.stream_after(session, &parts.headers);
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
        let (stream, running) = match first {
            FirstEvent::Done(outcome) => match link.opened() {
                None => return plain_reply(outcome),
                Some(stream) => {
                    let stream = Arc::clone(stream);
                    finish(&link, outcome);
                    (stream, None)
                }
            },
            FirstEvent::Stream(stream) => (stream, Some(running)),
        };
        let mut response = self.stream_reply(session, &stream, running, polls);
        if is_forwarded(&parts.extensions) {
            let begun = EventId {
                tag: session.tag(),
                stream: stream.number(),
                seq: 0,
            };
            say_begun(response.headers_mut(), begun);
        }
        response
    }

    fn stream_reply(
        &self,
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
        reader: StreamReader,
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
        // Without the id of the request, as for a request that comes later. Spec: SPEC T-43.
        CallOutcome::SessionEnded(_) => reply::fault_response(&reply::unknown_session(), None),
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;

    // Spec: SPEC T-43.
    #[tokio::test]
    async fn ended_session_is_told_without_an_id() {
        let error = br#"{"jsonrpc":"2.0","id":5,"error":{"code":-32001,"message":"over"}}"#;
        let outcome = CallOutcome::SessionEnded(Bytes::from_static(error));
        let response = plain_reply(outcome);
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let told: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told["error"]["code"], -32001);
        assert_eq!(told.get("id"), None, "{told}");
    }
}
