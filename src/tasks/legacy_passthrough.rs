//! Tasks of 2025-11-25 between a client and an upstream that both speak it. The client gets handles
//! of the gateway, which are valid in its session alone. Spec: SPEC K-01 to K-05; BRIDGING §3.8.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::forgotten::note_forgotten;
use super::related_task::{beginning, mark};
use super::remote_task::RemoteTask;
use super::request::{TaskRequest, is_task, task_target};
use crate::call::{Call, Reply, ServerDeclaration};
use crate::fault::Fault;
use crate::outbound::{
    AuditedPolicy, EditDepth, SessionLinks, UpstreamTarget, given_cursor, invalid, required_text,
    unknown_method,
};
use crate::protocol::error_codes::INVALID_PARAMS;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Message, meta};
use crate::session::{Session, SessionTask, SessionTasks, TaskHandle, TaskSite, TaskStage};
use crate::telemetry::metrics::LABELED;
use crate::translate::task::state::{TaskStatus, UpstreamTask};

/// Whether calls of this client may run as tasks of an upstream that declared `declared`.
fn are_carried(session: &Session, declared: &ServerDeclaration) -> bool {
    session.implicit_session().is_none()
        && session.revision.has_tasks_capability()
        && declared.revision.has_tasks_capability()
        && declared.takes_tasks()
}

/// Passes tasks of 2025-11-25 on, under handles of the session.
#[derive(Debug)]
pub(crate) struct LegacyTasks {
    pub(super) links: Arc<SessionLinks>,
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) edits: EditDepth,
    /// `limits.tasks_per_session`.
    pub(super) most: usize,
}

impl LegacyTasks {
    /// Whether the calls of a session may run as tasks of an upstream.
    pub(super) async fn may_begin(&self, session: &Arc<Session>, target: &UpstreamTarget) -> bool {
        let declared = self.links.learn(session, &target.upstream, None).await;
        declared.is_ok_and(|declared| are_carried(session, &declared))
    }

    /// Refuses a method of tasks to a session that can have none.
    pub(super) async fn check(&self, session: &Arc<Session>, method: &str) -> Result<(), Fault> {
        if session.revision.has_tasks_capability() && method != "tasks/update" {
            let has_tasks = |d: &ServerDeclaration| are_carried(session, d) || d.hosts_tasks();
            if self.links.any_declares(session, has_tasks).await {
                return Ok(());
            }
        }
        Err(unknown_method(method))
    }

    /// The target of a request about a task of the session: the upstream that runs it.
    pub(super) fn target(&self, call: &Call, session: &Session) -> Result<UpstreamTarget, Fault> {
        let given = required_text(&call.message, "taskId")?;
        let unknown = || invalid("there is no such task here");
        let task = session.tasks().find(&given).ok_or_else(unknown)?;
        let TaskSite::There { id, .. } = task.run else {
            return Err(unknown());
        };
        task_target(call, &self.links, self.edits, task.upstream, &id)
    }

    /// Waits for the result of a task, for as long as a call may take in total: the idle timeout of calls does
    /// not apply.
    pub(super) async fn result(&self, about: TaskRequest<'_>) -> Result<Reply, Fault> {
        let (link, call, target) = (&**about.link, about.call, about.target);
        let id = target.name.as_deref().unwrap_or_default();
        let task = RemoteTask { link, call, id };
        let waiting = async {
            loop {
                match target.send(about.permit, link, call, self.edits).await {
                    Ok(reply) => return Ok(reply),
                    Err(fault) => task.asks_again(fault).await?,
                }
            }
        };
        let waited = tokio::time::timeout(about.patience(&self.links), waiting).await;
        waited.unwrap_or_else(|_| Err(about.late()))
    }

    /// `tasks/list`: the tasks of the session that its upstreams still know, in one page. Tasks of an
    /// upstream that does not answer within the time of merged lists are left out. Spec: SPEC G-03.
    pub(super) async fn list(&self, call: &Call, session: &Arc<Session>) -> Result<Reply, Fault> {
        if given_cursor(&call.message).is_some() {
            return Err(invalid("unknown cursor, list again from the start"));
        }
        let mut tasks = session.tasks().all();
        tasks.retain(|task| {
            self.policy
                .decide_part(call, &task.upstream, "tasks/list")
                .is_ok()
        });
        let until = Instant::now() + self.links.connect_wait;
        let states = tasks.iter().map(|task| async move {
            let state = self.state_of(call, session, task);
            let state = tokio::time::timeout_at(until, state).await;
            state.unwrap_or_else(|_| {
                LABELED.upstream_skipped.add(&task.upstream, 1);
                None
            })
        });
        let states = join_all(states).await;
        let list = json::array(states.into_iter().flatten());
        Ok(Reply::Result(json::object([("tasks", list)]).into()))
    }

