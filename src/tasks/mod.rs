//! Tasks: calls that continue after their first answer. Two designs exist: tasks of 2025-11-25, requested by
//! the caller (*legacy*), and tasks of the extension, begun by the server. The state of a task has one model for both
//! (`translate::task::state`). These modules serve each pair of client and upstream:
//!
//! | client ╲ upstream | legacy | extension |
//! | --- | --- | --- |
//! | knows no tasks | `run_to_completion` | `run_to_completion` |
//! | legacy | `legacy_passthrough` | `gateway_task`: the gateway runs the task |
//! | extension | `extension_over_legacy` | `extension_passthrough` |
//!
//! `tool_call` decides which of them a call takes, `wait` waits for a task of either design, `related_task` marks
//! messages with their task, `remote_task` asks an upstream about one, `follow` sends the status of tasks to
//! subscriptions, `shown_error` gives the error of a failed task the code of a call. Spec: SPEC §11; BRIDGING §3.8.

mod cancel_on_drop;
mod declare;
mod extension_over_legacy;
mod extension_passthrough;
mod follow;
mod forgotten;
mod gateway_task;
mod gateway_task_requests;
mod inputs;
mod legacy_passthrough;
mod pending_input;
mod polling;
mod related_task;
mod remote_task;
mod request;
mod run_to_completion;
mod sealed;
mod shown_error;
mod tool_call;
mod wait;

use std::sync::{Arc, Weak};

use self::extension_over_legacy::ExtensionOverLegacy;
use self::extension_passthrough::TaskHandles;
pub use self::follow::FollowedTask;
use self::gateway_task::GatewayTasks;
pub(crate) use self::gateway_task_requests::OwnTask;
use self::legacy_passthrough::LegacyTasks;
pub(crate) use self::legacy_passthrough::status;
use self::pending_input::PendingInputs;
pub(crate) use self::related_task::{marking, renamed};
use self::request::concerns_one;
pub(crate) use self::request::{TaskRequest, asks_for_task, is_of_tasks};
use self::run_to_completion::TaskRunner;
use self::tool_call::ToolCalls;
use crate::call::{Call, Principal, Reply};
use crate::config::LimitsConfig;
use crate::fault::Fault;
use crate::outbound::{
    AuditedPolicy, EditDepth, RelayFailure, ReplySources, RequestHandler, SessionLinks,
    UpstreamTarget,
};
use crate::protocol::methods::MethodRow;
use crate::seal::Sealer;
use crate::session::{Session, SessionRegistry};

/// Tasks of either design.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) calls: ToolCalls,
    pub(crate) handles: Arc<TaskHandles>,
    legacy: Arc<LegacyTasks>,
    gateway: GatewayTasks,
    over_legacy: Arc<ExtensionOverLegacy>,
    edits: EditDepth,
    handler: Weak<dyn RequestHandler>,
}

/// The parts that [`Tasks`] are made from.
#[derive(Debug)]
pub(crate) struct TaskParts<'a> {
    pub(crate) limits: &'a LimitsConfig,
    pub(crate) links: &'a Arc<SessionLinks>,
    pub(crate) policy: &'a Arc<AuditedPolicy>,
    pub(crate) sealer: &'a Arc<Sealer>,
    pub(crate) sessions: &'a Arc<SessionRegistry>,
    pub(crate) sources: &'a ReplySources,
    pub(crate) edits: EditDepth,
    pub(crate) handler: Weak<dyn RequestHandler>,
}

/// Where a request of a legacy client about tasks goes.
#[derive(Debug)]
pub(crate) enum TaskRoute {
    /// To a task that is run here.
    Here(OwnTask),
    /// To no upstream: this is the list of the session's tasks.
    Listed(Reply),
    /// To the upstream that runs the task.
    There(UpstreamTarget),
}

