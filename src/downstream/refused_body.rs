//! Bodies refused before they are read whole. Their request ids are scanned as bytes arrive, so that a request of a
//! live session can be refused by id instead of by status. Spec: SPEC T-17.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::busy::RETRY_AFTER;
use super::reply;
use crate::call::OwnerKey;
use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};
use crate::protocol::{IdScan, json};
use crate::session::Session;
use crate::sync::keyed_permits::KeyedPermits;
use crate::telemetry::metrics::COUNTERS;

/// Limits, in bytes and time, for draining a refused body that got no permit from `BodyScans`. Not settings: both only
/// bound the cost of a refusal, and only clients that exceed the body limit are affected.
const DISCARDED_BYTES: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Concurrent scans of refused bodies for request ids: per caller, and in total.
const SCANS_PER_CALLER: usize = 8;
const SCANS: usize = 256;
/// How much of a refused body is scanned for ids, as a multiple of the body limit.
const SCANNED_BODIES: usize = 4;

/// A refused body: the pieces read so far, and the rest.
pub(super) struct RefusedBody {
    pub(super) begun: Vec<Bytes>,
    pub(super) rest: Body,
    /// Deadline for reading the whole body.
    pub(super) until: Instant,
}

/// Scans refused bodies for the ids of their requests: so many at a time.
#[derive(Debug)]
pub(super) struct BodyScans {
    permits: Arc<KeyedPermits<OwnerKey>>,
    /// Of a body that is not refused, bytes.
    body_limit: usize,
}

/// The requests of a refused body.
pub(super) struct ScannedRequests {
    /// JSON texts of their ids, never none.
    ids: Vec<String>,
    is_array: bool,
    /// Whether the body was read to its end.
    is_whole: bool,
}

impl ScannedRequests {
    /// A JSON-RPC error for each, as one text.
    pub(super) fn refusal(&self, fault: &Fault) -> Bytes {
        let each = self.each_refusal(fault);
        match each.as_slice() {
            [one] if !self.is_array => one.clone(),
            each => reply::array(each),
        }
    }

    /// A JSON-RPC error for each.
    pub(super) fn each_refusal(&self, fault: &Fault) -> Vec<Bytes> {
        let ids = self.ids.iter();
        ids.map(|id| reply::error_response(fault, Some(id)))
            .collect()
    }
}

impl BodyScans {
    /// `body_limit` is that of the configuration.
    pub(super) fn new(body_limit: usize) -> Self {
        Self {
            permits: KeyedPermits::new(SCANS_PER_CALLER, SCANS),
            body_limit,
        }
    }

    /// Answers a request whose body is refused with `fault`: by JSON-RPC errors where it is one of the live
    /// `session`, else by `status`.
    pub(super) async fn refuse_body(
        self: &Arc<Self>,
        session: Option<&Session>,
        body: RefusedBody,
        fault: &Fault,
        status: StatusCode,
    ) -> Response<Body> {
        match self.requests_of(session, body).await {
            Ok(requests) => {
                let mut response = reply::json_response(StatusCode::OK, requests.refusal(fault));
                if !requests.is_whole {
                    close(&mut response);
                }
                response
            }
            Err(NoRequests) => refuse_with(status, fault),
        }
    }

    /// The requests in a body that is refused. The rest of the body is read either way, within bounds: a
    /// connection closed in the middle of a request is reset, and its client never sees why.
    ///
    /// # Errors
    /// There are none, or too many other bodies are read for theirs.
    pub(super) async fn requests_of(
        self: &Arc<Self>,
        session: Option<&Session>,
        body: RefusedBody,
    ) -> Result<ScannedRequests, NoRequests> {
        let Some(session) = session else {
            discard(body.rest).await;
            return Err(NoRequests);
        };
        let Some(place) = self.permits.enter(session.owner()) else {
            COUNTERS.bodies_unscanned.add(1);
            discard(body.rest).await;
            return Err(NoRequests);
        };
        COUNTERS.bodies_scanned.add(1);
        let mut body = body;
        let (scan, is_whole) = self.scan(&mut body).await;
        if !is_whole {
            discard(body.rest).await;
        }
        drop(place);
        let is_array = scan.is_array();
        let ids = scan.ids();
        if ids.is_empty() || (is_array && !session.revision.supports_batches()) {
            return Err(NoRequests);
        }
        Ok(ScannedRequests {
            ids,
            is_array,
            is_whole,
        })
    }

    /// Reads a body for its ids, and whether that was all of it.
    async fn scan(&self, body: &mut RefusedBody) -> (IdScan, bool) {
        let RefusedBody { begun, rest, until } = body;
        let mut scan = IdScan::default();
        let mut left = SCANNED_BODIES.saturating_mul(self.body_limit);
        for piece in std::mem::take(begun) {
            left = left.saturating_sub(piece.len());
            scan.feed(&piece);
        }
        let reading = async {
            while let Some(Ok(frame)) = rest.frame().await {
                let Ok(piece) = frame.into_data() else {
                    continue;
                };
                let Some(after) = left.checked_sub(piece.len()) else {
                    return false;
                };
                left = after;
                scan.feed(&piece);
            }
            true
        };
        let is_whole = tokio::time::timeout_at(*until, reading).await;
        (scan, is_whole.unwrap_or(false))
    }
}

/// The fault of a body that is too large.
pub(super) fn too_large(limit: usize) -> Fault {
    let text = format!("the message is too large, it may have {limit} bytes");
    let data = json::object([
        ("side", json::quote("gateway")),
        ("retryAfterMs", RETRY_AFTER.as_millis().to_string()),
        ("maxBytes", limit.to_string()),
    ]);
    Fault::new(FaultKind::InvalidRequest, FaultSide::Gateway, text)
        .retry(RetryHint::After(RETRY_AFTER))
        .with_data(data)
}

/// No request was found in a refused body.
pub(super) struct NoRequests;

/// Answers by a status, and ends the connection.
pub(super) fn refuse_with(status: StatusCode, fault: &Fault) -> Response<Body> {
    let mut response = reply::plain(status, &fault.public);
    reply::retry_after(&mut response, fault.retry);
    close(&mut response);
    response
}

/// Ends the connection after this answer; with HTTP/2 the stream alone ends.
fn close(response: &mut Response<Body>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
}

async fn discard(mut body: Body) {
    let discard = async {
        let mut left = DISCARDED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                return;
            };
            left = rest;
        }
    };
    // However it ends, the answer is the same.
    drop(tokio::time::timeout(DISCARD_TIMEOUT, discard).await);
}

#[cfg(test)]
mod tests;
