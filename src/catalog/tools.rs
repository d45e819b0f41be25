//! `ToolSchemas`: what the cached lists declare of a tool; the arguments that a modern client repeats in headers are
//! compared with those of the body before the tool is called. Spec: SPEC M-18, M-30, M-33, M-36.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::page_key::ListPageKey;
use super::pages::ListPages;
use super::reader::{ListReader, MAX_PAGES};
use super::tool_headers::read;
use crate::call::Call;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{SessionLinks, UpstreamTarget, open};
use crate::protocol::methods::ListKind;
use crate::session::{Session, ToolHeaders};
use crate::translate::project;

/// How long a call waits to learn what headers its tool has; then it goes on unchecked.
const LEARN_WAIT: Duration = Duration::from_secs(3);

/// What the listed tools of upstreams say of themselves.
#[derive(Debug)]
pub(crate) struct ToolSchemas {
    pub(super) links: Arc<SessionLinks>,
    pub(super) pages: Arc<ListPages>,
    pub(super) reader: Arc<ListReader>,
}

impl ToolSchemas {
    /// JSON text of the tool that `upstream` calls `name`, as it lists the tool to this caller; `None` if it offers no
    /// such tool or listing fails. The last cached list is used, however old, until the upstream announces a change;
    /// without one the upstream is asked, once and page by page.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub(crate) async fn tool_of(
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
                let listed = self
                    .reader
                    .list_one(call, session, upstream, ListKind::Tools);
                drop(listed.await);
                match self.listed_tool(session, upstream, name) {
                    ToolKnowledge::Found(tool) => Some(tool),
                    ToolKnowledge::Missing | ToolKnowledge::Unlisted => None,
                }
            }
        }
    }

    /// Whether the session's client sees the output of this tool wrapped; `false` for an unlisted tool.
    pub(crate) fn is_wrapped(&self, session: &Session, upstream: &Arc<str>, tool: &str) -> bool {
        match self.listed_tool(session, upstream, tool) {
            ToolKnowledge::Found(tool) => std::str::from_utf8(&tool).is_ok_and(project::wraps),
            ToolKnowledge::Missing | ToolKnowledge::Unlisted => false,
        }
    }

    fn listed_tool(&self, session: &Session, upstream: &Arc<str>, name: &str) -> ToolKnowledge {
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let place = ListPageKey::new(upstream, ListKind::Tools, cursor.as_deref());
            let held = session
                .list_validity()
                .last(upstream, place.kind, place.cursor);
            let Some((held, page)) =
                held.and_then(|held| self.pages.page(&held).map(|page| (held, page)))
            else {
                return ToolKnowledge::Unlisted;
            };
            if let Some(tool) = self.pages.shared.lists.tool(&held.digest, &page, name) {
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

    /// Compares the parameter headers of an implicit session's call of a tool with its arguments; other calls have
    /// none.
    ///
    /// # Errors
    /// [`FaultKind::HeaderMismatch`] when they disagree, or the upstream cannot be reached. A tool whose
    /// schema cannot be had is not checked.
    pub(crate) async fn check_param_headers(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
    ) -> Result<(), Fault> {
        let (Some(implicit_session), Some("tools/call"), Some(given)) = (
            session.implicit_session(),
            call.message.method(),
            call.param_headers.as_deref(),
        ) else {
            return Ok(());
        };
        let tool = target.name.as_deref().unwrap_or_default();
        let upstream = &target.upstream;
        let mut known = implicit_session.tool_headers(upstream, session.age_when_used());
        loop {
            let is_fresh = known.is_none();
            let tools = if let Some(tools) = known.take() {
                tools
            } else {
                // The call itself waits for its upstream as long: to list with less patience would end a child
                // that starts slowly, and start it a second time.
                let link = self.links.link(session, upstream)?;
                if link.declared().is_none() {
                    Box::pin(open(&*link, call)).await?;
                }
                let tools = Box::pin(self.headers_of_tools(call, session, upstream)).await;
                implicit_session.keep_tool_headers(upstream, Arc::clone(&tools), session.age());
                tools
            };
            let Some(asked) = tools.get(tool) else {
                return Ok(());
            };
            let Err(why) = asked.check(call.message.param("arguments"), given) else {
                return Ok(());
            };
            if is_fresh {
                let why = why.to_string();
                return Err(Fault::downstream(FaultKind::HeaderMismatch, why));
            }
            // The tool may have changed since.
            implicit_session.forget_tool_headers(upstream);
        }
    }

    /// The parameter headers of all tools listed for this `ImplicitSession`. Empty for a while if listing timed out, so
    /// that later calls do not wait as long again.
    async fn headers_of_tools(
        &self,
        call: &Call,
        session: &Arc<Session>,
        upstream: &Arc<str>,
    ) -> Arc<ToolHeaders> {
        let mut tools = ToolHeaders::new();
        let listed = self
            .reader
            .list_one(call, session, upstream, ListKind::Tools);
        if let Ok(Ok(part)) = tokio::time::timeout(LEARN_WAIT, listed).await {
            for (_, page) in &part.pages {
                read(page.result_member("tools").unwrap_or("[]"), &mut tools);
            }
        } else {
            tracing::warn!(
                upstream = %upstream,
                "parameter headers are not checked: the tools cannot be listed"
            );
        }
        Arc::new(tools)
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
