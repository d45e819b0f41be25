//! Streamable HTTP of the legacy era: POST, GET and DELETE. Spec: SPEC §1, §1a–§1c.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::access_log::AccessRecord;
use super::media::{self, Accept};
use super::{Front, body, modern, reply};
use crate::call::{Call, Principal};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::protocol::headers::{self, HeaderError, LAST_EVENT_ID, MCP_SESSION_ID};
use crate::protocol::{Kind, Message, RequestId, Revision};
use crate::relay::Failure;
use crate::session::{CallLink, Delivery, EventId, NoRoom, Outlet, Session};
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::names::error_type;
use crate::telemetry::trace::{self, CallSpan, TRACEPARENT, TRACESTATE, TraceContext};

impl Front {
    /// POST: one message, or an array of them on a 2025-03-26 session.
    pub(super) async fn post(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        parts: &Parts,
        body: Body,
        record: &AccessRecord,
    ) -> Response<Body> {
        let accept = Accept::read(&parts.headers);
        if !(accept.json && accept.events) {
            return reply::plain(
                StatusCode::NOT_ACCEPTABLE,
                "Accept must list application/json and text/event-stream",
            );
        }
        if !media::is_json(&parts.headers) {
            return reply::plain(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Content-Type must be application/json",
            );
        }
        let bytes = match body::read(
            &parts.headers,
            body,
            self.settings.limits.body,
            self.settings.server.body_timeout,
        )
        .await
        {
            Ok(bytes) => bytes,
            Err(response) => return response,
        };
        record.received(bytes.len());
        if Message::is_batch(&bytes) {
            return self
                .post_batch(endpoint, principal, parts, bytes, record)
                .await;
        }
        let message = match Message::parse(bytes, self.settings.limits.json_depth) {
            Ok(message) => message,
            Err(error) => {
                record.outcome(error_type::BAD_REQUEST);
                return reply::fault_response(&reply::decode_fault(&error), error.id());
            }
        };
        note_message(record, &message);
        if modern::is_modern(&parts.headers, &message) {
            return self
                .post_modern(endpoint, principal, parts, message, record)
                .await;
        }
        match self
            .post_message(endpoint, principal, parts, message.clone(), record)
            .await
        {
            Ok(response) => response,
            Err(fault) => {
                record.outcome(super::exchange::error_word(fault.kind));
                reply::fault_response(&fault, message.id())
            }
        }
    }

