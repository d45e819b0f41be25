//! The only place that makes an HTTP response to an MCP message: one table from faults to status
//! and JSON-RPC code. Spec: SPEC M-13, M-15, M-23, T-17, T-42…T-44, E-01…E-05; BRIDGING §3.10.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, Response, StatusCode};

use super::busy;
use crate::auth::DeniedResponse;
use crate::call::Reply;
pub(super) use crate::fault::told::{
    data_of, error_object, is_tool_error, legacy_code, tool_error, with_request_id,
};
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::headers::X_ACCEL_BUFFERING;
use crate::protocol::{DecodeError, Message, MessageKind, Revision, json};
use crate::telemetry::metrics::COUNTERS;

/// HTTP status of a fault that is answered before a stream has begun. A 404 means "session gone"
/// to a legacy client and nothing else (SPEC T-44).
#[must_use]
pub(super) fn legacy_status(kind: FaultKind) -> StatusCode {
    match kind {
        FaultKind::Parse
        | FaultKind::InvalidRequest
        | FaultKind::HeaderMismatch
        | FaultKind::UnsupportedVersion
        | FaultKind::MissingSession => StatusCode::BAD_REQUEST,
        FaultKind::UnknownSession => StatusCode::NOT_FOUND,
        FaultKind::CallerBusy => StatusCode::TOO_MANY_REQUESTS,
        FaultKind::GatewayBusy => StatusCode::SERVICE_UNAVAILABLE,
        FaultKind::UnknownMethod
        | FaultKind::InvalidParams
        | FaultKind::ResourceNotFound
        | FaultKind::UpstreamUnavailable
        | FaultKind::UpstreamLost
        | FaultKind::UpstreamTimeout
        | FaultKind::UpstreamInvalid
        | FaultKind::ReplyDropped
        | FaultKind::CannotAsk
        | FaultKind::Cancelled
        | FaultKind::Internal => StatusCode::OK,
    }
}

/// A session that does not exist, has ended, or is another caller's.
pub(super) fn unknown_session() -> Fault {
    COUNTERS.sessions_unknown.add(1);
    Fault::downstream(
        FaultKind::UnknownSession,
        "Session not found: initialize again without Mcp-Session-Id",
    )
}