impl Tasks {
    pub(crate) fn new(parts: TaskParts<'_>) -> Self {
        let TaskParts {
            limits,
            links,
            policy,
            sealer,
            sessions,
            sources,
            edits,
            handler,
        } = parts;
        let links = || Arc::clone(links);
        let handles = Arc::new(TaskHandles {
            links: links(),
            sealer: Arc::clone(sealer),
            sessions: Arc::clone(sessions),
            edits,
        });
        let legacy = Arc::new(LegacyTasks {
            links: links(),
            policy: Arc::clone(policy),
            edits,
            most: limits.tasks_per_session,
        });
        let over_legacy = Arc::new(ExtensionOverLegacy {
            handles: Arc::clone(&handles),
            pending_inputs: PendingInputs::new(limits.parked_per_principal, limits.parked_total),
            sources: sources.clone(),
            spawner: links().spawner.clone(),
        });
        Self {
            calls: ToolCalls {
                links: links(),
                legacy: Arc::clone(&legacy),
                over_legacy: Arc::clone(&over_legacy),
                runner: TaskRunner {
                    links: links(),
                    sources: sources.clone(),
                },
                edits,
            },
            gateway: GatewayTasks {
                links: links(),
                policy: Arc::clone(policy),
                sessions: Arc::clone(sessions),
                limits: limits.clone(),
                handler: Weak::clone(&handler),
            },
            handles,
            legacy,
            over_legacy,
            edits,
            handler,
        }
    }

    /// Where a request of a legacy client about tasks goes.
    ///
    /// # Errors
    /// The session can have no tasks, or has no such task.
    pub(crate) async fn route(
        &self,
        call: &Call,
        session: &Arc<Session>,
        method: &str,
    ) -> Result<TaskRoute, Fault> {
        // No upstream is contacted or checked for a task that the gateway runs.
        if let Some(own) = OwnTask::find(call, session) {
            return Ok(TaskRoute::Here(own));
        }
        Box::pin(self.legacy.check(session, method)).await?;
        if method == "tasks/list" {
            let list = Box::pin(self.legacy.list(call, session)).await?;
            return Ok(TaskRoute::Listed(list));
        }
        Ok(TaskRoute::There(self.legacy.target(call, session)?))
    }

    /// The target of a modern client's request; `None` unless the request concerns one task.
    ///
    /// # Errors
    /// The client has no such task.
    pub(crate) fn target(
        &self,
        call: &Call,
        known: Option<&MethodRow>,
    ) -> Result<Option<UpstreamTarget>, Fault> {
        let is_about_one = known.is_some_and(concerns_one);
        is_about_one.then(|| self.handles.target(call)).transpose()
    }

    /// The answer to a request of a modern client about a task that was lost with its replica; `None` for any other one.
    pub(crate) fn lost(&self, call: &Call, known: Option<&MethodRow>) -> Option<Reply> {
        let is_about_one = known.is_some_and(concerns_one);
        is_about_one.then(|| self.over_legacy.lost(call)).flatten()
    }

    /// Begins a task for a call that requests one, if the gateway runs the tasks of its upstream; otherwise
    /// `None`. The policy decides about the call as about one without a task.
    ///
    /// # Errors
    /// [`RelayFailure`] when the call is denied or a limit is reached.
    pub(crate) async fn begin(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
    ) -> Result<Option<Reply>, RelayFailure> {
        self.gateway.begin(call, session, target).await
    }

    /// Answers a request about a task that is run here.
    ///
    /// # Errors
    /// [`RelayFailure`] when it is not allowed, or the task does not let it.
    pub(crate) async fn handle(&self, call: &Call, own: &OwnTask) -> Result<Reply, RelayFailure> {
        self.gateway.answer(call, own).await
    }

    /// Sends a request about a task to the upstream that runs it; its reply names the task as its client does.
    ///
    /// # Errors
    /// The upstream did not answer.
    pub(crate) async fn send(&self, request: TaskRequest<'_>) -> Result<Reply, Fault> {
        let (call, session, target) = (request.call, request.session, request.target);
        let method = call.message.method().unwrap_or_default();
        let reply = if target.home.is_some() {
            self.over_legacy.answer(request).await
        } else if method == "tasks/result" && session.implicit_session().is_none() {
            self.legacy.result(request).await
        } else {
            let link = &**request.link;
            target.send(request.permit, link, call, self.edits).await
        };
        if let (Some(implicit_session), "tasks/update" | "tasks/cancel") =
            (session.implicit_session(), method)
        {
            implicit_session.task_changed();
        }
        self.legacy.show(call, session, target, reply?)
    }

    /// Begins to follow a task; `None` if the client has no such task, or the upstream does not return its state.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub(crate) async fn follow(
        &self,
        principal: &Arc<Principal>,
        session: &Arc<Session>,
        id: &str,
    ) -> Option<FollowedTask> {
        let handler = self.handler.upgrade()?;
        let call = follow::asking(principal, session, id)?;
        let (_, _, home) = self.handles.open(&call, id)?;
        let home = home.as_ref().unwrap_or(session).implicit_session()?;
        FollowedTask::begin(handler, principal, session, id, home.task_changes()).await
    }
}
