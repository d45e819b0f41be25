//! The filter that a `subscriptions/listen` requests, and the part that its acknowledgement grants.
//! Spec: MCP 2026-07-28, subscriptions; SPEC M-70, M-71.

use std::collections::BTreeSet;

use crate::protocol::Message;
use crate::protocol::json::{self, ObjectWriter};

/// The kinds of lists, and their names in a filter.
const LISTS: [(&str, &str); 3] = [
    ("tools", "toolsListChanged"),
    ("prompts", "promptsListChanged"),
    ("resources", "resourcesListChanged"),
];

/// The lists and URIs that a stream requests, or that the upstream grants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ListenFilter {
    pub(super) lists: Vec<&'static str>,
    pub(super) uris: BTreeSet<String>,
}

impl ListenFilter {
    /// Approximate bytes in a request: each URI has three more bytes around it.
    pub(super) fn bytes(&self) -> usize {
        self.uris.iter().map(|uri| uri.len() + 3).sum()
    }
}

/// JSON text of the filter in a request.
pub(super) fn notifications(filter: &ListenFilter) -> String {
    let mut notifications = ObjectWriter::default();
    for (what, flag) in LISTS {
        if filter.lists.contains(&what) {
            notifications.member(flag, "true");
        }
    }
    if !filter.uris.is_empty() {
        notifications.member("resourceSubscriptions", &json::strings(&filter.uris));
    }
    notifications.finish()
}

/// The filter that an acknowledgement grants.
pub(super) fn honoured(message: &Message) -> ListenFilter {
    let filter = message.param("notifications").unwrap_or("{}");
    let members = json::members(filter).unwrap_or_default();
    let member = |wanted: &str| {
        let found = members.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| *value)
    };
    let lists = LISTS
        .iter()
        .filter(|(_, flag)| member(flag) == Some("true"));
    let uris = member("resourceSubscriptions").and_then(|array| json::elements(array).ok());
    ListenFilter {
        lists: lists.map(|(what, _)| *what).collect(),
        uris: uris
            .unwrap_or_default()
            .into_iter()
            .filter_map(json::string)
            .map(std::borrow::Cow::into_owned)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_only_what_is_wanted() {
        let filter = ListenFilter {
            lists: vec!["tools", "resources"],
            uris: ["file:///b", "file:///\"a\""].map(str::to_owned).into(),
        };
        assert_eq!(
            notifications(&filter),
            r#"{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///\"a\"","file:///b"]}"#
        );
        assert_eq!(notifications(&ListenFilter::default()), "{}");
    }

    #[test]
    fn an_acknowledgement_says_what_is_honoured() {
        let text = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["a",7,"b"]}}}"#;
        let message = Message::parse(text.into(), 128).unwrap();
        let granted = ListenFilter {
            lists: vec!["tools"],
            uris: ["a", "b"].map(str::to_owned).into(),
        };
        assert_eq!(honoured(&message), granted);
    }
}
