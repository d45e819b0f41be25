//! Requests of sessions that another replica owns: passed on to it as they are, streams and disconnects included.
//!
//! The entry replica has checked Host, Origin, path, token and handle, and counts nothing: the owner verifies the token
//! again, and limits, audit record and access line are its own. A request whose body names the owner is out of the
//! caller's rate by then, and says so. A request that was forwarded is never forwarded again.
//! Spec: DESIGN §8.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Extensions, HeaderName, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::access_log::AccessRecord;
use super::reply;
use crate::call::Principal;
use crate::cause::chain;
use crate::cluster::{self, Cluster, ForwardFailure, REPLICA_PATH, Unforwarded};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::{headers, json};
use crate::session::{SessionId, SessionRegistry};
use crate::store::events::SessionKey;
use crate::store::records::RecordState;
use crate::telemetry::names::error_type;
use crate::telemetry::request_tag;

/// The client's address, for the owner.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Says that a forwarded request was taken out of the rate of its caller.
const PAID: HeaderName = HeaderName::from_static("drawbridge-paid");
/// After a lost owner: for its lease to end, and for another replica to take over.
const COME_BACK: HeaderValue = HeaderValue::from_static("2");

/// Marks a request that another replica has passed on, which has authenticated itself.
#[derive(Debug, Clone, Copy)]
struct ForwardedRequest {
    /// Whether the entry replica has taken it out of the rate of its caller.
    is_paid: bool,
}

/// Marks an answer of another replica: its headers are complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedResponse;

/// Passes requests on that another replica has to answer.
#[derive(Debug)]
pub(super) struct RequestForwarder {
    cluster: Arc<Cluster>,
    sessions: Arc<SessionRegistry>,
}

impl RequestForwarder {
    pub(super) fn new(cluster: Arc<Cluster>, sessions: &Arc<SessionRegistry>) -> Self {
        let sessions = Arc::clone(sessions);
        Self { cluster, sessions }
    }

    /// The session that a request names, where another replica owns it. Handles that are forged, foreign or
    /// over age have none: they are refused here, as any other unknown handle.
    pub(super) fn owner_of_session(
        &self,
        request: &Request,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let id = headers::session_id(request.headers()).ok()??;
        let session = self.sessions.read_id(id, principal, endpoint)?;
        self.is_foreign(session.owner, request.extensions())
            .then_some(session)
    }

    /// The same for the `handle` of an HTTP+SSE stream.
    pub(super) fn owner_of_events(
        &self,
        request: &Request,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let session = self.sessions.connection(handle, principal, endpoint)?;
        self.is_foreign(session.owner, request.extensions())
            .then_some(session)
    }

    /// Whether a request is for another replica. A request that was forwarded is not forwarded again.
    pub(super) fn is_foreign(&self, owner: Ownership, extensions: &Extensions) -> bool {
        owner.node != self.cluster.node() && extensions.get::<ForwardedRequest>().is_none()
    }

    /// Passes a request of `client` on to the owner of what it names, of `session` where that is one. The owner's answer
    /// is the answer; without an owner the record of the session says whether it is over. `is_paid` says whether the
    /// request was taken out of the rate of its caller.
    pub(super) async fn forward(
        &self,
        (owner, session): (Ownership, Option<SessionKey>),
        (mut request, client): (Request, Option<IpAddr>),
        is_paid: bool,
        record: &AccessRecord,
    ) -> Response<Body> {
        describe(&mut request, client, is_paid);
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        // The owner writes the line of what it was sent, also where the client leaves.
        let on_way = |is_on_way| record.forwarded(is_on_way);
        let until = Instant::now() + self.cluster.patience();
        let sent = self.cluster.forward(owner.node, request, until, &on_way);
        match sent.await {
            Ok(answer) => {
                let mut answer = answer.map(Body::new);
                cluster::remove_hop_by_hop(answer.headers_mut());
                answer.extensions_mut().insert(ForwardedResponse);
                answer
            }
            Err(Unforwarded { failure, .. }) => {
                record.forwarded(false);
                if let Some(session) = session
                    && !failure.is_uncertain()
                    && self.is_over(session).await
                {
                    record.outcome(error_type::SESSION);
                    return reply::fault_response(&reply::unknown_session(), None);
                }
                record.outcome("owner_unreachable");
                tracing::debug!(
                    node = owner.node,
                    error = chain(&failure),
                    "request not forwarded"
                );
                refusal(&failure)
            }
        }
    }