    /// JSON text of a task for the client; `None` if the upstream no longer knows the task.
    async fn state_of(
        &self,
        call: &Call,
        session: &Arc<Session>,
        task: &SessionTask,
    ) -> Option<String> {
        let id = match &task.run {
            TaskSite::There { id, .. } => id,
            TaskSite::Here(hosted) => return Some(hosted.shown(&task.handle)),
        };
        let link = self.links.link(session, &task.upstream).ok()?;
        let remote = RemoteTask {
            link: &*link,
            call,
            id,
        };
        let reply = remote.send("tasks/get", &[]).await.ok()?;
        let status = note(session.tasks(), &task.handle, "tasks/get", &reply);
        named(reply.result()?, &task.handle, status)
    }

    /// Sends a call that its upstream is to run as a task, with the client's `task` (JSON text), and returns the
    /// task to the client. Messages of the upstream about the call are marked with the task: its handle is made
    /// before the call is sent.
    pub(super) async fn carry(&self, asked: TaskRequest<'_>, task: &str) -> Result<Reply, Fault> {
        let TaskRequest {
            permit,
            link,
            call,
            session,
            target,
        } = asked;
        let request = target.request_for(&**link, call, self.edits)?;
        let request = self
            .edits
            .parse(request.edit().param("task", task).finish())?;
        let handle = TaskHandle::mint();
        let call = Call {
            link: beginning(&call.link, handle.as_str(), session, &target.upstream),
            ..call.clone()
        };
        let reply = target.transmit(permit, &**link, &call, &request).await?;
        let Reply::Relayed(message) = &reply else {
            return Ok(reply);
        };
        let begun = message.result_member("task");
        let state = begun.and_then(UpstreamTask::read);
        let Some((text, state)) = begun.zip(state) else {
            return Ok(reply);
        };
        let max = self.most;
        let tasks = session.tasks();
        let known = tasks.add(&target.upstream, &state.id, handle, max);
        note_forgotten(known.forgotten.as_slice());
        session.record_changed();
        let status = stand(tasks, &known.handle, &state);
        let Some(task) = named(text, &known.handle, Some(status)) else {
            return Ok(reply);
        };
        let shown = message.edit().result_member("task", task).finish();
        Ok(Reply::Relayed(self.edits.parse(shown)?))
    }

    /// The reply to a request about tasks, with the handles that the client knows.
    pub(super) fn show(
        &self,
        call: &Call,
        session: &Session,
        target: &UpstreamTarget,
        reply: Reply,
    ) -> Result<Reply, Fault> {
        let Reply::Relayed(message) = &reply else {
            return Ok(reply);
        };
        let method = call.message.method().unwrap_or_default();
        if session.implicit_session().is_some() || !session.revision.has_tasks_capability() {
            return Ok(reply);
        }
        if !is_task(method) {
            return Ok(reply);
        }
        let handle = target.shown.as_deref().unwrap_or_default();
        // The task may have changed the lists of its upstream, as a tool call may.
        session.list_validity().called(&target.upstream);
        let status = note(session.tasks(), handle, method, &reply);
        let shown = match (method, message.result()) {
            ("tasks/result", Some(result)) => {
                let members = json::members(result).ok();
                let mark = mark(handle);
                members.map(|members| {
                    let marked = json::object_with(&members, "_meta", meta::RELATED_TASK, &mark);
                    message.edit().result(marked)
                })
            }
            (_, Some(result)) => {
                named(result, handle, status).map(|task| message.edit().result(task))
            }
            (_, None) => None,
        };
        let Some(shown) = shown else {
            return Ok(reply);
        };
        Ok(Reply::Relayed(self.edits.parse(shown.finish())?))
    }
}

