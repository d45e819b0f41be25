//! The 2024-11-05 transport: an event stream that tells where to post, and posts whose answers
//! come on the stream. Spec: MCP 2024-11-05, Transports, "HTTP with SSE"; SPEC H-01…H-07.

use std::sync::Arc;
use std::task::{Poll, ready};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use super::access_log::AccessRecord;
use super::admission::MessageDue;
use super::body::BodyError;
use super::call_telemetry::error_word;
use super::channel::Channel;
use super::channel_dispatch::{IncomingMessage, on_bytes};
use super::channel_writer::{ChannelWriter, open_channel, watch_channel};
use super::media::AcceptedMedia;
use super::over_budget::ReserveRefusal;
use super::plain_events::PlainEvents;
use super::refused_body::{NoRequests, refuse_with};
use super::{McpService, reply};
use crate::budget::{BudgetExhausted, BudgetHolder};
use crate::call::Principal;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::headers::{MCP_PROTOCOL_VERSION, MCP_SESSION_ID};
use crate::protocol::{Revision, headers, sse};
use crate::telemetry::metrics::COUNTERS;

/// The query parameter that carries the sealed handle of the stream.
const HANDLE: &str = "sessionId";

/// GET: opens the stream. Its first event is the URL for posts, with a handle that works for
/// this principal only. Spec: SPEC H-01, H-03.
pub(super) fn open(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: &Arc<Principal>,
    headers: &HeaderMap,
    record: &AccessRecord,
) -> Response<Body> {
    if !AcceptedMedia::read(headers).events {
        return reply::no_events();
    }
    let server = &service.settings.server;
    let Some(paths) = &server.sse else {
        return reply::plain(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    let (channel, handle) = match open_channel(service, endpoint, principal, record) {
        Ok(opened) => opened,
        Err(response) => return *response,
    };
    let base = server.public_url.path().trim_end_matches('/');
    let place = endpoint.place(&paths.messages);
    let mut first = BytesMut::new();
    sse::encode_endpoint(&mut first, &format!("{base}{place}?{HANDLE}={handle}"));
    watch_channel(service, &channel);
    let mut outgoing = ChannelWriter::new(service, channel);
    let messages = stream::poll_fn(move |cx| {
        let next = ready!(outgoing.poll_next(cx));
        let next = next.inspect_err(|end| tracing::debug!(?end, "event stream ends"));
        Poll::Ready(next.ok())
    });
    // Events carry no id: this transport has no resumption. Spec: SPEC H-07.
    let body = PlainEvents::new(first.freeze(), messages, server.keep_alive);
    reply::event_stream(Body::new(body))
}

/// Whether a GET on a Streamable HTTP path can only come from a client of the older transport:
/// it has no session and names no revision. Spec: SPEC H-05.
pub(super) fn is_for_events(settings: &Config, headers: &HeaderMap) -> bool {
    settings.server.sse.is_some()
        && headers::last_event_id(headers).is_none()
        && [MCP_SESSION_ID, MCP_PROTOCOL_VERSION]
            .iter()
            .all(|name| !headers.contains_key(name))
}

/// POST: takes a message for the stream whose handle the URL carries. Spec: SPEC H-02, H-03.
pub(super) async fn post(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    (body, due): (Body, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    let holder = service.bodies.holder(&principal, &parts.extensions);
    let read = match service.bodies.read_json(&parts.headers, body, holder).await {
        Err(BodyError::Answered(response)) => return response,
        read => read,
    };
    let handle = parts.uri.query().and_then(handle);
    let key = handle.and_then(|handle| {
        service
            .sessions
            .read_connection(handle, &principal, endpoint)
    });
    // Another principal's handle looks like an unknown one. Spec: SPEC H-03, T-47.
    let Some(channel) = key.and_then(|key| service.channels.get(&key)) else {
        COUNTERS.sessions_unknown.add(1);
        let fault = Fault::downstream(
            FaultKind::UnknownSession,
            "there is no such event stream, open a new one",
        );
        record.outcome(error_word(fault.kind));
        return reply::fault_response(&fault, None);
    };
    let (bytes, over) = match read {
        Ok(bytes) => (bytes, None),
        Err(unread) => {
            let read = read_post_otherwise(service, &channel, holder, unread);
            match Box::pin(read).await {
                Ok((bytes, exhausted)) => (bytes, Some(exhausted)),
                Err(response) => return response,
            }
        }
    };
    let arrival = IncomingMessage {
        principal,
        headers: &parts.headers,
        fallback: Revision::V2024_11_05,
        record,
        line: None,
        modern: None,
        over,
    };
    match on_bytes(service, &channel, &arrival, bytes, due) {
        Ok(()) => reply::empty(StatusCode::ACCEPTED),
        Err((fault, id)) => {
            record.outcome(error_word(fault.kind));
            reply::fault_response(&fault, id.as_deref())
        }
    }
}

/// Handles a POST whose body exceeded a limit. If only the byte budget lacks room, the body is read into the
/// reserve: notifications and responses are processed, and a request is refused later.
///
/// # Errors
/// The answer to the POST; a request of a live session is refused on the stream.
async fn read_post_otherwise(
    service: &McpService,
    channel: &Channel,
    holder: BudgetHolder,
    unread: BodyError,
) -> Result<(Bytes, BudgetExhausted), Response<Body>> {
    let (body, fault, status) = match service.bodies.read_otherwise(Some(holder), unread).await {
        Ok(read) => return Ok(read),
        Err(ReserveRefusal::Answered(response)) => return Err(response),
        Err(ReserveRefusal::Refused(body, fault, status)) => (body, fault, status),
    };
    let session = channel.session();
    let scans = &service.bodies.scans;
    Err(match scans.requests_of(session.as_deref(), *body).await {
        Ok(requests) => {
            let refusals = requests.each_refusal(&fault).into_iter();
            refusals.for_each(|refusal| channel.send(refusal));
            reply::empty(StatusCode::ACCEPTED)
        }
        Err(NoRequests) => refuse_with(status, &fault),
    })
}

/// The handle in a query; the first one counts, and it is plain base64url.
pub(super) fn handle(query: &str) -> Option<&str> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(name, value)| (name == HANDLE).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_is_found_among_other_parameters() {
        assert_eq!(handle("a=b&sessionId=x_y-z&c"), Some("x_y-z"));
        assert_eq!(handle("xsessionId=1"), None);
        assert_eq!(handle(""), None);
    }
}
