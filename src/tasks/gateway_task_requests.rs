//! Requests about tasks that are run here. Spec: SPEC K-03, K-04; BRIDGING §3.8.

use std::sync::Arc;

use bytes::Bytes;

use super::gateway_task::GatewayTasks;
use super::related_task::{mark, marked};
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::outbound::{RelayFailure, invalid, outcome};
use crate::protocol::{json, meta};
use crate::session::{GatewayTask, Session, TaskOutcome, TaskSite};

/// JSON text of the error that a cancelled task has in place of a result.
const CANCELLED: Bytes =
    Bytes::from_static(br#"{"code":-32603,"message":"the task was cancelled"}"#);

/// A task that a request is about, and that is run here.
#[derive(Debug)]
pub(crate) struct OwnTask {
    session: Arc<Session>,
    upstream: Arc<str>,
    /// Its handle for the client.
    handle: Arc<str>,
    task: Arc<GatewayTask>,
}

impl GatewayTasks {
    /// Answers a request about a task that is run here. Decided about and audited like any other.
    ///
    /// # Errors
    /// [`RelayFailure`] when it is not allowed, or the task does not let it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the task as it is.
    pub(super) async fn answer(&self, call: &Call, own: &OwnTask) -> Result<Reply, RelayFailure> {
        let method = call.message.method().unwrap_or_default();
        let _permit = self.policy.decide_part(call, &own.upstream, method)?;
        call.link.routed(&own.upstream);
        let audited = self.policy.audit_part(call, &own.upstream);
        let reply = match method {
            "tasks/result" => {
                let result = own.result(call).await;
                own.session.record_changed();
                result
            }
            "tasks/cancel" if !own.task.end(TaskOutcome::Cancelled) => {
                Err(invalid("the task is over already"))
            }
            _ => Ok(Reply::Result(own.task.shown(&own.handle).into())),
        };
        audited.end(outcome(&reply));
        Ok(reply?)
    }
}

impl OwnTask {
    /// The task that a request of the session is about, where it is run here.
    pub(super) fn find(call: &Call, session: &Arc<Session>) -> Option<Self> {
        let method = call.message.method();
        if !matches!(method, Some("tasks/get" | "tasks/result" | "tasks/cancel")) {
            return None;
        }
        let given = call.message.param_str("taskId")?;
        let known = session.tasks().find(&given)?;
        match known.run {
            TaskSite::Here(task) => Some(Self {
                session: Arc::clone(session),
                upstream: known.upstream,
                handle: known.handle,
                task,
            }),
            TaskSite::There { .. } => None,
        }
    }

    /// Waits for the outcome of the task; meanwhile its questions go out on this call's stream.
    async fn result(&self, call: &Call) -> Result<Reply, Fault> {
        let client = marked(&call.link, &self.handle);
        let outcome = tokio::select! {
            outcome = self.task.outcome(&*client) => outcome,
            () = call.cancel.cancelled() => {
                return Err(Fault::downstream(FaultKind::Cancelled, "the request was cancelled"));
            }
        };
        Ok(match &*outcome {
            TaskOutcome::Result(result, _) => {
                let text = std::str::from_utf8(result).unwrap_or("{}");
                let members = json::members(text).map_err(Fault::internal)?;
                let mark = mark(&self.handle);
                let result = json::object_with(&members, "_meta", meta::RELATED_TASK, &mark);
                Reply::Result(result.into())
            }
            TaskOutcome::Error(error, _) => Reply::Error(error.clone()),
            TaskOutcome::Cancelled => Reply::Error(CANCELLED),
        })
    }
}
