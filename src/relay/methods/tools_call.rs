//! `tools/call`: arguments that are repeated in headers, tools that run as tasks, output that is wrapped.
//! Spec: SPEC C-92, K-01, K-10, M-33; BRIDGING §3.8.

use crate::call::Reply;
use crate::fault::Fault;
use crate::outbound::RelayFailure;
use crate::protocol::Revision;
use crate::relay::forward::{Forward, OpenedForward};
use crate::tasks::TaskRequest;

/// # Errors
/// A header disagrees with the arguments, or the upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    if forward.call.param_headers.is_some() {
        let (call, session) = (forward.call, forward.session);
        Box::pin(
            forward
                .parts
                .catalog
                .tools
                .check_param_headers(call, session, forward.target),
        )
        .await?;
    }
    let opened = forward.open(forward.audit()).await?;
    let reply = forward.exchange(&opened).await;
    let mut source = forward.source(&opened);
    source.wraps = wraps(forward);
    forward.respond_from(opened, &source, reply)
}

/// Whether the tool's structured content is to be wrapped as its schema was (SPEC C-92).
fn wraps(forward: &Forward<'_>) -> bool {
    let (session, target) = (forward.session, forward.target);
    let asks_for_objects = |tool| {
        forward
            .parts
            .catalog
            .tools
            .is_wrapped(session, &target.upstream, tool)
    };
    matches!(
        forward.call.revision,
        Revision::V2025_06_18 | Revision::V2025_11_25
    ) && target.name.as_deref().is_some_and(asks_for_objects)
}

/// Sends the call, which may become a task. Dropping the future cancels the request, and the task.
pub(in crate::relay) fn send<'o>(
    forward: &'o Forward<'_>,
    opened: &'o OpenedForward<'_>,
) -> impl Future<Output = Result<Reply, Fault>> + Send + 'o {
    let request = forward.task_request(opened);
    forward.parts.tasks.calls.send(request, move || {
        Box::pin(async move {
            let TaskRequest {
                call,
                session,
                target,
                ..
            } = request;
            let (tools, name) = (&forward.parts.catalog.tools, target.name.as_deref()?);
            tools.tool_of(call, session, &target.upstream, name).await
        })
    })
}
