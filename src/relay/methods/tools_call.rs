//! `tools/call`: arguments that are repeated in headers, tools that run as tasks, output that is wrapped.
//! Spec: SPEC C-92, K-01, K-10, M-33; BRIDGING §3.8.

use std::sync::Arc;

use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::outbound::RelayFailure;
use crate::protocol::{Revision, json};
use crate::relay::forward::{Forward, Opened};
use crate::relay::tasks::{
    BridgedRequest, as_task, declaring, is_declared, unasked, wanted, would_help,
};
use crate::session::Session;
use crate::translate::task::state::{TaskDialect, UpstreamTask};

/// # Errors
/// A header disagrees with the arguments, or the upstream did not answer.
pub(super) async fn handle(forward: &Forward<'_>) -> Result<Reply, RelayFailure> {
    if forward.call.param_headers.is_some() {
        let (call, session) = (forward.call, forward.session);
        Box::pin(
            forward
                .relay
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
            .relay
            .catalog
            .tools
            .is_wrapped(session, &target.upstream, tool)
    };
    matches!(
        forward.call.revision,
        Revision::V2025_06_18 | Revision::V2025_11_25
    ) && target.name.as_deref().is_some_and(asks_for_objects)
}

/// Who takes a task that a call may become.
#[derive(Debug, Clone, Copy)]
struct TaskRoles {
    /// The gateway, by configuration: it waits for the task's result.
    gateway: bool,
    /// The client, which declares the extension.
    client: bool,
}

impl TaskRoles {
    fn of(forward: &Forward<'_>, call: &Call) -> Self {
        let settings = forward
            .relay
            .links
            .upstreams
            .settings(&forward.target.upstream);
        Self {
            gateway: settings.is_some_and(|settings| settings.run_tasks),
            client: forward.session.implicit_session().is_some() && is_declared(call),
        }
    }
}

/// Sends the call. If its upstream makes a task of it and the client takes none, waits for the task's result.
///
/// # Cancel safety
/// Dropping the future cancels the request, and the task that it has become.
pub(crate) async fn send(forward: &Forward<'_>, opened: &Opened<'_>) -> Result<Reply, Fault> {
    let (relay, session, target) = (forward.relay, forward.session, forward.target);
    let (link, call) = (&opened.link, opened.call(forward));
    if call.revision.has_tasks_capability()
        && let Some(task) = wanted(&call.message)
        && Box::pin(relay.may_have_tasks(session, target)).await
    {
        let _called = Called::begin(forward);
        let begun = relay.carry(&forward.permit, &**link, call, session, target, task);
        return Box::pin(begun).await;
    }
    let roles = TaskRoles::of(forward, call);
    if (roles.gateway || roles.client)
        && link
            .declared()
            .is_none_or(|declared| declared.takes_tasks())
        && Box::pin(runs_only_as_task(forward, opened)).await
    {
        return Box::pin(send_as_task(forward, opened, roles)).await;
    }
    let called = Called::begin(forward);
    let reply = forward.send(opened).await?;
    drop(called);
    if roles.client {
        return Ok(reply);
    }
    if roles.gateway && would_help(&reply, call) {
        return Box::pin(declare_and_send_again(forward, opened)).await;
    }
    match UpstreamTask::begun(&reply, TaskDialect::Extension) {
        None => Ok(reply),
        Some(_) if !roles.gateway => Err(unasked(&target.upstream)),
        Some(state) => {
            let _called = Called::begin(forward);
            let call = declaring(call);
            let held = relay.hold(link, &call, session, target, &state, TaskDialect::Extension);
            Box::pin(held).await
        }
    }
}

/// Sends the call as a task of 2025-11-25: the client gets the task if it takes one, else its result.
async fn send_as_task(
    forward: &Forward<'_>,
    opened: &Opened<'_>,
    roles: TaskRoles,
) -> Result<Reply, Fault> {
    let (relay, session, target) = (forward.relay, forward.session, forward.target);
    let (link, call) = (&opened.link, opened.call(forward));
    let request = target.request_for(&**link, call, relay.edits)?;
    let request = relay
        .edits
        .parse(as_task(&request, relay.patience(target)))?;
    let called = Called::begin(forward);
    let reply = target
        .transmit(&forward.permit, &**link, call, &request)
        .await?;
    drop(called);
    let Some(state) = UpstreamTask::begun(&reply, TaskDialect::Legacy) else {
        return Ok(reply);
    };
    if roles.client {
        let bridged = BridgedRequest {
            relay,
            link,
            call,
            session,
            target,
        };
        return bridged.begun(&state);
    }
    let _called = Called::begin(forward);
    relay
        .hold(link, call, session, target, &state, TaskDialect::Legacy)
        .await
}

/// Sends a call again that its upstream refused for want of the extension, before it ran: declared for the gateway,
/// over a modern link, as a legacy session cannot declare the extension.
async fn declare_and_send_again(
    forward: &Forward<'_>,
    opened: &Opened<'_>,
) -> Result<Reply, Fault> {
    let (relay, session, target) = (forward.relay, forward.session, forward.target);
    let newer = relay.newer_link(&*opened.link, session).await;
    let link = newer.as_ref().unwrap_or(&opened.link);
    let call = declaring(opened.call(forward));
    let called = Called::begin(forward);
    let reply = target
        .send(&forward.permit, &**link, &call, relay.edits)
        .await?;
    drop(called);
    match UpstreamTask::begun(&reply, TaskDialect::Extension) {
        None => Ok(reply),
        Some(state) => {
            let _called = Called::begin(forward);
            relay
                .hold(link, &call, session, target, &state, TaskDialect::Extension)
                .await
        }
    }
}

/// Whether a tool of a legacy upstream can be called only as a task. Spec: SPEC K-01.
async fn runs_only_as_task(forward: &Forward<'_>, opened: &Opened<'_>) -> bool {
    let (relay, session) = (forward.relay, forward.session);
    let upstream = &forward.target.upstream;
    let declared = match opened.link.declared() {
        Some(declared) => Some(declared),
        None => relay.links.learn(session, upstream, None).await.ok(),
    };
    let (Some(declared), Some(name)) = (declared, forward.target.name.as_deref()) else {
        return false;
    };
    if !declared.takes_tasks() {
        return false;
    }
    let tool = relay
        .catalog
        .tools
        .tool_of(opened.call(forward), session, upstream, name)
        .await;
    tool.as_deref()
        .and_then(|tool| std::str::from_utf8(tool).ok())
        .and_then(|tool| json::member(tool, "execution"))
        .and_then(|execution| json::member(execution, "taskSupport"))
        == Some("\"required\"")
}

/// A request that runs at its upstream: from its beginning to its end, what the upstream lists may change without notice,
/// so that an unannounced list is not believed. Not begun before the gateway's own look at the tool's declaration, which
/// then could use no list of another session.
struct Called<'a>(&'a Session, &'a Arc<str>);

impl<'a> Called<'a> {
    fn begin(forward: &Forward<'a>) -> Self {
        let (session, upstream) = (&**forward.session, &forward.target.upstream);
        session.list_validity().called(upstream);
        Self(session, upstream)
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.0.list_validity().called(self.1);
    }
}