/// Updates the task `handle` from an upstream's reply to `method`: advances its stage, or removes the task
/// if the upstream no longer knows it. Returns the status, if the reply contains one.
fn note(tasks: &SessionTasks, handle: &str, method: &str, reply: &Reply) -> Option<&'static str> {
    if method == "tasks/result" {
        // A `tasks/result` reply, success or error, leaves no further result to fetch.
        tasks.advance(handle, TaskStage::Fetched);
        return None;
    }
    let state = reply.result().and_then(UpstreamTask::read);
    // Spec: MCP 2025-11-25, tasks, "Protocol Errors".
    if method == "tasks/get" && reply.error_code() == Some(INVALID_PARAMS) {
        tasks.remove(handle);
    }
    state.map(|state| stand(tasks, handle, &state))
}

/// Records the task state shown by an upstream; returns the status word.
fn stand(tasks: &SessionTasks, handle: &str, state: &UpstreamTask<'_>) -> &'static str {
    tasks.stand(handle, stage_of(state), state.status.word())
}

/// Stage of a task by the state shown by its upstream. A cancelled task has no result to fetch.
fn stage_of(state: &UpstreamTask<'_>) -> TaskStage {
    match state.status {
        TaskStatus::Working | TaskStatus::InputRequired => TaskStage::Running,
        TaskStatus::Completed | TaskStatus::Failed => TaskStage::Over,
        TaskStatus::Cancelled => TaskStage::Fetched,
    }
}

/// The JSON text of a task with `handle` in place of its id, and with this status.
fn named(task: &str, handle: &str, status: Option<&str>) -> Option<String> {
    let mut out = ObjectWriter::default();
    for (name, value) in json::members(task).ok()? {
        match (&*name, status) {
            ("taskId", _) => out.member(&name, &json::quote(handle)),
            ("status", Some(status)) => out.member(&name, &json::quote(status)),
            _ => out.member(&name, value),
        }
    }
    Some(out.finish())
}

/// Translates `notifications/tasks/status` of an upstream for the session's client. A new status of a
/// finished task is not passed on (SPEC K-04).
pub(crate) fn status(session: &Session, upstream: &str, message: &Message) -> Option<Bytes> {
    let id = message.param_str("taskId")?;
    let handle = session.tasks().handle_of(upstream, &id)?;
    if let Some(state) = message.params().and_then(UpstreamTask::read)
        && stand(session.tasks(), &handle, &state) != state.status.word()
    {
        return None;
    }
    let named = message.edit().param("taskId", json::quote(&handle));
    Some(named.finish())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn reply(body: &str) -> Reply {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
        Reply::Relayed(Message::parse(text.into(), 128).unwrap())
    }

    // SPEC K-02, K-04.
    #[rstest]
    #[case(
        "tasks/get",
        r#""result":{"taskId":"t","status":"working"}"#,
        Some(TaskStage::Running)
    )]
    #[case(
        "tasks/get",
        r#""result":{"taskId":"t","status":"failed"}"#,
        Some(TaskStage::Over)
    )]
    #[case(
        "tasks/cancel",
        r#""result":{"taskId":"t","status":"cancelled"}"#,
        Some(TaskStage::Fetched)
    )]
    #[case(
        "tasks/cancel",
        r#""error":{"code":-32602,"message":"over"}"#,
        Some(TaskStage::Running)
    )]
    #[case("tasks/result", r#""result":{"content":[]}"#, Some(TaskStage::Fetched))]
    #[case(
        "tasks/result",
        r#""error":{"code":-32602,"message":"m"}"#,
        Some(TaskStage::Fetched)
    )]
    #[case(
        "tasks/get",
        r#""error":{"code":-32603,"message":"m"}"#,
        Some(TaskStage::Running)
    )]
    #[case("tasks/get", r#""error":{"code":-32602,"message":"unknown"}"#, None)]
    fn what_an_upstream_replies_tells_how_far_its_task_has_come(
        #[case] method: &str,
        #[case] said: &str,
        #[case] expected: Option<TaskStage>,
    ) {
        let tasks = SessionTasks::default();
        let known = tasks.add(&"up".into(), "t", TaskHandle::mint(), 9);
        note(&tasks, &known.handle, method, &reply(said));
        let stage = tasks.find(&known.handle).map(|task| match task.run {
            TaskSite::There { stage, .. } => stage,
            TaskSite::Here(_) => panic!("it runs at its upstream"),
        });
        assert_eq!(stage, expected);
    }
}
