//! Streamable HTTP of the legacy era: POST and DELETE. Spec: SPEC §1, §1a, §1c.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::access_log::AccessRecord;
use super::admission::MessageDue;
use super::body::BodyError;
use super::busy::RETRY_AFTER;
use super::call_telemetry::error_word;
use super::media::AcceptedMedia;
use super::over_budget::{ReserveRefusal, is_dropped, over_budget};
use super::{McpService, modern, reply};
use crate::budget::BudgetExhausted;
use crate::call::{Call, Principal};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::headers::{self, HeaderError, MCP_SESSION_ID};
use crate::protocol::{Message, MessageKind, RequestId, Revision};
use crate::session::{CallEntry, DeliveryMode, LegacyClientLink, NoRoom, ResponseStream, Session};
use crate::telemetry::names::error_type;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE, TraceContext};

impl McpService {
    /// POST of one message, or of an array on a 2025-03-26 session.
    pub(super) async fn post(
        self: &Arc<Self>,
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
        let holder = self.holder(&principal, &parts.extensions);
        let (bytes, over) = match self.read_json(&parts.headers, body, holder).await {
            Ok(bytes) => (bytes, None),
            Err(unread) => {
                let read = self.read_post(endpoint, &principal, parts, unread, record);
                match Box::pin(read).await {
                    Ok((bytes, exhausted)) => (bytes, Some(exhausted)),
                    Err(response) => return response,
                }
            }
        };
        record.received(bytes.len());
        if Message::is_batch(&bytes) {
            let posted = self.post_batch(endpoint, principal, parts, (bytes, due, over), record);
            return Box::pin(posted).await;
        }
        let message = match Message::parse(bytes, self.settings.limits.of_messages()) {
            Ok(message) => message,
            Err(error) => {
                record.outcome(error_type::BAD_REQUEST);
                return reply::fault_response(&reply::decode_fault(&error), error.id());
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
            let posted = self.post_modern(endpoint, principal, parts, (message, due), record);
            return Box::pin(posted).await;
        }
        match self
            .post_message(endpoint, principal, parts, (message.clone(), due), record)
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
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        parts: &Parts,
        (message, due): (Message, MessageDue),
        record: &AccessRecord,
    ) -> Result<Response<Body>, PostStopped> {
        let named = check_version(&parts.headers)?;
        let given = session_id(&parts.headers);
        if message.method() == Some("initialize") && message.kind() == MessageKind::Request {
            if given.is_some_and(|id| self.sessions.bind(id, &principal, endpoint).is_some()) {
                // Spec: SPEC T-49.
                let text = "the session is initialized already";
                return Err(Fault::downstream(FaultKind::InvalidRequest, text).into());
            }
            Box::pin(self.pay(principal.owner(), due)).await?;
            let opened = self.initialize(endpoint, principal, parts, &message, record);
            return Ok(Box::pin(opened).await?);
        }
        let session = self.bind(given, &principal, endpoint)?;
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
                let begun = self
                    .begin(
                        &session,
                        principal,
                        &parts.headers,
                        message,
                        response_stream,
                        due,
                    )
                    .map_err(PostStopped::of_request)?;
                Ok(self.exchange(begun, session, &parts.headers, record).await)
            }
            MessageKind::Notification => {
                if due.is_some() {
                    Box::pin(self.pass_on_when_due(session, message, due)).await;
                } else {
                    let held = self.pass_on(&session, &message);
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

    /// A body that was not read for its size: what is no request of a live session's is read nonetheless where
    /// the byte budget alone has no room for it. Then a request is still to be refused.
    ///
    /// # Errors
    /// The answer: a JSON-RPC error where it is a request of a live session, else a status.
    async fn read_post(
        &self,
        endpoint: &Endpoint,
        principal: &Principal,
        parts: &Parts,
        unread: BodyError,
        record: &AccessRecord,
    ) -> Result<(Bytes, BudgetExhausted), Response<Body>> {
        let headers = &parts.headers;
        let is_legacy = check_version(headers).is_ok() && !modern::names_modern(headers);
        let session = session_id(headers)
            .filter(|_| is_legacy)
            .and_then(|id| self.sessions.bind(id, principal, endpoint));
        let holder = session
            .is_some()
            .then(|| self.holder(principal, &parts.extensions));
        let (body, fault, status) = match self.read_otherwise(holder, unread).await {
            Ok(read) => return Ok(read),
            Err(ReserveRefusal::Answered(response)) => return Err(response),
            Err(ReserveRefusal::Refused(body, fault, status)) => (body, fault, status),
        };
        record.outcome(error_word(fault.kind));
        let refused = self.refuse_body(session.as_deref(), *body, &fault, status);
        Err(refused.await)
    }

    async fn initialize(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        parts: &Parts,
        message: &Message,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Fault> {
        let holder = self.holder(&principal, &parts.extensions);
        let (session, body) = self
            .open_session(
                endpoint,
                principal,
                &parts.headers,
                message,
                record,
                DeliveryMode::Streams,
            )
            .await?;
        session.share_replies(self.reply_share(holder));
        let mut response = reply::json_response(StatusCode::OK, body);
        // Spec: SPEC T-40.
        if let Ok(value) = HeaderValue::from_str(session.id()) {
            response.headers_mut().insert(MCP_SESSION_ID, value);
        }
        Ok(response)
    }

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
        let link = session.begin_call(id, response_stream).map_err(no_room)?;
        if self.forwarder.is_some() && self.relay.is_retry_safe(&session.endpoint, &message) {
            link.keep_request(message.bytes().clone());
        }
        let entry = self.enter(session, message.method(), due);
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

    /// The session of this request. Spec: SPEC T-42, T-43.
    pub(super) fn bind(
        &self,
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
        let session = self.sessions.bind(id, principal, endpoint);
        session.ok_or_else(reply::unknown_session)
    }

    /// DELETE: the client has had enough. Spec: SPEC T-45.
    pub(super) fn delete(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Principal,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Response<Body> {
        // Spec: SPEC T-60.
        let bound = check_version(headers)
            .and_then(|_| self.bind(session_id(headers), principal, endpoint));
        match bound {
            Ok(session) => {
                record.session(session.tag());
                self.sessions.close(&session);
                reply::empty(StatusCode::NO_CONTENT)
            }
            Err(fault) => reply::fault_response(&fault, None),
        }
    }
}

/// A call that was begun, and how it comes to its place.
pub(super) struct BegunCall {
    pub(super) call: Call,
    pub(super) link: Arc<LegacyClientLink>,
    pub(super) entry: CallEntry,
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

pub(super) fn no_room(refused: NoRoom) -> Fault {
    let kind = match refused {
        NoRoom::IdInUse => FaultKind::InvalidRequest,
        NoRoom::TooManyCalls | NoRoom::TooManyStreams => FaultKind::CallerBusy,
    };
    Fault::new(kind, FaultSide::Gateway, refused.to_string()).retry(RetryHint::After(RETRY_AFTER))
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
