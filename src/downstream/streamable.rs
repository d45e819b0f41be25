//! Streamable HTTP of the legacy era: POST and DELETE. Spec: SPEC §1, §1a, §1c.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::access_log::AccessRecord;
use super::admission::MessageDue;
use super::body::BodyError;
use super::call_telemetry::error_word;
use super::detachable_call::ExchangeLinks;
use super::legacy_calls::BegunCall;
use super::media::AcceptedMedia;
use super::over_budget::{ReserveRefusal, is_dropped, over_budget};
use super::{McpService, batch, initialize, modern, reply};
use crate::budget::{BudgetExhausted, ReplyShare};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, RetryHint};
use crate::protocol::headers::{self, HeaderError, MCP_SESSION_ID};
use crate::protocol::{DecodeError, Message, MessageKind, Revision};
use crate::session::{DeliveryMode, Session};
use crate::telemetry::names::error_type;

/// POST of one message, or of an array on a 2025-03-26 session.
pub(super) async fn post(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    (body, due): (Body, MessageDue),
    record: &AccessRecord,
) -> Response<Body> {
    let accept = AcceptedMedia::read(&parts.headers);
    if !(accept.json && accept.events) {
        return reply::plain(
            StatusCode::NOT_ACCEPTABLE,
            "Accept must list application/json and text/event-stream",
        );
    }
    let holder = service.bodies.holder(&principal, &parts.extensions);
    let (bytes, over) = match service.bodies.read_json(&parts.headers, body, holder).await {
        Ok(bytes) => (bytes, None),
        Err(unread) => {
            let read = read_post(service, endpoint, &principal, parts, unread, record);
            match Box::pin(read).await {
                Ok((bytes, exhausted)) => (bytes, Some(exhausted)),
                Err(response) => return response,
            }
        }
    };
    record.received(bytes.len());
    if Message::is_batch(&bytes) {
        let posted = batch::post(
            service,
            endpoint,
            principal,
            parts,
            (bytes, due, over),
            record,
        );
        return Box::pin(posted).await;
    }
    let message = match Message::parse(bytes, service.settings.limits.of_messages()) {
        Ok(message) => message,
        Err(error) => {
            record.outcome(error_type::BAD_REQUEST);
            return refuse_unread(service, endpoint, &principal, &parts.headers, &error);
        }
    };
    note_message(record, &message);
    if let Some(exhausted) = over {
        if message.kind() == MessageKind::Request {
            let fault = over_budget(exhausted);
            record.outcome(error_word(fault.kind));
            return reply::refusal(&fault, message.id());
        }
        if is_dropped(&message) {
            return reply::empty(StatusCode::ACCEPTED);
        }
    }
    if modern::is_modern(&parts.headers, &message) {
        // Larger, and a call of a session need not have room for it.
        let posted = modern::post(service, endpoint, principal, parts, (message, due), record);
        return Box::pin(posted).await;
    }
    match post_message(
        service,
        endpoint,
        principal,
        parts,
        (message.clone(), due),
        record,
    )
    .await
    {
        Ok(response) => response,
        Err(PostStopped::Failed(fault)) => {
            record.outcome(error_word(fault.kind));
            reply::message_fault(&fault, &message)
        }
        Err(PostStopped::Refused(fault)) => {
            record.outcome(error_word(fault.kind));
            reply::refusal(&fault, message.id())
        }
    }
}

async fn post_message(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    (message, due): (Message, MessageDue),
    record: &AccessRecord,
) -> Result<Response<Body>, PostStopped> {
    let named = check_version(&parts.headers)?;
    let given = session_id(&parts.headers);
    if message.method() == Some("initialize") && message.kind() == MessageKind::Request {
        if given.is_some_and(|id| service.sessions.bind(id, &principal, endpoint).is_some()) {
            // Spec: SPEC T-49.
            let text = "the session is initialized already";
            return Err(Fault::downstream(FaultKind::InvalidRequest, text).into());
        }
        Box::pin(service.admission.pay(principal.owner(), due)).await?;
        let opened = open_session(service, endpoint, principal, parts, &message, record);
        return Ok(Box::pin(opened).await?);
    }
    let session = bind(service, given, &principal, endpoint)?;
    record.session(session.tag());
    if let Some(named) = named.filter(|named| *named != session.revision) {
        // Spec: SPEC T-62.
        tracing::debug!(
            session = session.tag(),
            header = named.as_str(),
            negotiated = session.revision.as_str(),
            "client names another revision than it negotiated: its session's counts"
        );
    }
    match message.kind() {
        MessageKind::Request => {
            let response_stream = Arc::default();
            let begun = service
                .calls
                .begin(
                    &session,
                    principal,
                    &parts.headers,
                    message,
                    response_stream,
                    due,
                )
                .map_err(PostStopped::of_request)?;
            let BegunCall { call, link, entry } = begun;
            let future = service.calls.run(call, entry, &link, record);
            let running = (future, ExchangeLinks(link, Vec::new()));
            let answer = service.exchanges.answer(&session, parts, running);
            Ok(answer.await)
        }
        MessageKind::Notification => {
            if due.is_some() {
                Box::pin(
                    service
                        .notifications
                        .pass_on_when_due(session, message, due),
                )
                .await;
            } else {
                let held = service.notifications.pass_on(&session, &message);
                if !held.is_empty() {
                    Box::pin(held.decided()).await;
                }
            }
            Ok(reply::empty(StatusCode::ACCEPTED))
        }
        MessageKind::Response => {
            session.questions().answer(&message);
            Ok(reply::empty(StatusCode::ACCEPTED))
        }
    }
}

