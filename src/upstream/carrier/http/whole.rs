//! Reading a body as one message, within the byte budget.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use super::body::UpstreamBody;
use super::sink::MessageSink;
use crate::budget::EXEMPT_BYTES;
use crate::protocol::json;
use crate::upstream::error::LinkError;

/// How long the body of a refusal is read: some upstreams never end it, and the status alone is an answer.
const REFUSAL_WITHIN: Duration = Duration::from_secs(5);

/// Reads the body of a refusal as [`whole_body`] does; `None` where it does not arrive whole and in time.
pub(super) async fn refusal_body(
    body: UpstreamBody,
    limit: usize,
    sink: &mut dyn MessageSink,
) -> Option<Bytes> {
    let read = timeout(REFUSAL_WITHIN, whole_body(body, limit, sink)).await;
    read.ok()?.ok()
}

/// Reads a whole body of `limit` bytes at most, which takes its room from the share of `sink`.
pub(super) async fn whole_body(
    body: UpstreamBody,
    limit: usize,
    sink: &mut dyn MessageSink,
) -> Result<Bytes, LinkError> {
    let announced = body.size_hint().exact();
    if announced.is_none_or(|len| len > EXEMPT_BYTES as u64) {
        // Larger, and most replies are small.
        return Box::pin(gather(body, announced, limit, sink)).await;
    }
    let body = Limited::new(body, limit).collect().await;
    body.map(|body| unmarked(body.to_bytes())).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            LinkError::TooLarge { limit }
        } else {
            LinkError::Lost { last_words: None }
        }
    })
}

/// Reads a body that may be large, or whose length is not known; each piece of it is told to `sink`. Where there is no room
/// for more of it, it is not read on until there is.
async fn gather(
    mut body: UpstreamBody,
    announced: Option<u64>,
    limit: usize,
    sink: &mut dyn MessageSink,
) -> Result<Bytes, LinkError> {
    let announced = announced.map_or(0, |len| usize::try_from(len).unwrap_or(usize::MAX));
    let mut room = sink.growing();
    // Most bodies come in one piece, which is not copied.
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    loop {
        let len = first.len() + all.len();
        let wanted = announced.max(len);
        if wanted > limit {
            return Err(LinkError::TooLarge { limit });
        }
        if let Some(room) = &mut room {
            room.grow_to(wanted).await;
        }
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|_| LinkError::Lost { last_words: None })?;
        // A server that writes a blank now and then is alive, and a large body takes its time.
        sink.taken();
        if let Ok(piece) = frame.into_data() {
            if len == 0 {
                first = piece;
                continue;
            }
            // Copied as it comes: small pieces cost more than their bytes.
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
    }
    let whole = if all.is_empty() { first } else { all.freeze() };
    if let Some(room) = room {
        sink.keep(room.whole(whole.len()));
    }
    Ok(unmarked(whole))
}

/// A body without the byte order mark that some servers write. Spec: RFC 8259 §8.1.
fn unmarked(mut body: Bytes) -> Bytes {
    if body.starts_with(json::BYTE_ORDER_MARK) {
        body.advance(json::BYTE_ORDER_MARK.len());
    }
    body
}
