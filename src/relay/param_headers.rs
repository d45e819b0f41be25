//! The arguments that a modern client repeats in headers, compared with those of the body before a
//! tool is called. Spec: SPEC M-18, M-30, M-33, M-36.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use super::extension_methods::open;
use super::route::UpstreamTarget;
use crate::call::{Call, ServerDeclaration};
use crate::cause::chain;
use crate::fault::{Fault, FaultKind};
use crate::protocol::methods::ListKind;
use crate::protocol::param_headers::{AnnotationError, ParamHeaders, may_annotate};
use crate::protocol::{Era, Message, json};
use crate::session::{Session, ToolHeaders};

/// How long a call waits to learn what headers its tool has; then it goes on unchecked.
const LEARN_WAIT: Duration = Duration::from_secs(3);

impl Relay {
    /// Compares the parameter headers of an implicit session's call of a tool with its arguments; other calls have
    /// none.
    ///
    /// # Errors
    /// [`FaultKind::HeaderMismatch`] when they disagree, or the upstream cannot be reached. A tool whose
    /// schema cannot be had is not checked.
    pub(super) async fn check_param_headers(
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
                let link = self.link(session, upstream)?;
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
        let listed = self.list_one(call, session, upstream, ListKind::Tools);
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

/// Adds the tools of a page that have headers. A tool whose annotations are invalid has none: it is
/// not shown (SPEC M-31).
fn read(page: &str, tools: &mut ToolHeaders) {
    for (name, headers) in annotated(page) {
        let headers = headers.ok().filter(|headers| !headers.is_empty());
        if let (Some(name), Some(headers)) = (name, headers) {
            tools.insert(name.into_owned(), headers);
        }
    }
}

/// Tells the operator which tools of a page modern clients are not shown, though their upstream
/// lists them. A modern upstream's link has left them out itself (SPEC M-31).
pub(super) fn warn_of_invalid(upstream: &str, declared: &ServerDeclaration, page: &Message) {
    if declared.revision.era() == Era::Modern {
        return;
    }
    let tools = page.result_member(ListKind::Tools.member());
    let tools = tools.filter(|tools| may_annotate(tools));
    for (name, headers) in annotated(tools.unwrap_or("[]")) {
        if let Err(error) = headers {
            tracing::warn!(
                upstream, tool = ?name.unwrap_or_default(), error = chain(&error),
                "a tool is not shown to modern clients: its x-mcp-header annotations are invalid"
            );
        }
    }
}

/// The names of a page's tools, each with what its schema says.
fn annotated(
    page: &str,
) -> impl Iterator<Item = (Option<Cow<'_, str>>, Result<ParamHeaders, AnnotationError>)> {
    let tools = json::elements(page).unwrap_or_default();
    tools.into_iter().map(|tool| {
        let name = json::member(tool, "name").and_then(json::string);
        let schema = json::member(tool, "inputSchema").unwrap_or("{}");
        (name, ParamHeaders::read(schema))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_without_headers_and_with_invalid_ones_are_left_out() {
        let schema = |annotation: &str| {
            format!(
                r#"{{"type":"object","properties":{{"r":{{"type":"string","x-mcp-header":"{annotation}"}}}}}}"#
            )
        };
        let page = format!(
            r#"[{{"name":"a","inputSchema":{}}},{{"name":"b","inputSchema":{}}},{{"name":"c","inputSchema":{{"type":"object"}}}}]"#,
            schema("Region"),
            schema("no header")
        );
        let mut tools = ToolHeaders::new();
        read(&page, &mut tools);
        assert_eq!(tools.keys().collect::<Vec<_>>(), ["a"]);
    }
}
