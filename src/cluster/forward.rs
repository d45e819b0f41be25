//! A request on its way to the replica that owns its session, and what it carries there.

use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CONNECTION, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use tokio::time::{Instant, sleep};

use super::connections::{ForwardedAnswer, ForwardedBody, OnWay};
use super::failure::ForwardFailure;
use super::membership::Membership;
use super::peers::Peer;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::forward_ended;

/// The header of a forwarded request that names the replica it is for.
const FOR_NODE: HeaderName = HeaderName::from_static("drawbridge-for");
/// Hop-by-hop headers that have no constant. Spec: RFC 9110 §7.6.1.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Beyond a lease, for the replica that takes over.
const TAKE_OVER: Duration = Duration::from_secs(2);
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
        on_way: &OnWay<'_>,
    ) -> Result<Response<ForwardedAnswer>, ForwardFailure> {
        let started = Instant::now();
        let result = self.forwarded(node, request, on_way).await;
        let outcome = result.as_ref().err().map_or("ok", ForwardFailure::word);
        forward_ended(outcome, started.elapsed());
        result
    }

    async fn forwarded(
        &self,
        node: u32,
        request: Request<ForwardedBody>,
        on_way: &OnWay<'_>,
    ) -> Result<Response<ForwardedAnswer>, ForwardFailure> {
        let until = Instant::now() + self.membership.length() + TAKE_OVER;
        let mut request = prepared(node, request);
        loop {
            let (peer, is_lapsed) = self.peer(node).await.ok_or(ForwardFailure::NoReplica)?;
            let failure = match peer.connections.send(request, &self.tasks, on_way).await {
                Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {
                    return another_or(answer);
                }
                Ok(answer) => return Ok(answer),
                Err((failure, None)) => return Err(failure),
                Err((failure, Some(unsent))) => {
                    request = unsent;
                    failure
                }
            };
            if is_lapsed || Instant::now() >= until {
                return Err(failure);
            }
            sleep(PAUSE).await;
        }
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

/// The answer, unless another replica has given it: 421 is also what a replica says of a `Host` that it does not serve.
fn another_or(
    answer: Response<ForwardedAnswer>,
) -> Result<Response<ForwardedAnswer>, ForwardFailure> {
    if answer.headers().contains_key(FOR_NODE) {
        return Err(ForwardFailure::AnotherReplica);
    }
    Ok(answer)
}

/// The answer to a request for another replica.
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

/// Removes hop-by-hop headers: the known ones, and those that `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.into_iter().chain(known) {
        headers.remove(name);
    }
}
