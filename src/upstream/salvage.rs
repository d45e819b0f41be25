//! Salvages and counts replies behind other text on their line.

use std::sync::Arc;

use bytes::Bytes;

use super::breach_log;
use crate::protocol::{Message, salvage};
use crate::telemetry::metrics::LABELED;

/// See [`salvage::reply_behind`]: the reply of `upstream` at the end of `line`.
pub(super) fn salvage(
    upstream: &Arc<str>,
    line: &Bytes,
    depth: usize,
    is_awaited: impl Fn(u64) -> bool,
) -> Option<Message> {
    let reply = salvage::reply_behind(line, depth, is_awaited)?;
    LABELED.upstream_salvaged.add(upstream, 1);
    let what = "upstream wrote other text before a reply, on the same line";
    if let Some(muted) = breach_log::admit(upstream, what) {
        tracing::warn!(%upstream, muted, "{what}");
    }
    Some(reply)
}