/// The answer to bytes that are no message. A request of a live session that is over a bound of ours is refused by its id
/// alone: several clients give up a session for a status. Spec: SPEC T-06, T-17.
#[cold]
fn refuse_unread(
    service: &McpService,
    endpoint: &Endpoint,
    principal: &Principal,
    headers: &HeaderMap,
    error: &DecodeError,
) -> Response<Body> {
    let fault = reply::decode_fault(error);
    let id = error.id();
    let lives = || live_session(service, endpoint, principal, headers).is_some();
    if id.is_some() && error.is_over_bound() && lives() {
        return reply::refusal(&fault, id);
    }
    reply::fault_response(&fault, id)
}

/// The session of a request whose message was not read, if its headers are those of the legacy era and the session lives.
fn live_session(
    service: &McpService,
    endpoint: &Endpoint,
    principal: &Principal,
    headers: &HeaderMap,
) -> Option<Arc<Session>> {
    let is_legacy = check_version(headers).is_ok() && !modern::names_modern(headers);
    session_id(headers)
        .filter(|_| is_legacy)
        .and_then(|id| service.sessions.bind(id, principal, endpoint))
}

/// Reads a posted body. If only the byte budget has no room for it, reads it all the same: messages of a live session
/// other than requests are served then, and a request is refused.
///
/// # Errors
/// The answer: a JSON-RPC error where it is a request of a live session, else a status.
async fn read_post(
    service: &McpService,
    endpoint: &Endpoint,
    principal: &Principal,
    parts: &Parts,
    unread: BodyError,
    record: &AccessRecord,
) -> Result<(Bytes, BudgetExhausted), Response<Body>> {
    let session = live_session(service, endpoint, principal, &parts.headers);
    let holder = session
        .is_some()
        .then(|| service.bodies.holder(principal, &parts.extensions));
    let (body, fault, status) = match service.bodies.read_otherwise(holder, unread).await {
        Ok(read) => return Ok(read),
        Err(ReserveRefusal::Answered(response)) => return Err(response),
        Err(ReserveRefusal::Refused(body, fault, status)) => (body, fault, status),
    };
    record.outcome(error_word(fault.kind));
    let refused = service
        .bodies
        .scans
        .refuse_body(session.as_deref(), *body, &fault, status);
    Err(refused.await)
}

async fn open_session(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: Arc<Principal>,
    parts: &Parts,
    message: &Message,
    record: &AccessRecord,
) -> Result<Response<Body>, Fault> {
    let holder = service.bodies.holder(&principal, &parts.extensions);
    let (session, body) = initialize::open_session(
        service,
        endpoint,
        principal,
        &parts.headers,
        message,
        record,
        DeliveryMode::Streams,
    )
    .await?;
    session.share_replies(ReplyShare::new(&service.replies, holder));
    let mut response = reply::json_response(StatusCode::OK, body);
    // Spec: SPEC T-40.
    if let Ok(value) = HeaderValue::from_str(session.id()) {
        response.headers_mut().insert(MCP_SESSION_ID, value);
    }
    Ok(response)
}

/// The session of this request. Spec: SPEC T-42, T-43.
pub(super) fn bind(
    service: &McpService,
    given: Option<&str>,
    principal: &Principal,
    endpoint: &Endpoint,
) -> Result<Arc<Session>, Fault> {
    let id = given.ok_or_else(|| {
        Fault::downstream(
            FaultKind::MissingSession,
            "Mcp-Session-Id is missing: initialize first, then send it with every request",
        )
    })?;
    let session = service.sessions.bind(id, principal, endpoint);
    session.ok_or_else(reply::unknown_session)
}

/// DELETE: the client ends its session. Spec: SPEC T-45.
pub(super) fn delete(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: &Principal,
    headers: &HeaderMap,
    record: &AccessRecord,
) -> Response<Body> {
    // Spec: SPEC T-60.
    let bound = check_version(headers)
        .and_then(|_| bind(service, session_id(headers), principal, endpoint));
    match bound {
        Ok(session) => {
            record.session(session.tag());
            service.sessions.close(&session);
            reply::empty(StatusCode::NO_CONTENT)
        }
        Err(fault) => reply::fault_response(&fault, None),
    }
}

/// Why a posted message has no answer of its own.
enum PostStopped {
    /// Told by a status.
    Failed(Fault),
    /// Told by a JSON-RPC error alone: a request of a live session that may come again.
    Refused(Fault),
}

impl PostStopped {
    fn of_request(fault: Fault) -> Self {
        match fault.retry {
            RetryHint::Never => Self::Failed(fault),
            RetryHint::Same | RetryHint::After(_) => Self::Refused(fault),
        }
    }
}

impl From<Fault> for PostStopped {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

/// Notes method, name and id of a message in the access record.
pub(super) fn note_message(record: &AccessRecord, message: &Message) {
    if record.is_wanted() {
        let name = || {
            message
                .param_str("name")
                .or_else(|| message.param_str("uri"))
        };
        record.message(message.method(), message.id(), name().as_deref());
    }
}

/// The session id of the request; a malformed id is treated as unknown.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    headers::session_id(headers).unwrap_or(Some(""))
}

/// The revision that `MCP-Protocol-Version` names, if any. An unknown one is refused; a legacy revision that differs
/// from the negotiated one is tolerated. Spec: SPEC T-60…T-63.
pub(super) fn check_version(headers: &HeaderMap) -> Result<Option<Revision>, Fault> {
    headers::protocol_version(headers).map_err(|error| match error {
        HeaderError::UnknownVersion(requested) => reply::unsupported_version(&requested),
        other => Fault::downstream(FaultKind::InvalidRequest, other.to_string()),
    })
}
