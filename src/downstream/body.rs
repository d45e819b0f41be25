//! Reading the body of a request: bounded in size and time.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::refused_body::{BodyScans, RefusedBody};
use super::room::{BodyMemory, CollectedBody, OutOfMemory};
use super::{media, reply};
use crate::budget::{BudgetHolder, ByteBudget};
use crate::config::Config;
use crate::protocol::json;
use crate::runtime::poll_time;
use crate::telemetry::metrics::COUNTERS;

/// Why a body was not read.
pub(super) enum BodyError {
    /// The answer to give instead.
    Answered(Response<Body>),
    /// The body exceeds a limit.
    Full(OutOfMemory, Box<RefusedBody>),
}

impl BodyError {
    /// A body that exceeds a limit; `begun` are the pieces read before.
    fn of(full: OutOfMemory, begun: Vec<Bytes>, rest: Body, until: Instant) -> Self {
        if full == OutOfMemory::TooLarge {
            COUNTERS.bodies_too_large.add(1);
        }
        Self::Full(full, Box::new(RefusedBody { begun, rest, until }))
    }
}

/// Reads the bodies of requests: each within its size, its time and its caller's share of the byte budget.
#[derive(Debug)]
pub(super) struct BodyReader {
    pub(super) settings: Arc<Config>,
    pub(super) budget: Arc<ByteBudget>,
    pub(super) scans: Arc<BodyScans>,
}

impl BodyReader {
    /// Reads a JSON body within the configured bounds and the share of `holder`. A leading byte order mark, which some
    /// writers add, is removed.
    ///
    /// # Errors
    /// It is too large, there is no room for it, or the answer to give instead: 415 (no JSON, or a compressed
    /// one), 408 (too slow) or 400 (it broke off).
    ///
    /// # Cancel safety
    /// Not cancel safe: what was read is lost.
    pub(super) async fn read_json(
        &self,
        headers: &HeaderMap,
        body: Body,
        holder: BudgetHolder,
    ) -> Result<Bytes, BodyError> {
        if !media::is_json(headers) {
            let text = "Content-Type must be application/json";
            let answer = reply::plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
            return Err(BodyError::Answered(answer));
        }
        if media::is_encoded(headers) {
            return Err(BodyError::Answered(reply::encoded()));
        }
        let timeout = self.settings.server.body_timeout;
        let room = BodyMemory::share(&self.budget, holder);
        let bytes = read(headers, body, room, self.settings.limits.body, timeout).await?;
        Ok(without_mark(bytes))
    }
}

/// The text behind a byte order mark. Spec: RFC 8259 §8.1.
pub(super) fn without_mark(mut bytes: Bytes) -> Bytes {
    if bytes.starts_with(json::BYTE_ORDER_MARK) {
        bytes.advance(json::BYTE_ORDER_MARK.len());
    }
    bytes
}

async fn read(
    headers: &HeaderMap,
    mut body: Body,
    room: BodyMemory<'_>,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, BodyError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let until = poll_time::now() + timeout;
    let mut collected = match CollectedBody::begin(limit, announced, room) {
        Ok(collected) => collected,
        Err(full) => return Err(BodyError::of(full, Vec::new(), body, until)),
    };
    match collect(&mut collected, &mut body, until).await {
        Ok(()) => Ok(collected.finish()),
        Err(ReadStopped::Full(full, piece)) => {
            let begun = vec![collected.finish(), piece];
            Err(BodyError::of(full, begun, body, until))
        }
        Err(ReadStopped::Answered(answer)) => Err(BodyError::Answered(*answer)),
    }
}

/// Why a body was not read to its end.
pub(super) enum ReadStopped {
    /// The piece that has no room.
    Full(OutOfMemory, Bytes),
    /// The answer to give instead.
    Answered(Box<Response<Body>>),
}

impl ReadStopped {
    fn answered(status: StatusCode, text: &'static str) -> Self {
        Self::Answered(Box::new(reply::plain(status, text)))
    }
}

/// Reads all of `body` that is still to come.
///
/// # Errors
/// There is no room for a piece, or the answer to give instead: 408 or 400.
pub(super) async fn collect(
    collected: &mut CollectedBody<'_>,
    body: &mut Body,
    until: Instant,
) -> Result<(), ReadStopped> {
    let reading = async {
        while let Some(frame) = body.frame().await {
            let text = "the request body broke off";
            let broken = |_| ReadStopped::answered(StatusCode::BAD_REQUEST, text);
            let Ok(piece) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if let Err(full) = collected.push(&piece) {
                return Err(ReadStopped::Full(full, piece));
            }
        }
        Ok(())
    };
    let mut reading = pin!(reading);
    // Usually the whole body has arrived: no timer needed.
    if let Poll::Ready(read) = futures_util::poll!(reading.as_mut()) {
        return read;
    }
    let read = tokio::time::timeout_at(until, reading).await;
    read.unwrap_or_else(|_| {
        let text = "the request body is slow";
        Err(ReadStopped::answered(StatusCode::REQUEST_TIMEOUT, text))
    })
}
