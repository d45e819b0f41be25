//! Requests about tasks: their methods, the part of a call that asks for a task, and `TaskRequest`, a request on its way to
//! an upstream that may become a task or is about one.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::outbound::{EditDepth, SessionLinks, UpstreamTarget, required_text};
use crate::policy::Permit;
use crate::protocol::methods::{self, MethodRow, NeededCapability, UpstreamParam};
use crate::protocol::{Message, json};
use crate::session::Session;
use crate::sync::on_drop::OnDrop;

/// Whether a request of `method` is about one task.
pub(super) fn is_task(method: &str) -> bool {
    methods::lookup(method).is_some_and(concerns_one)
}

/// [`is_task`] for a method that was looked up already.
pub(super) fn concerns_one(known: &MethodRow) -> bool {
    known.target == Some(UpstreamParam::Task)
}

/// Whether a method belongs to tasks.
pub(crate) fn is_of_tasks(method: &str) -> bool {
    methods::lookup(method).is_some_and(|known| known.needs == NeededCapability::Tasks)
}

/// Whether a client asks for a task of the design that it knows.
pub(crate) fn asks_for_task(call: &Call, session: &Session) -> bool {
    session.implicit_session().is_none()
        && call.revision.has_tasks_capability()
        && call.message.method() == Some("tools/call")
        && wanted(&call.message).is_some()
}

/// `params.task` of a request, JSON text; `None` if `null`.
pub(super) fn wanted(request: &Message) -> Option<&str> {
    request.param("task").filter(|task| *task != "null")
}

/// The target of a request about a task, which `upstream` runs as `id`.
///
/// # Errors
/// The request names no task, or cannot be rewritten.
pub(super) fn task_target(
    call: &Call,
    links: &SessionLinks,
    edits: EditDepth,
    upstream: Arc<str>,
    id: &str,
) -> Result<UpstreamTarget, Fault> {
    let shown = required_text(&call.message, "taskId")?.into_owned();
    let edited = call.message.edit().param("taskId", json::quote(id));
    let view = links.views.of(&call.endpoint, &upstream);
    let request = edits.parse(edited.finish())?;
    let names = (shown, id.to_owned());
    Ok(UpstreamTarget::naming(upstream, view, names, request))
}

/// A request that may become a task, or is about one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskRequest<'a> {
    pub(crate) permit: &'a Permit,
    pub(crate) link: &'a Arc<dyn UpstreamLink>,
    pub(crate) call: &'a Call,
    pub(crate) session: &'a Arc<Session>,
    pub(crate) target: &'a UpstreamTarget,
}

impl<'a> TaskRequest<'a> {
    /// Sends a tool call. Until its reply arrives, the lists of its upstream may change.
    ///
    /// # Errors
    /// The upstream did not answer.
    pub(super) async fn run(&self, edits: EditDepth) -> Result<Reply, Fault> {
        let _called = self.running();
        let link = &**self.link;
        self.target.send(self.permit, link, self.call, edits).await
    }

    /// A guard that notes that the call runs at its upstream, until it is dropped.
    pub(super) fn running(&self) -> OnDrop<impl FnOnce() + use<'a>> {
        let lists = self.session.list_validity();
        lists.calling(&self.target.upstream)
    }

    /// How long a task may take.
    pub(super) fn patience(&self, links: &SessionLinks) -> Duration {
        let settings = links.upstreams.settings(&self.target.upstream);
        settings.map_or(Duration::ZERO, |settings| settings.total_timeout)
    }

    /// The fault of a task that takes longer.
    pub(super) fn late(&self) -> Fault {
        let upstream = &self.target.upstream;
        let text = format!("the task of upstream \"{upstream}\" did not end in time");
        Fault::upstream(FaultKind::UpstreamTimeout, text)
    }
}
