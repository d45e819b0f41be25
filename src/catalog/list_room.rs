//! Room for the answer to a list in the share of its caller.

use std::time::Duration;

use bytes::Bytes;

use crate::budget::EXEMPT_BYTES;
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind, RetryHint};
use crate::telemetry::metrics::COUNTERS;

/// Takes room for a large answer to a list, and waits for it within `wait` (`limits.call_wait`). The list itself took
/// none while it came, as several callers may get the same one; each gets a copy that waits for its client.
///
/// # Errors
/// No room became free in time. A list has no side effects, so the client can retry.
///
/// # Cancel safety
/// Nothing is taken.
pub(crate) async fn make_room(call: &Call, answer: &Reply, wait: Duration) -> Result<(), Fault> {
    let len = match answer {
        Reply::Relayed(message) => message.bytes().len(),
        Reply::Result(text) | Reply::Error(text) => Bytes::len(text),
    };
    let Some(room) = call.link.reply_room().filter(|_| len > EXEMPT_BYTES) else {
        return Ok(());
    };
    let mut lease = room.share.lease();
    if tokio::time::timeout(wait, lease.grow_to(len))
        .await
        .is_err()
    {
        COUNTERS.replies_failed.add(1);
        let text =
            "replies that your client has not read yet take too much memory, try again later";
        return Err(Fault::downstream(FaultKind::CallerBusy, text).retry(RetryHint::After(wait)));
    }
    room.kept.keep(lease);
    Ok(())
}
