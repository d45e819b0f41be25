//! The refusal of a request whose session is at a replica that does not answer.

use axum::body::Body;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::cause::chain;
use crate::cluster::ForwardFailure;
use crate::downstream::access_log::AccessRecord;
use crate::downstream::reply;
use crate::ownership::Ownership;

/// After a lost owner: for its lease to end, and for another replica to take over.
const COME_BACK: HeaderValue = HeaderValue::from_static("2");

/// The refusal of a request that no replica has answered.
pub(in crate::downstream) fn refused(
    failure: &ForwardFailure,
    owner: Ownership,
    record: &AccessRecord,
) -> Response<Body> {
    record.outcome("owner_unreachable");
    tracing::debug!(
        node = owner.node,
        error = chain(failure),
        "request not forwarded"
    );
    refusal(failure)
}

/// A session whose owner is gone may come back, so that its client must not be told 404. What may have run is not to be
/// sent again by a client that obeys `Retry-After`.
pub(super) fn refusal(failure: &ForwardFailure) -> Response<Body> {
    let (status, text) = if failure.is_uncertain() {
        let text =
            "the connection to the replica of this session was lost: the request may have run";
        (StatusCode::BAD_GATEWAY, text)
    } else {
        let text = "the replica of this session cannot be reached now";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let mut response = reply::plain(status, text);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, COME_BACK);
    }
    response
}
