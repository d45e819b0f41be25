//! Requests of tasks: which methods are about them, what of a call asks for one, and the gateway's own requests.

use crate::call::Call;
use crate::fault::Fault;
use crate::protocol::methods::{self, MethodRow, NeededCapability, UpstreamParam};
use crate::protocol::{Message, json, rpc};
use crate::session::Session;

/// Whether a request of `method` is about one task.
pub(super) fn is_task(method: &str) -> bool {
    methods::lookup(method).is_some_and(concerns_one)
}

/// [`is_task`] for a method that was looked up already.
pub(super) fn concerns_one(known: &MethodRow) -> bool {
    known.target == Some(UpstreamParam::Task)
}

/// Whether a method is there for tasks.
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

/// A request about the task `id`; `more` as in [`CancelOnDrop::send`](super::cancel_on_drop::CancelOnDrop::send).
pub(super) fn request(method: &str, id: &str, more: &str) -> Result<Message, Fault> {
    let params = format!("{{\"taskId\":{}{more}}}", json::quote(id));
    let text = rpc::request(0, method, Some(&params));
    Message::parse(text.into(), json::MAX_DEPTH).map_err(Fault::internal)
}