/// A JSON response.
#[must_use]
pub(super) fn json_response(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds the time of the next attempt to a response of overload (SPEC T-17).
#[must_use]
pub(super) fn retryable(mut response: Response<Body>) -> Response<Body> {
    // No hint: after a second.
    retry_after(&mut response, RetryHint::Never);
    response
}

/// A response without a body.
#[must_use]
pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// A fault, as the answer to the request `id` (JSON text) or to what had no readable id. That the session is unknown is
/// told without the id: clients take a 404 with the error of their request for an unknown method (Go SDK after 1.7.0) or hand
/// this error to their caller in place of their own (Python SDK 2), and keep the session. Spec: SPEC T-43.
#[must_use]
pub(super) fn fault_response(fault: &Fault, id: Option<&str>) -> Response<Body> {
    if fault.kind == FaultKind::UnknownSession {
        return without_id(fault);
    }
    with_status(fault, error_response(fault, id))
}

fn without_id(fault: &Fault) -> Response<Body> {
    let error = error_object(fault);
    let error = std::str::from_utf8(&error).unwrap_or("{}");
    let body = json::object([("jsonrpc", "\"2.0\""), ("error", error)]);
    with_status(fault, body.into())
}

fn with_status(fault: &Fault, body: Bytes) -> Response<Body> {
    let mut response = json_response(legacy_status(fault.kind), body);
    retry_after(&mut response, fault.retry);
    response
}

/// A fault as the answer to this message. Only a request's id is used: a response carries an id of the gateway's, and
/// its sender may have a request of its own under the same id. Spec: SPEC T-12.
#[must_use]
pub(super) fn message_fault(fault: &Fault, message: &Message) -> Response<Body> {
    if message.kind() == MessageKind::Request {
        return fault_response(fault, message.id());
    }
    without_id(fault)
}

/// A refused request of a live session: not by a status, since clients end their session with all its
/// calls where one is 4xx or 5xx. Spec: SPEC T-17, T-44.
#[must_use]
pub(super) fn refusal(fault: &Fault, id: Option<&str>) -> Response<Body> {
    json_response(StatusCode::OK, error_response(fault, id))
}

/// A fault of overload in a live session, which says when to come back.
#[must_use]
pub(super) fn overload(mut fault: Fault) -> Fault {
    if matches!(fault.kind, FaultKind::CallerBusy | FaultKind::GatewayBusy) {
        fault.side = FaultSide::Gateway;
        if fault.retry == RetryHint::Never {
            fault.retry = RetryHint::After(busy::RETRY_AFTER);
        }
    }
    fault
}

/// HTTP status of a fault that ended a request of a live session.
#[must_use]
pub(super) fn session_status(kind: FaultKind) -> StatusCode {
    match kind {
        FaultKind::CallerBusy | FaultKind::GatewayBusy => StatusCode::OK,
        kind => legacy_status(kind),
    }
}

/// 429 for messages without an id.
#[must_use]
pub(super) fn over_the_rate(wait: Duration) -> Response<Body> {
    COUNTERS.rate_limited.add(1);
    let mut response = plain(
        StatusCode::TOO_MANY_REQUESTS,
        "too many requests, slow down",
    );
    let seconds = HeaderValue::from(wait.as_secs() + 1);
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// Says when to come back on an answer of overload (SPEC T-17).
pub(super) fn retry_after(response: &mut Response<Body>, retry: RetryHint) {
    let overload = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    let seconds = match retry {
        RetryHint::After(after) => after.as_secs_f64().ceil(),
        RetryHint::Same | RetryHint::Never => 1.0,
    };
    if overload.contains(&response.status())
        && let Ok(value) = HeaderValue::from_str(&format!("{seconds:.0}"))
    {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
}

/// A refusal by authentication or policy, with its challenge.
#[must_use]
pub(super) fn denied(denied: &DeniedResponse) -> Response<Body> {
    denied_call(denied, plain_body(denied.reason))
}

/// [`denied`] for a request that was read: `body` is the JSON-RPC error under its id. Spec: SPEC M-15.
#[must_use]
pub(super) fn denied_call(denied: &DeniedResponse, body: Bytes) -> Response<Body> {
    let mut response = json_response(denied.status, body);
    let headers = response.headers_mut();
    if let Some(challenge) = &denied.challenge {
        headers.insert(WWW_AUTHENTICATE, challenge.clone());
    }
    if denied.status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

/// 405 of the modern era, where POST is the only method. Spec: SPEC M-01.
#[must_use]
pub(super) fn post_only() -> Response<Body> {
    method_not_allowed(&[Method::POST])
}

/// 405 with the methods there are.
#[must_use]
pub(super) fn method_not_allowed(allowed: &[Method]) -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    let allowed: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    if let Ok(allowed) = HeaderValue::from_str(&allowed.join(", ")) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// A plain-text refusal, outside JSON-RPC.
#[must_use]
pub(super) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    json_response(status, plain_body(text))
}

fn plain_body(text: &str) -> Bytes {
    json::object([("error", json::quote(text))]).into()
}

/// The refusal of a GET whose client takes no event stream. Spec: SPEC T-10.
#[must_use]
pub(super) fn no_events() -> Response<Body> {
    plain(
        StatusCode::NOT_ACCEPTABLE,
        "Accept must list text/event-stream",
    )
}

/// The refusal of a resumption that no message can follow: 405, since 400 and 404 end the session for several clients, and
/// those of 2025-11-25 resume an empty stream again and again. Spec: SPEC T-20, T-25, T-44.
#[must_use]
pub(super) fn nothing_to_resume() -> Response<Body> {
    let mut response = plain(
        StatusCode::METHOD_NOT_ALLOWED,
        "there is nothing to resume after this Last-Event-ID",
    );
    let allowed = HeaderValue::from_static("POST, DELETE");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

/// The refusal of a compressed body, with `Accept-Encoding: identity`. Spec: RFC 9110 §15.5.16; RFC 7694 §3.
#[must_use]
pub(super) fn encoded() -> Response<Body> {
    let mut response = plain(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "no Content-Encoding is read here: send the body as it is",
    );
    let headers = response.headers_mut();
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    response
}

/// The fault behind bytes that are no message.
#[must_use]
pub(super) fn decode_fault(error: &DecodeError) -> Fault {
    let kind = if error.is_parse_error() {
        FaultKind::Parse
    } else {
        FaultKind::InvalidRequest
    };
    Fault::downstream(kind, error.to_string())
}

/// The answer to a revision that we do not serve. Spec: SPEC M-13, T-60.
#[must_use]
pub(super) fn unsupported_version(requested: &str) -> Fault {
    unsupported_among(&Revision::SERVED, requested)
}

/// [`unsupported_version`] where only `served` revisions are offered.
#[must_use]
pub(super) fn unsupported_among(served: &[Revision], requested: &str) -> Fault {
    Fault::downstream(
        FaultKind::UnsupportedVersion,
        "unsupported protocol version",
    )
    .with_data(supported(served, requested))
}

/// JSON text of the error data: the served revisions, and the `requested` one.
#[must_use]
pub(super) fn supported(served: &[Revision], requested: &str) -> String {
    let requested: String = requested.chars().take(64).collect();
    json::object([
        (
            "supported",
            json::strings(served.iter().map(|revision| revision.as_str())),
        ),
        ("requested", json::quote(&requested)),
    ])
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

/// JSON text of an array of responses.
#[must_use]
pub(super) fn array(responses: &[Bytes]) -> Bytes {
    let lengths = responses.iter().map(|response| response.len() + 1);
    let mut out = Vec::with_capacity(lengths.sum::<usize>() + 2);
    out.push(b'[');
    for (at, response) in responses.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(response);
    }
    out.push(b']');
    out.into()
}

/// A JSON-RPC error response, whatever its HTTP status.
#[must_use]
pub(super) fn error_response(fault: &Fault, id: Option<&str>) -> Bytes {
    Reply::Error(error_object(fault)).into_response(id.unwrap_or("null"))
}
