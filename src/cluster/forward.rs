//! A request on its way to the replica that owns its session, and what it carries there.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use tokio::time::{Instant, sleep};

use super::connections::{ForwardedAnswer, ForwardedBody, OnWay};
use super::failure::{ForwardFailure, Unforwarded};
use super::membership::Membership;
use super::peers::Peer;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::forward_ended;

/// The header of a forwarded request that names the replica it is for.
const FOR_NODE: HeaderName = HeaderName::from_static("drawbridge-for");
/// Between two attempts to reach a replica.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a forwarded request is for `node`. Removes what the other replica added.
pub fn is_for(node: u32, headers: &mut HeaderMap) -> bool {
    let named = headers.remove(FOR_NODE);
    let named = named.as_ref().and_then(|value| value.to_str().ok());
    named.and_then(|text| text.parse().ok()) == Some(node)
}

/// Passes requests on.
#[derive(Debug)]
pub(super) struct Forwarder {
    membership: Arc<Membership>,
    tasks: TaskSpawner,
}

impl Forwarder {
    pub(super) fn new(membership: Arc<Membership>, tasks: TaskSpawner) -> Self {
        Self { membership, tasks }
    }

    /// See [`super::Cluster::forward`].
    pub(super) async fn forward(
        &self,
        node: u32,
        request: Request<ForwardedBody>,
        until: Instant,
        on_way: &OnWay<'_>,
    ) -> Result<Response<ForwardedAnswer>, Unforwarded> {
        let started = Instant::now();
        let result = self.forwarded(node, request, until, on_way).await;
        let failure = result
            .as_ref()
            .err()
            .map(|unforwarded| &unforwarded.failure);
        forward_ended(
            failure.map_or("ok", ForwardFailure::word),
            started.elapsed(),
        );
        result
    }

    async fn forwarded(
        &self,
        node: u32,
        request: Request<ForwardedBody>,
        until: Instant,
        on_way: &OnWay<'_>,
    ) -> Result<Response<ForwardedAnswer>, Unforwarded> {
        let mut request = prepared(node, request);
        let mut failed = None;
        let refused = |failure, unsent: Option<Request<ForwardedBody>>| {
            let unsent = unsent.map(Request::into_body);
            Err(Unforwarded { failure, unsent })
        };
        loop {
            let known = self.peer(node).await;
            let is_over = known.as_ref().is_none_or(|(_, is_lapsed)| *is_lapsed);
            // The address of a replica without a lease is tried once: after an outage of Redis it may live.
            if let Some(failure) = failed.take_if(|_| is_over || Instant::now() >= until) {
                return refused(failure, Some(request));
            }
            let Some((peer, is_lapsed)) = known else {
                return refused(ForwardFailure::NoReplica, Some(request));
            };
            let lapsed = self.lapsed(node, is_lapsed);
            let sent = peer.connections.send(request, &self.tasks, on_way, lapsed);
            let failure = match sent.await {
                Ok(answer) if is_of_another(&answer) => {
                    return refused(ForwardFailure::AnotherReplica, None);
                }
                Ok(answer) => return Ok(answer),
                Err((failure, None)) => return refused(failure, None),
                Err((failure, Some(unsent))) => {
                    request = unsent;
                    failure
                }
            };
            failed = Some(failure);
            if !is_lapsed {
                // The end of its lease is seen at the next heartbeat.
                self.membership.refresh().await;
                sleep(PAUSE).await;
            }
        }
    }

    /// Waits until the lease of a replica ends that does not answer; for ever where it is over already.
    async fn lapsed(&self, node: u32, is_lapsed: bool) {
        if is_lapsed {
            return pending().await;
        }
        // A living replica answers sooner.
        sleep(PAUSE).await;
        self.membership.lapsed(node).await;
    }

    /// The replica with this number, looked up where it is not known, and whether its lease is over.
    async fn peer(&self, node: u32) -> Option<(Arc<Peer>, bool)> {
        let known = || {
            let peers = self.membership.peers();
            let (peer, is_lapsed) = peers.get(node)?;
            Some((Arc::clone(peer), is_lapsed))
        };
        if let Some(known) = known() {
            return Some(known);
        }
        self.membership.refresh().await;
        known()
    }
}

/// Whether a replica says that the request is for another one: 421 is also what a replica says of a `Host` that it does
/// not serve.
fn is_of_another(answer: &Response<ForwardedAnswer>) -> bool {
    answer.status() == StatusCode::MISDIRECTED_REQUEST && answer.headers().contains_key(FOR_NODE)
}

/// The answer to a request for another replica, and to one of a session that another replica owns.
#[must_use]
pub fn misdirected<B: Default>() -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    let other = HeaderValue::from_static("other");
    response.headers_mut().insert(FOR_NODE, other);
    response
}

/// The request as HTTP/1.1 with all of its end-to-end headers. Spec: RFC 9110 §7.6.1.
fn prepared(node: u32, request: Request<ForwardedBody>) -> Request<ForwardedBody> {
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().map(ToString::to_string);
    let path = parts.uri.path_and_query().cloned();
    parts.uri = path.map_or_else(Uri::default, Uri::from);
    parts.version = Version::HTTP_11;
    remove_hop_by_hop(&mut parts.headers);
    if !parts.headers.contains_key(HOST)
        && let Some(host) = authority.and_then(|text| HeaderValue::try_from(text).ok())
    {
        parts.headers.insert(HOST, host);
    }
    parts.headers.insert(FOR_NODE, HeaderValue::from(node));
    parts.extensions.clear();
    Request::from_parts(parts, body)
}

/// Removes hop-by-hop headers: the known hop-by-hop headers, and the headers named in `Connection`.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = headers.keys().filter(|name| is_hop_by_hop(name)).cloned();
    let unsent: Vec<HeaderName> = named.into_iter().chain(known).collect();
    for name in unsent {
        headers.remove(name);
    }
}

/// Whether a header is known to be for one connection. Spec: RFC 9110 §7.6.1.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}
