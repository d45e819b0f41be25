//! `connect_<upstream>`: the gateway's own tool, listed where the caller has no account at an upstream and nothing is known
//! of what it lists. It is no upstream's: no prefix, and no rule about an upstream's tools hides it.
//!
//! Names of upstreams have no `_` and prefixed names have two, so that no prefixed name is one of ours. An upstream where
//! callers have accounts and that has a tool of this name itself is shown it under the name that it has on merged
//! endpoints.

use std::borrow::Cow;
use std::sync::Arc;

use super::page_key::ListPageKey;
use crate::call::{Call, Reply};
use crate::outbound::SessionLinks;
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, json};
use crate::telemetry::metrics::LABELED;
use crate::translate::naming::NamePrefix;

/// What stands before the upstream in the name of the tool.
const PREFIX: &str = "connect_";

/// The tool of `upstream`.
fn name_of(upstream: &str) -> String {
    format!("{PREFIX}{upstream}")
}

/// JSON text of the tool of `upstream`.
pub(crate) fn connect_tool(upstream: &str) -> String {
    let text = format!(
        "Connects the user's account at \"{upstream}\". Its own tools are listed once that is done."
    );
    json::object([
        ("name", json::quote(&name_of(upstream))),
        ("description", json::quote(&text)),
        ("inputSchema", r#"{"type":"object"}"#.to_owned()),
    ])
}

/// The upstream of the endpoint whose tool a call names.
pub(crate) fn called_connect_tool<'c>(
    call: &'c Call,
    links: &SessionLinks,
) -> Option<&'c Arc<str>> {
    // First, since most gateways have none: their calls are not looked into.
    if !links.upstreams.caller_accounts().is_any() || call.message.method() != Some("tools/call") {
        return None;
    }
    let upstream = upstream_of(call.message.param("name")?)?;
    let mut shown = call.endpoint.upstreams.iter();
    shown.find(|one| ***one == *upstream && links.upstreams.caller_accounts().has(one))
}

/// What stands behind the prefix in the JSON text of a name that has it.
fn upstream_of(text: &str) -> Option<Cow<'_, str>> {
    // Nearly all names begin otherwise; the letter may be escaped.
    if !text.starts_with(r#""c"#) && !text.starts_with(r#""\"#) {
        return None;
    }
    match json::scanned_string(text)? {
        Cow::Borrowed(name) => name.strip_prefix(PREFIX).map(Cow::Borrowed),
        Cow::Owned(name) => name
            .strip_prefix(PREFIX)
            .map(|upstream| Cow::Owned(upstream.to_owned())),
    }
}

/// An upstream's own spelling of one of its tools, where `name` is the one it is shown under in place of ours.
pub(super) fn own_spelling<'n>(
    links: &SessionLinks,
    upstream: &Arc<str>,
    name: &'n str,
) -> Cow<'n, str> {
    if !name.contains(PREFIX) || !links.upstreams.caller_accounts().has(upstream) {
        return Cow::Borrowed(name);
    }
    let own = name_of(upstream);
    if name == stand_in(upstream, &own) {
        Cow::Owned(own)
    } else {
        Cow::Borrowed(name)
    }
}

fn stand_in(upstream: &Arc<str>, own: &str) -> String {
    NamePrefix::new(Arc::clone(upstream)).name(own)
}

/// The answer to a request for a page, in which a tool of the upstream that is named like ours has another name. Counted.
pub(super) fn in_page(links: &SessionLinks, reply: Reply, place: ListPageKey<'_>) -> Reply {
    if place.kind != ListKind::Tools || !links.upstreams.caller_accounts().has(place.upstream) {
        return reply;
    }
    match reply {
        Reply::Relayed(message) => Reply::Relayed(renamed(message, place.upstream)),
        reply => reply,
    }
}

fn renamed(message: Message, upstream: &Arc<str>) -> Message {
    let own = name_of(upstream);
    let named = |item: &str| {
        let name = json::member(item, "name").and_then(json::string);
        name.is_some_and(|name| name == own)
    };
    let items = message.result_member("tools").unwrap_or("[]");
    let Ok(items) = json::elements(items) else {
        return message;
    };
    if !items.iter().any(|item| named(item)) {
        return message;
    }
    LABELED.tools_renamed.add(upstream, 1);
    let shown = json::quote(&stand_in(upstream, &own));
    let items = items.into_iter().map(|item| {
        let members = json::members(item).unwrap_or_default();
        if !named(item) {
            return Cow::Borrowed(item);
        }
        Cow::Owned(json::object_replacing(members, "name", &shown))
    });
    let items = json::array(items);
    let bytes = message
        .edit()
        .result_member("tools", items.as_str())
        .finish();
    // What was whole and has another name is whole.
    Message::parse(bytes, usize::MAX).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_name_of_the_tool_is_the_same_name() {
        for name in [
            r#""connect_up""#,
            r#""\u0063onnect_up""#,
            r#""con\u006eect_up""#,
        ] {
            assert_eq!(upstream_of(name).as_deref(), Some("up"), "{name}");
        }
        for other in [r#""call""#, r#""up__connect_up""#, r#""\u0064onnect_up""#] {
            assert_eq!(upstream_of(other), None, "{other}");
        }
    }

    #[test]
    fn upstreams_tool_of_our_name_is_shown_under_another() {
        let tools = r#"[{"name":"connect_up","x":{"name":"connect_up"}},{"name":"connect_other"},{"name":"a"}]"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}}}}}"#);
        let message = Message::parse(text.into(), 128).unwrap();
        let shown = renamed(message, &"up".into());
        assert_eq!(
            shown.result_member("tools"),
            Some(
                r#"[{"name":"up__connect_up","x":{"name":"connect_up"}},{"name":"connect_other"},{"name":"a"}]"#
            )
        );
    }
}