    async fn post_message(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        parts: &Parts,
        message: Message,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Fault> {
        check_version(&parts.headers)?;
        let given = session_id(&parts.headers);
        if message.method() == Some("initialize") && message.kind() == Kind::Request {
            if given.is_some_and(|id| self.sessions.bind(id, &principal, endpoint).is_some()) {
                // Spec: SPEC T-49.
                return Err(Fault::downstream(
                    FaultKind::InvalidRequest,
                    "the session is initialized already",
                ));
            }
            return self
                .initialize(endpoint, principal, &parts.headers, &message, record)
                .await;
        }
        let session = self.bind(given, &principal, endpoint)?;
        record.session(session.tag());
        match message.kind() {
            Kind::Request => {
                let (call, link) =
                    self.begin(&session, principal, &parts.headers, message, Arc::default())?;
                Ok(self.exchange(call, session, link, record).await)
            }
            Kind::Notification => {
                self.relay.notification(&session, &message).await;
                Ok(reply::empty(StatusCode::ACCEPTED))
            }
            Kind::Response => {
                session.questions().answer(&message);
                Ok(reply::empty(StatusCode::ACCEPTED))
            }
        }
    }

    async fn initialize(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        message: &Message,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Fault> {
        let (session, body) = self
            .open_session(
                endpoint,
                principal,
                headers,
                message,
                record,
                Delivery::Streams,
            )
            .await?;
        let mut response = reply::json_response(StatusCode::OK, body);
        // Spec: SPEC T-40.
        if let Ok(value) = HeaderValue::from_str(session.id()) {
            response.headers_mut().insert(MCP_SESSION_ID, value);
        }
        Ok(response)
    }

    /// Opens a session as an `initialize` request asks, and gives the response to it.
    pub(super) async fn open_session(
        &self,
        endpoint: &Arc<Endpoint>,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        message: &Message,
        record: &AccessRecord,
        delivery: Delivery,
    ) -> Result<(Arc<Session>, Bytes), Fault> {
        if self.tasks.draining().is_cancelled() {
            return Err(Fault::new(
                FaultKind::GatewayBusy,
                crate::fault::Side::Gateway,
                "the gateway is shutting down, try again elsewhere",
            ));
        }
        let id = message.id().unwrap_or("null").to_owned();
        let parent =
            TraceContext::incoming(headers, message.meta(TRACEPARENT), message.meta(TRACESTATE));
        let span = CallSpan::server(&parent, "initialize", &endpoint.name);
        record.trace(span.context().trace_id());
        let answer = self
            .relay
            .initialize(principal, Arc::clone(endpoint), message, delivery)
            .await;
        span.finish(match &answer {
            Ok(_) => trace::Outcome::Ok,
            Err(failure) => super::exchange::failed(failure),
        });
        match answer {
            Ok((session, result)) => {
                record.session(session.tag());
                Ok((session, result.into_response(&id)))
            }
            Err(Failure::Fault(fault)) => {
                super::exchange::log_fault(&fault);
                Err(fault)
            }
            Err(Failure::Denied(denial)) => Err(Fault::downstream(
                FaultKind::InvalidRequest,
                denial.public(),
            )),
        }
    }

    /// Begins a call on its session; its messages go to `outlet`.
    pub(super) fn begin(
        &self,
        session: &Arc<Session>,
        principal: Arc<Principal>,
        headers: &HeaderMap,
        message: Message,
        outlet: Arc<Outlet>,
    ) -> Result<(Call, Arc<CallLink>), Fault> {
        let limits = &self.settings.limits;
        let id = message.id().and_then(RequestId::parse).ok_or_else(|| {
            Fault::downstream(FaultKind::InvalidRequest, "the request has no usable id")
        })?;
        let link = session
            .begin_call(
                id,
                outlet,
                limits.calls_per_session,
                limits.calls_per_principal,
            )
            .map_err(no_room)?;
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
        Ok((call, link))
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
        self.sessions.bind(id, principal, endpoint).ok_or_else(|| {
            COUNTERS.sessions_unknown.add(1);
            Fault::downstream(
                FaultKind::UnknownSession,
                "there is no such session, initialize again without Mcp-Session-Id",
            )
        })
    }

    /// GET: the stream of messages outside calls, or the rest of a stream that broke off.
    /// Spec: SPEC T-20, T-25, T-29.
    pub(super) fn get(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Arc<Principal>,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Response<Body> {
        if !Accept::read(headers).events {
            return reply::plain(
                StatusCode::NOT_ACCEPTABLE,
                "Accept must list text/event-stream",
            );
        }
        if let Err(fault) = check_version(headers) {
            return reply::fault_response(&fault, None);
        }
        match self.open_get(endpoint, principal, headers, record) {
            Ok(response) => response,
            Err(fault) => reply::fault_response(&fault, None),
        }
    }

    fn open_get(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Arc<Principal>,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Result<Response<Body>, Fault> {
        let session = self.bind(session_id(headers), principal, endpoint)?;
        record.session(session.tag());
        let polls = session.revision >= Revision::V2025_11_25;
        let permit = session
            .open_stream(self.settings.limits.streams_per_session)
            .map_err(no_room)?;
        let reader = match headers.get(LAST_EVENT_ID) {
            None => {
                if polls {
                    session.standalone().prime();
                }
                session.standalone().attach()
            }
            Some(last) => {
                let last = last.to_str().ok().and_then(EventId::parse);
                let known = last.filter(|last| last.tag == session.tag());
                let resumed =
                    known.and_then(|last| session.stream(last.stream)?.resume(last.seq).ok());
                let resumed = resumed.inspect(|_| COUNTERS.streams_resumed.add(1));
                resumed.ok_or_else(|| {
                    Fault::downstream(
                        FaultKind::UnknownSession,
                        "there is nothing to resume after this Last-Event-ID",
                    )
                })?
            }
        };
        let standalone = reader.stream().number() == session.standalone().number();
        if standalone {
            self.relay.listen(&session);
        }
        let ends = standalone.then(|| self.end_of_get(&session, principal));
        Ok(self.stream_body(&session, reader, None, ends, polls, permit))
    }

    /// Resolves when a stream without an end of its own has to end: with its session, its token, or the gateway.
    pub(super) fn end_of_get(
        &self,
        session: &Arc<Session>,
        principal: &Principal,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let closed = session.closed().clone();
        let draining = self.tasks.draining().clone();
        // A token that is accepted for the sake of clocks may have expired already.
        let grace = self.settings.sessions.token_grace;
        let left = principal
            .expires_at()
            .map(|at| at.saturating_add(grace).saturating_sub(self.auth.now()));
        Box::pin(async move {
            let expired = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closed.cancelled() => {}
                () = draining.cancelled() => {}
                () = expired => {}
            }
        })
    }

    /// DELETE: the client has had enough. Spec: SPEC T-45.
    pub(super) fn delete(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        principal: &Principal,
        headers: &HeaderMap,
        record: &AccessRecord,
    ) -> Response<Body> {
        match self.bind(session_id(headers), principal, endpoint) {
            Ok(session) => {
                record.session(session.tag());
                self.sessions.close(&session);
                reply::empty(StatusCode::NO_CONTENT)
            }
            Err(fault) => reply::fault_response(&fault, None),
        }
    }
}

/// What an access line says of a message.
pub(super) fn note_message(record: &AccessRecord, message: &Message) {
    if record.is_wanted() {
        let name = || {
            message
                .param_str("name")
                .or_else(|| message.param_str("uri"))
        };
        record.message(
            message.method().unwrap_or_default(),
            message.id(),
            name().as_deref(),
        );
    }
}

pub(super) fn no_room(refused: NoRoom) -> Fault {
    let kind = match refused {
        NoRoom::IdInUse => FaultKind::InvalidRequest,
        NoRoom::TooManyCalls | NoRoom::TooManyStreams => FaultKind::CallerBusy,
    };
    Fault::downstream(kind, refused.to_string())
}

/// The session id that was sent; one that cannot be any is as unknown as a wrong one.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    headers::session_id(headers).unwrap_or(Some(""))
}

/// A header that names no revision we know is refused; a legacy one that differs from the
/// negotiated is tolerated. Spec: SPEC T-60…T-63.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), Fault> {
    let named = headers::protocol_version(headers);
    named.map(drop).map_err(|error| match error {
        HeaderError::UnknownVersion(requested) => reply::unsupported_version(&requested),
        other => Fault::downstream(FaultKind::InvalidRequest, other.to_string()),
    })
}
