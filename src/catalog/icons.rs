//! Icons in the lists of upstreams. Unsafe icons are removed once, when a page arrives and before it is
//! cached, so that no projection of the page contains them, for every revision and even if nothing else
//! changes. Skills are unchanged, since hosts verify them.
//! Spec: SPEC C-96, C-97.

use super::page_key::ListPageKey;
use crate::call::Reply;
use crate::protocol::Message;
use crate::protocol::icons::{self, PurgedText};
use crate::protocol::methods::ListKind;

/// The answer to a request for a page, as it may be kept and shown.
pub(crate) fn in_page(reply: Reply, place: ListPageKey<'_>) -> Reply {
    match reply {
        Reply::Relayed(message) if place.kind != ListKind::Skills => {
            Reply::Relayed(purged(message, place.kind.member(), place.upstream))
        }
        reply => reply,
    }
}

/// The answer to a request of `method`, if it is what a directory holds; any other as it is.
pub(crate) fn in_directory(method: &str, message: Message, upstream: &str) -> Message {
    if method != "resources/directory/read" {
        return message;
    }
    purged(message, ListKind::Resources.member(), upstream)
}

/// The answer to a request of `method`, without icons on the resources that its content links to.
pub(crate) fn in_content(method: &str, message: Message, upstream: &str) -> Message {
    let (member, purged) = match method {
        "tools/call" | "tasks/result" => {
            let content = message.result_member("content");
            ("content", content.and_then(icons::purged_content))
        }
        // A task that is done holds the result of its call.
        "tasks/get" => {
            let result = message.result_member("result");
            ("result", result.and_then(icons::purged_holder))
        }
        "prompts/get" => {
            let messages = message.result_member("messages");
            ("messages", messages.and_then(icons::purged_messages))
        }
        _ => return message,
    };
    match purged {
        Some(purged) => edited(message, member, purged, upstream),
        None => message,
    }
}

/// A result whose items are at `member`, without icons that a client must not load.
fn purged(message: Message, member: &str, upstream: &str) -> Message {
    let items = message.result_member(member);
    match items.and_then(icons::purged_items) {
        Some(purged) => edited(message, member, purged, upstream),
        None => message,
    }
}

fn edited(message: Message, member: &str, purged: PurgedText, upstream: &str) -> Message {
    tracing::warn!(
        upstream,
        member,
        icons = purged.icons,
        "icons are left out: no client may load them from where they lie"
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
            let place = ListPageKey::new(&upstream, kind, None);
            let shown = in_page(reply, place);
            shown.result().unwrap().contains("icons")
        };
        for kind in ListKind::ALL {
            assert_eq!(shown(kind), kind == ListKind::Skills, "{kind:?}");
        }
    }
}
