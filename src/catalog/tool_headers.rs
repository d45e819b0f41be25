//! The arguments that tools want repeated in headers, as their schemas say. Spec: SPEC M-30, M-31, M-33, M-36.

use std::borrow::Cow;

use crate::call::ServerDeclaration;
use crate::cause::chain;
use crate::protocol::methods::ListKind;
use crate::protocol::param_headers::{AnnotationError, ParamHeaders, may_annotate};
use crate::protocol::{Era, Message, json};
use crate::session::ToolHeaders;

/// Adds the tools of a page that have headers. A tool whose annotations are invalid has none: it is
/// not shown (SPEC M-31).
pub(super) fn read(page: &str, tools: &mut ToolHeaders) {
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
