//! The greeting by which a replica is recognised.

use std::future::pending;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use serde::{Deserialize, Serialize};

use super::failure::ForwardFailure;
use super::peers::Peer;
use crate::cause::lacks_descriptors;
use crate::runtime::lifecycle::TaskSpawner;

/// The path of the greeting.
pub const REPLICA_PATH: &str = "/drawbridge/replica";

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 4096;

/// What a replica says at [`REPLICA_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaGreeting {
    /// Its number.
    pub node: u32,
    /// Its release.
    pub version: String,
    /// Milliseconds left of its lease.
    pub lease_ms: u64,
    /// Milliseconds in which it adopts no session, as Redis was away; earlier releases do not say.
    #[serde(default)]
    pub adopts_after_ms: u64,
    /// Milliseconds in which it serves its sessions for certain, with a lease or, in an outage of Redis, without.
    #[serde(default)]
    pub serves_ms: u64,
    /// Whether it has given its lease up, and ends once it has answered what it was sent; earlier releases do not say.
    #[serde(default)]
    pub leaves: bool,
}

/// Why a replica has not greeted.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetingFailure {
    /// It has not answered.
    #[error(transparent)]
    Unanswered(ForwardFailure),
    /// Something else has answered.
    #[error("what answers is no replica")]
    Unreadable,
}

impl GreetingFailure {
    /// Whether the replica was not asked at all, as this process has no file descriptor left.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Unanswered(ForwardFailure::Unreachable(error)) if lacks_descriptors(error))
    }
}

/// Asks a replica for its greeting, without a bound on the time.
///
/// # Errors
/// See [`GreetingFailure`].
pub(super) async fn ask(
    peer: &Peer,
    tasks: &TaskSpawner,
) -> Result<ReplicaGreeting, GreetingFailure> {
    let body = Empty::<Bytes>::new().map_err(|never| match never {});
    let mut request = Request::new(body.boxed_unsync());
    *request.uri_mut() = Uri::from_static(REPLICA_PATH);
    if let Ok(host) = HeaderValue::try_from(&peer.record.address) {
        request.headers_mut().insert(HOST, host);
    }
    let sent = peer
        .connections
        .send(request, tasks, &|_| {}, pending())
        .await;
    let answer = sent.map_err(|(failure, _)| GreetingFailure::Unanswered(failure))?;
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|_| GreetingFailure::Unreadable)?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| GreetingFailure::Unreadable)
}
