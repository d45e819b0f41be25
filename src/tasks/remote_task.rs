//! `RemoteTask`: a task at its upstream, and the gateway's own requests about it.

use std::iter::once;

use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, json, rpc};

/// A task that an upstream runs, in either design.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteTask<'a> {
    pub(super) link: &'a dyn UpstreamLink,
    /// The call that requests are sent for: questions and notifications of the upstream go to its client.
    pub(super) call: &'a Call,
    /// The upstream's id of the task.
    pub(super) id: &'a str,
}

impl RemoteTask<'_> {
    /// Sends a request about the task; `more` as for [`task_request`].
    ///
    /// # Errors
    /// The upstream did not answer.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request, not the task.
    pub(super) async fn send(&self, method: &str, more: &[(&str, &str)]) -> Result<Reply, Fault> {
        let request = task_request(method, self.id, more)?;
        self.link.call(&request, self.call).await
    }

    /// Whether `tasks/result` is to be asked again after `failed`: it hit the idle timeout of a call, and the upstream
    /// still knows the task.
    ///
    /// # Errors
    /// `failed` if not, or the fault of the question whether the upstream still knows the task.
    pub(super) async fn asks_again(&self, failed: Fault) -> Result<(), Fault> {
        let is_late = failed.kind == FaultKind::UpstreamTimeout;
        if is_late && self.send("tasks/get", &[]).await?.error().is_none() {
            return Ok(());
        }
        Err(failed)
    }
}

/// A request about the task `id`; `more` are further members of its parameters, each with the JSON text of its value.
pub(super) fn task_request(
    method: &str,
    id: &str,
    more: &[(&str, &str)],
) -> Result<Message, Fault> {
    let id = json::quote(id);
    let params = json::object(once(("taskId", &*id)).chain(more.iter().copied()));
    let text = rpc::request(0, method, Some(&params));
    Message::parse(text.into(), json::MAX_DEPTH).map_err(Fault::internal)
}
