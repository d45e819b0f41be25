//! Requests of sessions that another replica owns: passed on to it as they are, streams and disconnects included.
//!
//! The entry replica has checked Host, Origin, path, token and handle, and counts nothing: the owner verifies the token
//! again, and limits, audit record and access line are its own. A request that was forwarded is never forwarded again.
//! Spec: DESIGN §8.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Extensions, HeaderName, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::access_log::AccessRecord;
use super::listener::{ConnectionPermit, ResponseService};
use super::streamable::session_id;
use super::{McpService, ServedTransport, http_sse, reply};
use crate::call::Principal;
use crate::cause::chain;
use crate::cluster::{self, Cluster, ForwardFailure, REPLICA_PATH};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::telemetry::request_tag;

/// The client's address, for the owner.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// After a lost owner: for its lease to end, and for another replica to take over.
const COME_BACK: HeaderValue = HeaderValue::from_static("2");

/// Marks a request that another replica has passed on, which has authenticated itself.
#[derive(Debug, Clone, Copy)]
struct ForwardedRequest;

/// Marks an answer of another replica: its headers are complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedResponse;

impl McpService {
    /// The service of the internal listener: forwarded requests, and the greeting of this replica.
    pub fn replica_service(self: &Arc<Self>, cluster: Arc<Cluster>) -> impl ResponseService {
        let service = Arc::clone(self);
        tower::service_fn(move |request: http::Request<Incoming>| {
            let (service, cluster) = (Arc::clone(&service), Arc::clone(&cluster));
            async move { Ok(Box::pin(service.serve_replica(&cluster, request.map(Body::new))).await) }
        })
    }

    async fn serve_replica(
        self: Arc<Self>,
        cluster: &Cluster,
        mut request: Request,
    ) -> Response<Body> {
        if request.method() == Method::GET && request.uri().path() == REPLICA_PATH {
            let greeting = serde_json::to_vec(&cluster.greeting()).unwrap_or_default();
            return reply::json_response(StatusCode::OK, greeting.into());
        }
        if !cluster::is_for(cluster.node(), request.headers_mut()) {
            return cluster::misdirected();
        }
        request.extensions_mut().insert(ForwardedRequest);
        self.serve(request).await
    }

    /// The owner of the session that a request names, where that is another replica. Handles that are forged, foreign or
    /// over age have none: they are refused here, as any other unknown handle.
    pub(super) fn foreign_owner(
        &self,
        request: &Request,
        principal: &Principal,
        endpoint: &Endpoint,
        way: ServedTransport,
    ) -> Option<Ownership> {
        if !self.may_forward(request.extensions()) {
            return None;
        }
        let owner = match way {
            ServedTransport::Streamable => {
                let id = session_id(request.headers())?;
                self.sessions.owner_of(id, principal, endpoint)?
            }
            ServedTransport::Messages => {
                let handle = request.uri().query().and_then(http_sse::handle)?;
                self.sessions
                    .owner_of_connection(handle, principal, endpoint)?
            }
            ServedTransport::Events | ServedTransport::Socket => return None,
        };
        self.is_foreign(owner).then_some(owner)
    }

    /// Whether a request may be forwarded: this is a cluster, and the request was not forwarded already.
    pub(super) fn may_forward(&self, extensions: &Extensions) -> bool {
        self.cluster.is_some() && extensions.get::<ForwardedRequest>().is_none()
    }

    /// Whether another replica is meant.
    pub(super) fn is_foreign(&self, owner: Ownership) -> bool {
        owner.node != self.sessions.ownership().node
    }

    /// Passes a request on to its owner, whose answer is the answer.
    pub(super) async fn forward(
        &self,
        owner: Ownership,
        mut request: Request,
        record: &AccessRecord,
    ) -> Response<Body> {
        let Some(cluster) = &self.cluster else {
            return reply::empty(StatusCode::NOT_FOUND);
        };
        let client = request
            .extensions()
            .get()
            .and_then(ConnectionPermit::client);
        describe(&mut request, client);
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        record.forwarded(true);
        match cluster.forward(owner.node, request).await {
            Ok(answer) => {
                let mut answer = answer.map(Body::new);
                cluster::remove_hop_by_hop(answer.headers_mut());
                answer.extensions_mut().insert(ForwardedResponse);
                answer
            }
            Err(failure) => {
                record.forwarded(false);
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
}

/// Adds what the owner has to know, in place of what the client may have sent under these names.
fn describe(request: &mut Request, client: Option<IpAddr>) {
    let headers = request.headers_mut();
    headers.remove(FORWARDED_FOR);
    if let Some(client) = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok()) {
        headers.insert(FORWARDED_FOR, client);
    }
    headers.remove(request_tag::HEADER);
    if let Some(tag) = request_tag::current().and_then(|tag| tag.header()) {
        headers.insert(request_tag::HEADER, tag);
    }
}

/// A session whose owner is gone may come back, so that its client must not be told 404. What may have run is not to be
/// sent again by a client that obeys `Retry-After`.
fn refusal(failure: &ForwardFailure) -> Response<Body> {
    if failure.is_uncertain() {
        let text =
            "the connection to the replica of this session was lost: the request may have run";
        return reply::plain(StatusCode::BAD_GATEWAY, text);
    }
    let text = "the replica of this session cannot be reached now";
    let mut response = reply::plain(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(RETRY_AFTER, COME_BACK);
    response
}
