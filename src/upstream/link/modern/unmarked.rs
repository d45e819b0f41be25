//! Notices without the mark of their subscription.

use bytes::Bytes;

use crate::protocol::{Message, json, meta};

/// The message without the subscription id, which is valid for this hop only.
pub(super) fn unmarked(message: &Message) -> Bytes {
    let marks = message
        .param("_meta")
        .and_then(|text| json::members(text).ok());
    let edit = message.edit();
    match marks {
        Some(marks) if marks.len() > 1 => edit.remove_meta(meta::SUBSCRIPTION_ID).finish(),
        _ => edit.remove_param("_meta").finish(),
    }
}
