//! Icons of what upstreams list. Those that a client must not load are left out once, when a page
//! comes and before it is kept, so that whatever is made of it has none of them, for every revision and
//! also where nothing else changes. Skills are what hosts verify, and stay as they are.
//! Spec: SPEC C-96, C-97.

use super::catalog::Place;
use crate::call::Reply;
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, icons};

/// The answer to a request for a page, as it may be kept and shown.
pub(super) fn in_page(reply: Reply, place: Place<'_>) -> Reply {
    match reply {
        Reply::Relayed(message) if place.kind != ListKind::Skills => {
            Reply::Relayed(purged(message, place.kind.member(), place.upstream))
        }
        reply => reply,
    }
}

/// The answer to a request of `method`, if it is what a directory holds; any other as it is.
pub(super) fn in_directory(method: &str, message: Message, upstream: &str) -> Message {
    if method != "resources/directory/read" {
        return message;
    }
    purged(message, ListKind::Resources.member(), upstream)
}

/// A result whose items are at `member`, without icons that a client must not load.
fn purged(message: Message, member: &str, upstream: &str) -> Message {
    let items = message.result_member(member);
    let Some(purged) = items.and_then(icons::purged_items) else {
        return message;
    };
    tracing::warn!(
        upstream,
        list = member,
        icons = purged.icons,
        "icons are left out of a list: no client may load them from where they lie"
    );
    let bytes = message.edit().result_member(member, purged.text).finish();
    // What was whole and lost members is whole.
    Message::parse(bytes, usize::MAX).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    // SPEC C-96, N-05.
    #[test]
    fn skills_stay_as_their_hosts_verify_them() {
        let upstream: Arc<str> = "up".into();
        let shown = |kind: ListKind| {
            let member = kind.member();
            let items = r#"[{"name":"x","uri":"skill://x","icons":[{"src":"file:x"}]}]"#;
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"{member}":{items}}}}}"#);
            let reply = Reply::Relayed(Message::parse(text.into(), 128).unwrap());
            let place = Place {
                upstream: &upstream,
                kind,
                cursor: None,
            };
            let shown = in_page(reply, place);
            shown.result().unwrap().contains("icons")
        };
        for kind in ListKind::ALL {
            assert_eq!(shown(kind), kind == ListKind::Skills, "{kind:?}");
        }
    }
}
