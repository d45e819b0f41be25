//! A client's request as an upstream of another revision may see it. Spec: BRIDGING §3.9.

use bytes::Bytes;

use crate::protocol::{Era, Message, MessageEditor, Revision, meta};

/// What a modern request says of itself.
const ENVELOPE: [&str; 4] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::CLIENT_CAPABILITIES,
    meta::LOG_LEVEL,
];
/// Parameters of a modern request that no legacy server knows.
const PARAMS: [&str; 2] = ["inputResponses", "requestState"];

/// Projects a request from revision `from` to `to`; `None` if unchanged. While the upstream's revision is
/// unknown, the request is made legacy: a modern link adds the envelope itself.
pub(crate) fn request(from: Revision, to: Option<Revision>, message: &Message) -> Option<Bytes> {
    let mut edit = None;
    let up = to.is_some_and(|to| to.era() == Era::Modern);
    if from.era() == Era::Modern && !up {
        for key in ENVELOPE {
            if message.meta(key).is_some() {
                edit = Some(edit.unwrap_or_else(|| message.edit()).remove_meta(key));
            }
        }
        for name in PARAMS {
            if message.param(name).is_some() {
                edit = Some(edit.unwrap_or_else(|| message.edit()).remove_param(name));
            }
        }
    }
    // Where tasks are not advertised a call is answered as if it asked for none, and in a modern
    // request a task means nothing (SPEC K-02, K-15).
    let is_modern = from.era() == Era::Modern && up;
    if !is_modern && message.method() == Some("tools/call") && message.param("task").is_some() {
        edit = Some(edit.unwrap_or_else(|| message.edit()).remove_param("task"));
    }
    // Spec: SPEC C-30.
    let knows_context = to.is_none_or(|to| to.has_structured_content() || from.allows_beyond(to));
    if !knows_context
        && message.method() == Some("completion/complete")
        && message.param("context").is_some()
    {
        edit = Some(
            edit.unwrap_or_else(|| message.edit())
                .remove_param("context"),
        );
    }
    edit.map(MessageEditor::finish)
}
