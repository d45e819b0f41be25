//! A reply on its way back to the client: cursors are sealed, items that policy hides are left out,
//! names and URIs are mapped, and errors about a single hop are replaced. The result is written in the
//! client's revision.
//! Spec: SPEC C-40, E-01, E-04; BRIDGING §3.9, §3.10, §4.

use std::sync::Arc;

use bytes::Bytes;

use super::refused_links::without_bad_links;
use crate::call::{Call, Reply};
use crate::catalog::{Catalog, in_content, in_directory};
use crate::fault::{Fault, FaultKind};
use crate::outbound::{
    AuditedPolicy, EditDepth, EndpointView, RelayFailure, ReplySource, UpstreamTarget, is_shared,
    tool_failure,
};
use crate::protocol::error_codes::INTERNAL_ERROR;
use crate::protocol::methods::{self, MethodRow};
use crate::protocol::{Message, meta};
use crate::tasks::Tasks;
use crate::telemetry::metrics::LABELED;
use crate::translate::project::{CacheScope, ErrorSubject, ProjectedError, ResultOrigin};
use crate::translate::{mapping, project};

/// Translates replies for their client.
#[derive(Debug)]
pub(super) struct ReplyMapper {
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) edits: EditDepth,
}

impl ReplyMapper {
    pub(super) fn bring_back(
        &self,
        call: &Call,
        target: &UpstreamTarget,
        source: &ReplySource,
        reply: Reply,
    ) -> Result<Reply, RelayFailure> {
        let message = match reply {
            Reply::Relayed(message) => message,
            Reply::Error(error) => return Ok(Reply::Error(written(target, error))),
            Reply::Result(_) => return Ok(reply),
        };
        if message.error().is_some() {
            let message = project::readable_error(message);
            let code = message.error_code().unwrap_or(INTERNAL_ERROR);
            return Ok(error(call, target, source, message, code));
        }
        let method = call.message.method().unwrap_or_default();
        let message = match &target.view {
            EndpointView::Pure => message,
            EndpointView::Merged(prefix) => mapping::result(prefix, method, message)?,
        };
        let message = in_directory(method, message, &target.upstream);
        let message = in_content(method, message, &target.upstream);
        let message = if known(call).is_some_and(MethodRow::is_paged) {
            self.page_of(call, target, message)?
        } else {
            message
        };
        let message = self.tasks.handles.show(call, target, message)?;
        let shared = |declared| is_shared(call.link.capabilities(), declared);
        let extended =
            project::is_of_unknown_kind(&message) && source.declared().is_some_and(shared);
        let origin = ResultOrigin {
            name: &target.upstream,
            extended,
            ..source.origin(call)
        };
        let shown = source.projection.result(message, &origin);
        let message = shown.map_err(|why| unusable(&target.upstream, why))?;
        Ok(Reply::Relayed(message))
    }

    /// A page of one upstream: as it is, but for its cursor and what the endpoint hides.
    fn page_of(
        &self,
        call: &Call,
        target: &UpstreamTarget,
        message: Message,
    ) -> Result<Message, Fault> {
        let message = match mapping::without_null_cursor(&message) {
            Some(bytes) => self.edits.parse(bytes)?,
            None => message,
        };
        let cursor = message.result_member("nextCursor");
        let given = target.request.as_ref();
        let given = given.and_then(|request| request.param("cursor"));
        // A cursor that stands still would let the client go round for ever.
        let is_last = cursor.is_some() && cursor == given;
        let kept = match message.result_member("tools") {
            Some(tools) if !call.endpoint.tools.is_empty() => {
                Some(mapping::kept_tools(tools, |name| {
                    self.policy
                        .shows_tool(&call.endpoint, &target.upstream, name)
                }))
            }
            _ => None,
        };
        if cursor.is_none() && kept.is_none() {
            return Ok(message);
        }
        let mut edit = message.edit();
        let cursors = &self.catalog.cursors;
        let sealed = cursor.map(|cursor| cursors.sealed(call, &target.upstream, cursor));
        if is_last {
            edit = edit.remove_result_member("nextCursor");
        } else if let Some(sealed) = &sealed {
            edit = edit.result_member("nextCursor", sealed.as_str());
        }
        if let Some(kept) = &kept {
            edit = edit.result_member("tools", kept.as_str());
            // A list filtered by policy is private to the caller (SPEC M-83).
            if message.result_member("cacheScope").is_some() {
                edit = edit.result_member("cacheScope", CacheScope::Private.as_json());
            }
        }
        self.edits.parse(edit.finish())
    }
}

/// The reply of an upstream. If a tool needs an answer that cannot be had, the model learns why.
/// Spec: BRIDGING §3.2, 7; SPEC M-40, M-41.
pub(super) fn explain_missing_answer(
    call: &Call,
    source: &ReplySource,
    reply: Result<Reply, Fault>,
) -> Result<Reply, Fault> {
    match reply {
        Err(fault)
            if fault.kind == FaultKind::CannotAsk
                && call.message.method() == Some("tools/call") =>
        {
            Ok(tool_failure(call, source, &fault.public))
        }
        reply => reply,
    }
}

/// The row of a call's method in the table of methods.
fn known(call: &Call) -> Option<&'static MethodRow> {
    methods::lookup(call.message.method()?)
}

/// An error written by the link, with names and URIs as the endpoint shows them.
fn written(target: &UpstreamTarget, error: Bytes) -> Bytes {
    match &target.view {
        EndpointView::Merged(prefix) => {
            let asked = target.name.as_deref().zip(target.shown.as_deref());
            mapping::written_error(prefix, error, asked)
        }
        EndpointView::Pure => error,
    }
}

/// An upstream's error as the client may see it.
fn error(
    call: &Call,
    target: &UpstreamTarget,
    source: &ReplySource,
    message: Message,
    code: i64,
) -> Reply {
    if let Some(refused) = without_bad_links(call, source, &target.upstream, &message) {
        return refused;
    }
    // What a modern client declared, also where we pass on less of it.
    let declared = call.message.meta(meta::CLIENT_CAPABILITIES);
    let asked = ErrorSubject {
        method: call.message.method().unwrap_or_default(),
        name: target.name.as_deref(),
        upstream: &target.upstream,
        declared: declared
            .unwrap_or_else(|| call.link.capabilities().text())
            .as_bytes(),
    };
    let turned = match project::error(source.projection, message, code, &asked) {
        ProjectedError::Relayed(message) => ProjectedError::Relayed(match &target.view {
            EndpointView::Merged(prefix) => {
                let asked = target.name.as_deref().zip(target.shown.as_deref());
                mapping::error(prefix, message, asked)
            }
            EndpointView::Pure => message,
        }),
        other => other,
    };
    let origin = source.origin(call);
    turned.into_reply(|result| source.projection.authored(result, &origin))
}

fn unusable(upstream: &Arc<str>, why: project::UnusableResult) -> Fault {
    LABELED.upstream_garbage.add(upstream, 1);
    Fault::upstream(
        FaultKind::UpstreamInvalid,
        format!("upstream \"{upstream}\" sent a result that cannot be shown"),
    )
    .caused_by(why)
}