    /// Whether the record of a session says that it is over. One that is absent has expired, unless Redis may have lost
    /// it and its owner may still write it again.
    async fn is_over(&self, session: SessionKey) -> bool {
        match self.sessions.recorded(session).await {
            Some(RecordState::Over) => true,
            Some(RecordState::Absent) => self.cluster.is_redis_settled(),
            Some(RecordState::Owned { .. }) | None => false,
        }
    }
}

/// Takes in a request over the internal listener, marked as forwarded.
///
/// # Errors
/// The answer: the greeting of this replica, or that the request is for another one.
pub(super) fn take_in(
    cluster: &Cluster,
    mut request: Request,
) -> Result<Request, Box<Response<Body>>> {
    if request.method() == Method::GET && request.uri().path() == REPLICA_PATH {
        let greeting = serde_json::to_vec(&cluster.greeting()).unwrap_or_default();
        return Err(Box::new(Response::new(Body::from(greeting))));
    }
    if !cluster::is_for(cluster.node(), request.headers_mut()) {
        return Err(Box::new(cluster::misdirected()));
    }
    let is_paid = request.headers_mut().remove(PAID).is_some();
    request
        .extensions_mut()
        .insert(ForwardedRequest { is_paid });
    Ok(request)
}

/// Whether another replica has taken a request out of the rate of its caller.
pub(super) fn is_paid(extensions: &Extensions) -> bool {
    let forwarded = extensions.get::<ForwardedRequest>();
    forwarded.is_some_and(|forwarded| forwarded.is_paid)
}

/// Adds what the owner has to know, in place of what the client may have sent under these names.
fn describe(request: &mut Request, client: Option<IpAddr>, is_paid: bool) {
    let headers = request.headers_mut();
    // First, so that a client cannot have what follows removed by naming it in `Connection`.
    cluster::remove_hop_by_hop(headers);
    headers.remove(FORWARDED_FOR);
    if let Some(client) = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok()) {
        headers.insert(FORWARDED_FOR, client);
    }
    headers.remove(PAID);
    if is_paid {
        headers.insert(PAID, HeaderValue::from_static("1"));
    }
    headers.remove(request_tag::HEADER);
    if let Some(tag) = request_tag::current().and_then(|tag| tag.header()) {
        headers.insert(request_tag::HEADER, tag);
    }
}

/// A session whose owner is gone may come back, so that its client must not be told 404. What may have run is not to be
/// sent again by a client that obeys `Retry-After`.
fn refusal(failure: &ForwardFailure) -> Response<Body> {
    let (status, text) = if failure.is_uncertain() {
        let text =
            "the connection to the replica of this session was lost: the request may have run";
        (StatusCode::BAD_GATEWAY, text)
    } else {
        let text = "the replica of this session cannot be reached now";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let body = json::object([("error", json::quote(text))]);
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, COME_BACK);
    }
    response
}

#[cfg(test)]
mod tests {
    use http::header::CONNECTION;

    use super::*;

    #[test]
    fn client_cannot_have_its_address_or_the_request_id_removed() {
        let named = "x-forwarded-for, x-request-id, x-own";
        let mut request = Request::builder()
            .header(CONNECTION, named)
            .header("x-own", "1")
            .header(FORWARDED_FOR, "198.51.100.7")
            .body(Body::empty())
            .unwrap();
        describe(&mut request, Some(IpAddr::from([192, 0, 2, 1])), false);
        // As it is done once more where the request is made for the other replica.
        cluster::remove_hop_by_hop(request.headers_mut());
        let headers = request.headers();
        assert_eq!(headers.get(FORWARDED_FOR).unwrap(), "192.0.2.1");
        assert!(!headers.contains_key(CONNECTION) && !headers.contains_key("x-own"));
    }

    #[test]
    fn client_cannot_say_that_its_request_is_paid() {
        for (is_paid, expected) in [(false, None), (true, Some("1"))] {
            let request = Request::builder().header(PAID, "yes");
            let mut request = request.body(Body::empty()).unwrap();
            describe(&mut request, None, is_paid);
            let said = request.headers().get(PAID);
            assert_eq!(said.map(|said| said.to_str().unwrap()), expected);
        }
    }
}
