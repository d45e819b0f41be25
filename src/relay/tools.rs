//! Looks up tool declarations in the cached lists, for code that needs a tool's schema.
//! Spec: SPEC M-33, M-36.

use std::sync::Arc;

use bytes::Bytes;

use super::Relay;
use super::catalog::ListPageKey;
use super::pages::MAX_PAGES;
use crate::call::Call;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::translate::project;

impl Relay {
    /// JSON text of the tool that the client calls `name`, as the upstream lists it to this caller; `None` if
    /// no upstream offers the tool or listing fails. The last cached list is used, however old, until its
    /// upstream announces a change; without one the upstream is asked, once and page by page.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn tool(&self, call: &Call, session: &Arc<Session>, name: &str) -> Option<Bytes> {
        let (upstream, original) = if self.is_pure(&call.endpoint) {
            let upstream = call.endpoint.upstreams.first()?;
            (Arc::clone(upstream), name.to_owned())
        } else {
            let owner = self.owner(call, session, ListKind::Tools, name);
            owner.await.ok()?
        };
        if !self.is_shown(call, &upstream, ListKind::Tools, &original) {
            return None;
        }
        self.tool_of(call, session, &upstream, &original).await
    }

    /// [`tool`](Self::tool) by upstream and the upstream's own tool name.
    pub(super) async fn tool_of(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        name: &str,
    ) -> Option<Bytes> {
        match self.listed_tool(session, upstream, name) {
            ToolKnowledge::Found(tool) => Some(tool),
            ToolKnowledge::Missing => None,
            ToolKnowledge::Unlisted => {
                let listed = self.list_one(call, session, upstream, ListKind::Tools);
                drop(listed.await);
                match self.listed_tool(session, upstream, name) {
                    ToolKnowledge::Found(tool) => Some(tool),
                    ToolKnowledge::Missing | ToolKnowledge::Unlisted => None,
                }
            }
        }
    }

    /// Whether the session's client sees the output of this tool wrapped; `false` for an unlisted tool.
    pub(super) fn is_wrapped(&self, session: &Session, upstream: &Arc<str>, tool: &str) -> bool {
        match self.listed_tool(session, upstream, tool) {
            ToolKnowledge::Found(tool) => std::str::from_utf8(&tool).is_ok_and(project::wraps),
            ToolKnowledge::Missing | ToolKnowledge::Unlisted => false,
        }
    }

    fn listed_tool(&self, session: &Session, upstream: &Arc<str>, name: &str) -> ToolKnowledge {
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let place = ListPageKey {
                upstream,
                kind: ListKind::Tools,
                cursor: cursor.as_deref(),
            };
            let held = session
                .list_validity()
                .last(upstream, place.kind, place.cursor);
            let Some((held, page)) =
                held.and_then(|held| self.page(&held).map(|page| (held, page)))
            else {
                return ToolKnowledge::Unlisted;
            };
            if let Some(tool) = self.catalog.lists.tool(&held.digest, &page, name) {
                return ToolKnowledge::Found(tool);
            }
            let next = page.message.result_member("nextCursor");
            let next = next.filter(|next| *next != "null");
            if next.is_none() || next == cursor.as_deref() {
                return ToolKnowledge::Missing;
            }
            cursor = next.map(str::to_owned);
        }
        ToolKnowledge::Missing
    }
}

/// What the session's own lists say of a tool.
enum ToolKnowledge {
    Found(Bytes),
    /// The whole list was seen, and does not hold it.
    Missing,
    /// Not the whole list was seen.
    Unlisted,
}
