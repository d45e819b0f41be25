//! Replies about links that a user must not or did not open. Spec: SPEC C-82, C-83.

use crate::call::{Call, Reply};
use crate::outbound::{ReplySource, tool_failure};
use crate::protocol::error_codes::{INTERNAL_ERROR, URL_ELICITATION_REQUIRED};
use crate::protocol::{Message, links, rpc};
use crate::telemetry::metrics::LABELED;

/// The reply in place of an error -32042 with a link that may not be opened; `None` for any other
/// reply. Spec: SPEC C-82, C-83.
pub(super) fn without_bad_links(
    call: &Call,
    source: &ReplySource,
    upstream: &str,
    message: &Message,
) -> Option<Reply> {
    if message.error_code() != Some(URL_ELICITATION_REQUIRED)
        || message.error_member("data").is_none_or(links::are_links)
    {
        return None;
    }
    LABELED.upstream_garbage.add(upstream, 1);
    tracing::warn!(
        upstream,
        "an error with a link that may not be opened was refused"
    );
    let text = format!(
        "upstream \"{upstream}\" wants its user to open what is no http or https URL with a host"
    );
    Some(failure_reply(call, source, &text))
}

/// A failure in our words: a tool's, where a tool was called.
pub(super) fn failure_reply(call: &Call, source: &ReplySource, text: &str) -> Reply {
    if call.message.method() == Some("tools/call") {
        return tool_failure(call, source, text);
    }
    Reply::Error(rpc::error(INTERNAL_ERROR, text, None).into())
}
