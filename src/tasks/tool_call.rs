//! `ToolCalls`: sends a tool call, which its upstream may answer with a task, or take only as one.
//! Spec: SPEC K-01, K-10; BRIDGING §3.8.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::declare::{declaring, is_declared, would_help};
use super::extension_over_legacy::ExtensionOverLegacy;
use super::legacy_passthrough::LegacyTasks;
use super::request::{TaskRequest, wanted};
use super::run_to_completion::{TaskRunner, as_task, unasked};
use crate::call::{Call, Reply};
use crate::fault::Fault;
use crate::outbound::{EditDepth, SessionLinks};
use crate::protocol::json;
use crate::translate::task::state::{TaskDialect, UpstreamTask};

/// Sends tool calls.
#[derive(Debug)]
pub(crate) struct ToolCalls {
    pub(super) links: Arc<SessionLinks>,
    pub(super) legacy: Arc<LegacyTasks>,
    pub(super) over_legacy: Arc<ExtensionOverLegacy>,
    pub(super) runner: TaskRunner,
    pub(super) edits: EditDepth,
}

/// Which sides accept that a call becomes a task.
#[derive(Debug, Clone, Copy)]
struct TaskRoles {
    /// The gateway, by configuration: it waits for the task's result.
    gateway: bool,
    /// The client, which declares the extension.
    client: bool,
}

impl ToolCalls {
    /// Sends the call. If its upstream makes a task of it and the client takes none, waits for the task's result.
    /// `tool` looks up the declaration of the tool (JSON text), if the decision depends on it.
    ///
    /// # Errors
    /// The upstream did not answer, or began a task without being asked to.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request, and the task that it has become.
    pub(crate) async fn send<'a>(
        &'a self,
        request: TaskRequest<'a>,
        tool: impl FnOnce() -> BoxFuture<'a, Option<Bytes>>,
    ) -> Result<Reply, Fault> {
        let (link, call, target) = (request.link, request.call, request.target);
        if call.revision.has_tasks_capability()
            && let Some(task) = wanted(&call.message)
            && Box::pin(self.legacy.may_begin(request.session, target)).await
        {
            let _called = request.running();
            return Box::pin(self.legacy.carry(request, task)).await;
        }
        let roles = self.roles(request);
        if (roles.gateway || roles.client)
            && link
                .declared()
                .is_none_or(|declared| declared.takes_tasks())
            && Box::pin(self.runs_only_as_task(request, tool)).await
        {
            return Box::pin(self.send_as_task(request, roles)).await;
        }
        let reply = request.run(self.edits).await?;
        if roles.client {
            return Ok(reply);
        }
        if roles.gateway && would_help(&reply, call) {
            return Box::pin(self.declare_and_send_again(request)).await;
        }
        match UpstreamTask::begun(&reply, TaskDialect::Extension) {
            None => Ok(reply),
            Some(_) if !roles.gateway => Err(unasked(&target.upstream)),
            Some(state) => {
                let call = declaring(call);
                let begun = TaskRequest {
                    call: &call,
                    ..request
                };
                Box::pin(self.hold(begun, &state, TaskDialect::Extension)).await
            }
        }
    }

    fn roles(&self, request: TaskRequest<'_>) -> TaskRoles {
        let settings = self.links.upstreams.settings(&request.target.upstream);
        TaskRoles {
            gateway: settings.is_some_and(|settings| settings.run_tasks),
            client: request.session.implicit_session().is_some() && is_declared(request.call),
        }
    }

    async fn hold(
        &self,
        begun: TaskRequest<'_>,
        state: &UpstreamTask<'_>,
        dialect: TaskDialect,
    ) -> Result<Reply, Fault> {
        let _called = begun.running();
        self.runner.hold(begun, state, dialect).await
    }

    /// Sends the call as a task of 2025-11-25: the client gets the task if it takes one, else its result.
    async fn send_as_task(
        &self,
        request: TaskRequest<'_>,
        roles: TaskRoles,
    ) -> Result<Reply, Fault> {
        let (link, call, target) = (request.link, request.call, request.target);
        let plain = target.request_for(&**link, call, self.edits)?;
        let patience = request.patience(&self.links);
        let message = self.edits.parse(as_task(&plain, patience))?;
        let called = request.running();
        let reply = target
            .transmit(request.permit, &**link, call, &message)
            .await?;
        drop(called);
        let Some(state) = UpstreamTask::begun(&reply, TaskDialect::Legacy) else {
            return Ok(reply);
        };
        if roles.client {
            return self.over_legacy.begun(request, &state);
        }
        self.hold(request, &state, TaskDialect::Legacy).await
    }

    /// Sends a call again that its upstream refused for want of the extension, before it ran: declared for the
    /// gateway, over a modern link, as a legacy session cannot declare the extension.
    async fn declare_and_send_again(&self, request: TaskRequest<'_>) -> Result<Reply, Fault> {
        let newer = self.runner.newer_link(&**request.link, request.session);
        let newer = newer.await;
        let link = newer.as_ref().unwrap_or(request.link);
        let call: &Call = &declaring(request.call);
        let request = TaskRequest {
            link,
            call,
            ..request
        };
        let reply = request.run(self.edits).await?;
        match UpstreamTask::begun(&reply, TaskDialect::Extension) {
            None => Ok(reply),
            Some(state) => self.hold(request, &state, TaskDialect::Extension).await,
        }
    }

    /// Whether a tool of a legacy upstream can be called only as a task. Spec: SPEC K-01.
    async fn runs_only_as_task<'a>(
        &self,
        request: TaskRequest<'a>,
        tool: impl FnOnce() -> BoxFuture<'a, Option<Bytes>>,
    ) -> bool {
        let (session, target) = (request.session, request.target);
        let declared = match request.link.declared() {
            Some(declared) => Some(declared),
            None => self.links.learn(session, &target.upstream, None).await.ok(),
        };
        if !declared.is_some_and(|declared| declared.takes_tasks()) || target.name.is_none() {
            return false;
        }
        tool()
            .await
            .as_deref()
            .and_then(|tool| std::str::from_utf8(tool).ok())
            .and_then(|tool| json::member(tool, "execution"))
            .and_then(|execution| json::member(execution, "taskSupport"))
            == Some("\"required\"")
    }
}
