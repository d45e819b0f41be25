//! Reading the body of a request: bounded in size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::refused_body::RefusedBody;
use super::{Front, media, reply};
use crate::protocol::json;
use crate::telemetry::metrics::COUNTERS;

/// Why a body was not read.
pub(super) enum Unread {
    /// The answer to give instead.
    Answered(Response<Body>),
    /// It is larger than it may be.
    TooLarge(Box<RefusedBody>),
}

/// What has come of a body.
enum Read {
    Whole(Bytes),
    TooLarge(Vec<Bytes>),
    BrokenOff,
}

impl Front {
    /// Reads a body that says it is JSON, within the configured bounds; without the byte order mark that
    /// some writers put before it.
    ///
    /// # Errors
    /// It is too large, or the answer to give instead: 415 (no JSON, or a compressed one), 408 (too slow)
    /// or 400 (it broke off).
    ///
    /// # Cancel safety
    /// Not cancel safe: what was read is lost.
    pub(super) async fn read_json(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Unread> {
        if !media::is_json(headers) {
            let text = "Content-Type must be application/json";
            let answer = reply::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
            return Err(Unread::Answered(answer));
        }
        if media::is_encoded(headers) {
            return Err(Unread::Answered(reply::encoded()));
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
) -> Result<Bytes, Unread> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let until = Instant::now() + timeout;
    let too_large = |begun, rest| {
        COUNTERS.bodies_too_large.add(1);
        Unread::TooLarge(Box::new(RefusedBody { begun, rest, until }))
    };
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large(Vec::new(), body));
    }
    let text = match tokio::time::timeout_at(until, read_up_to(limit, &mut body)).await {
        Ok(Read::Whole(bytes)) => return Ok(bytes),
        Ok(Read::TooLarge(begun)) => return Err(too_large(begun, body)),
        Ok(Read::BrokenOff) => (StatusCode::BAD_REQUEST, "the request body broke off"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the request body is slow"),
    };
    Err(Unread::Answered(reply::plain(text.0, text.1)))
}

async fn read_up_to(limit: usize, body: &mut Body) -> Read {
    // Most bodies come in one piece, which is not copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Read::BrokenOff;
        };
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if first.len() + all.len() + piece.len() > limit {
            return Read::TooLarge(vec![first, all.freeze(), piece]);
        }
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
    }
    Read::Whole(if all.is_empty() { first } else { all.freeze() })
}
