//! Where a request is served: here, or at another replica.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::{Method, Response};

use super::access_log::AccessRecord;
use super::adoption::NamedSession;
use super::forwarding::{PassedOn, RequestForwarder};
use super::listener::ConnectionPermit;
use super::paths::ServedTransport;
use super::{McpService, held_request, http_sse, modern};
use crate::call::Principal;
use crate::config::AuthMode;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::headers;
use crate::session::{RequestedSession, SessionUse};

/// Where a request is served.
pub(super) enum RequestPlace {
    /// Here. A session that the request names stays open while the `SessionUse` is kept.
    Here(Option<SessionUse>),
    /// At the replica that has its session.
    Session(NamedSession),
    /// At the replica that has its HTTP+SSE stream.
    Stream(Ownership),
    /// At any other replica: this one drains, and the request may open a session.
    NextReplica,
}

/// The client of a request, what it asks, and its address.
pub(super) type RequestCaller<'a> = (
    &'a Arc<Principal>,
    (&'a Arc<Endpoint>, ServedTransport),
    IpAddr,
);

impl RequestPlace {
    /// Where a request is served, as its headers say.
    pub(super) fn of(
        service: &McpService,
        forwarder: &RequestForwarder,
        request: &Request,
        principal: &Arc<Principal>,
        (endpoint, way): (&Arc<Endpoint>, ServedTransport),
    ) -> Self {
        match way {
            // Spec: SPEC M-02: its session id means nothing, also not where it is served.
            ServedTransport::Streamable if modern::names_modern(request.headers()) => {
                Self::Here(None)
            }
            ServedTransport::Streamable => match headers::session_id(request.headers()) {
                Ok(Some(id)) => {
                    let requested = forwarder.requested_session(id, principal, endpoint);
                    let handle = match requested {
                        RequestedSession::Here(used) => return Self::Here(Some(used)),
                        RequestedSession::Unknown => return Self::Here(None),
                        RequestedSession::Absent(handle) => handle,
                    };
                    Self::Session(NamedSession {
                        id: id.to_owned(),
                        handle,
                        principal: Arc::clone(principal),
                        endpoint: Arc::clone(endpoint),
                        holder: service.bodies.holder(principal, request.extensions()),
                        implicit: None,
                    })
                }
                Ok(None) if opens_at_next_replica(service, request) => Self::NextReplica,
                Ok(None) | Err(_) => Self::Here(None),
            },
            ServedTransport::Messages => {
                let handle = request.uri().query().and_then(http_sse::handle);
                let owner = handle.and_then(|handle| {
                    forwarder.owner_of_events(request, handle, principal, endpoint)
                });
                owner.map_or(Self::Here(None), Self::Stream)
            }
            ServedTransport::Events | ServedTransport::Socket => Self::Here(None),
        }
    }

    /// Passes a request on to the replica that serves it. Returns the request, and its session, if it is to be served here
    /// after all.
    ///
    /// # Errors
    /// The answer of the other replica, or the refusal where it cannot be reached.
    pub(super) async fn pass_on(
        self,
        service: &McpService,
        forwarder: &RequestForwarder,
        (principal, target, from): RequestCaller<'_>,
        mut request: Request,
        record: &AccessRecord,
    ) -> Result<(Request, Option<SessionUse>), Box<Response<Body>>> {
        if let Self::Session(named) = &self {
            match held_request::enter(service, named, request).await {
                Ok((own, used)) => return Ok((own, Some(used))),
                Err(other) => request = other,
            }
        }
        if let Some(place) = request.extensions().get::<ConnectionPermit>() {
            let is_limited = service.settings.auth.mode != AuthMode::None;
            place.passed_on(principal.owner(), is_limited);
        }
        match self.send(forwarder, (request, Some(from)), record).await {
            PassedOn::Answered(response) => Err(Box::new(response)),
            PassedOn::Here(own) => match Self::of(service, forwarder, &own, principal, target) {
                Self::Here(used) => Ok((own, used)),
                // Its session is over.
                _ => Ok((own, None)),
            },
        }
    }

    /// Sends a request to where it is served.
    async fn send(
        self,
        forwarder: &RequestForwarder,
        sent: (Request, Option<IpAddr>),
        record: &AccessRecord,
    ) -> PassedOn {
        match self {
            Self::Here(_) => PassedOn::Here(sent.0),
            Self::Session(named) => forwarder.pass_on(&named, sent, record).await,
            Self::Stream(owner) => forwarder.pass_to_keeper(owner, sent, false, record).await,
            Self::NextReplica => forwarder.pass_new(sent, record).await,
        }
    }
}

/// Whether a legacy request without a session may open one, while this replica drains.
fn opens_at_next_replica(service: &McpService, request: &Request) -> bool {
    request.method() == Method::POST && service.tasks.draining().is_cancelled()
}
