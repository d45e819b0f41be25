//! Reading the body of a request: bounded in size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::{Front, media, reply};
use crate::protocol::json;
use crate::telemetry::metrics::COUNTERS;

/// What is read of a refused body, bytes, and for how long. No settings: they only decide how much
/// of our time a refusal may cost, and nobody but a client that breaks the limit notices them.
const DISCARDED_BYTES: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

impl Front {
    /// Reads a body that says it is JSON, within the configured bounds; without the byte order mark that
    /// some writers put before it.
    ///
    /// # Errors
    /// The answer to give instead: 415 (no JSON, or a compressed one), 413, 408 (too slow) or 400 (it
    /// broke off).
    ///
    /// # Cancel safety
    /// Not cancel safe: what was read is lost.
    pub(super) async fn read_json(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Bytes, Response<Body>> {
        if !media::is_json(headers) {
            return Err(reply::plain(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Content-Type must be application/json",
            ));
        }
        if media::is_encoded(headers) {
            return Err(reply::encoded());
        }
        let timeout = self.settings.server.body_timeout;
        let mut bytes = read(headers, body, self.settings.limits.body, timeout).await?;
        // Spec: RFC 8259 §8.1.
        if bytes.starts_with(json::BYTE_ORDER_MARK) {
            bytes.advance(json::BYTE_ORDER_MARK.len());
        }
        Ok(bytes)
    }
}

async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, Response<Body>> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Box::pin(refuse(body)).await);
    }
    let read = Limited::new(&mut body, limit).collect();
    match tokio::time::timeout(timeout, read).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Box::pin(refuse(body)).await),
        Ok(Err(_)) => Err(reply::plain(
            StatusCode::BAD_REQUEST,
            "the request body broke off",
        )),
        Err(_) => Err(reply::plain(
            StatusCode::REQUEST_TIMEOUT,
            "the request body is slow",
        )),
    }
}

/// Refuses a body that is too large. What is on its way is read and thrown away, within bounds:
/// a connection closed in the middle of a request is reset, and the client never sees why.
async fn refuse(mut body: Body) -> Response<Body> {
    COUNTERS.bodies_too_large.add(1);
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
    reply::plain(
        StatusCode::PAYLOAD_TOO_LARGE,
        "the request body is too large",
    )
}
