//! Tasks of 2025-11-25 between a client and an upstream that both speak it. The client knows its
//! tasks by names of ours, which are good in its session alone. Spec: SPEC K-01 to K-05; BRIDGING §3.8.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};

use super::handle::is_task;
use super::state::State;
use super::watched::request;
use crate::call::{
    Asked, Call, ClientCapabilities, Declared, DownstreamLink, Notice, Question, Reply, Round,
    UpstreamLink,
};
use crate::fault::{Fault, FaultKind};
use crate::policy::Permit;
use crate::protocol::json::{self, ObjectWriter};
use crate::protocol::{Message, meta};
use crate::relay::Relay;
use crate::relay::route::{Target, invalid, unknown_method};
use crate::session::{Run, Session, Task};
use crate::telemetry::metrics::COUNTERS;

/// Whether calls of this client may run as tasks of an upstream that declared `declared`.
fn are_carried(session: &Session, declared: &Declared) -> bool {
    session.visit().is_none()
        && session.revision.has_tasks_capability()
        && declared.revision.has_tasks_capability()
        && declared.takes_tasks()
}

impl Relay {
    /// Whether the calls of a session may run as tasks of an upstream.
    pub(super) async fn may_have_tasks(&self, session: &Arc<Session>, target: &Target) -> bool {
        let declared = self.learn(session, &target.upstream, None).await;
        declared.is_ok_and(|declared| are_carried(session, &declared))
    }

    /// Refuses a method of tasks to a session that can have none.
    pub(in crate::relay) async fn check_tasks(
        &self,
        session: &Arc<Session>,
        method: &str,
    ) -> Result<(), Fault> {
        if session.revision.has_tasks_capability() && method != "tasks/update" {
            let known = self.known(session).await;
            let mut declared = known.iter().filter_map(|(_, declared)| declared.as_deref());
            let has_tasks = |d: &Declared| are_carried(session, d) || d.hosts_tasks();
            if declared.any(has_tasks) {
                return Ok(());
            }
        }
        Err(unknown_method(method))
    }

    /// Where a request about a task of the session goes: to the upstream that runs it.
    pub(in crate::relay) fn own_task_target(
        &self,
        call: &Call,
        session: &Session,
    ) -> Result<Target, Fault> {
        let given = call
            .message
            .param_str("taskId")
            .ok_or_else(|| invalid("params.taskId must be a string"))?;
        let task = session.tasks().find(&given);
        let unknown = || invalid("there is no such task here");
        let task = task.ok_or_else(unknown)?;
        let Run::There(id) = task.run else {
            return Err(unknown());
        };
        let edited = call.message.edit().param("taskId", json::quote(&id));
        Ok(Target {
            request: Some(self.reparse(edited.finish())?),
            page: None,
            view: self.view(&call.endpoint, &task.upstream),
            shown: Some(given.into_owned()),
            name: Some(id.as_ref().to_owned()),
            home: None,
            upstream: task.upstream,
        })
    }

    /// The result of a task, which is waited for as long as a call may take: it may be silent for
    /// longer than a call.
    pub(super) async fn result_of_task(
        &self,
        permit: &Permit,
        link: &Arc<dyn UpstreamLink>,
        call: &Call,
        session: &Session,
        target: &Target,
    ) -> Result<Reply, Fault> {
        let waiting = async {
            loop {
                match self.send(permit, &**link, call, session, target).await {
                    Err(fault) if fault.kind == FaultKind::UpstreamTimeout => {
                        let id = target.name.as_deref().unwrap_or_default();
                        let known = link.call(&request("tasks/get", id, "")?, call).await?;
                        if known.error().is_some() {
                            return Err(fault);
                        }
                    }
                    reply => return reply,
                }
            }
        };
        let waited = tokio::time::timeout(self.patience(target), waiting).await;
        waited.unwrap_or_else(|_| {
            let text = format!(
                "the task of upstream \"{}\" did not end in time",
                target.upstream
            );
            Err(Fault::upstream(FaultKind::UpstreamTimeout, text))
        })
    }

    /// `tasks/list`: what the session began and its upstreams still know, in one page.
    pub(in crate::relay) async fn list_tasks(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<Reply, Fault> {
        if call.message.param("cursor").is_some() {
            return Err(invalid("unknown cursor, list again from the start"));
        }
        let mut tasks = session.tasks().all();
        tasks.retain(|task| self.decide_part(call, &task.upstream, "tasks/list").is_ok());
        let states = tasks.iter().map(|task| self.state_of(call, session, task));
        let states = join_all(states).await;
        let list = json::array(states.into_iter().flatten());
        Ok(Reply::Result(format!(r#"{{"tasks":{list}}}"#).into()))
    }

    /// A task as its client may see it; nothing when its upstream does not know it any more.
    async fn state_of(&self, call: &Call, session: &Arc<Session>, task: &Task) -> Option<String> {
        let id = match &task.run {
            Run::There(id) => id,
            Run::Here(hosted) => return Some(hosted.shown(&task.handle)),
        };
        let link = self.link(session, &task.upstream).ok()?;
        let request = request("tasks/get", id, "").ok()?;
        let reply = link.call(&request, call).await.ok()?;
        named(reply.result()?, &task.handle)
    }

    /// What the client calls a task of its session.
    fn remember_task(&self, session: &Session, upstream: &Arc<str>, id: &str) -> Arc<str> {
        let max = self.parts.settings.limits.tasks_per_session;
        let known = session.tasks().add(upstream, id, max);
        note_forgotten(known.forgotten.as_slice());
        known.handle
    }

    /// The reply to a request of tasks, or that begins one, under the name that its client knows.
    pub(in crate::relay) fn show_own_task(
        &self,
        call: &Call,
        session: &Session,
        target: &Target,
        reply: Reply,
    ) -> Result<Reply, Fault> {
        let Reply::Relayed(message) = &reply else {
            return Ok(reply);
        };
        let method = call.message.method().unwrap_or_default();
        if session.visit().is_some() || !session.revision.has_tasks_capability() {
            return Ok(reply);
        }
        let handle = target.shown.as_deref().unwrap_or_default();
        let shown = match (method, message.result()) {
            ("tools/call", Some(_)) if call.message.param("task").is_some() => {
                let begun = message.result_member("task");
                let state = begun.and_then(State::read);
                let Some((text, state)) = begun.zip(state) else {
                    return Ok(reply);
                };
                let handle = self.remember_task(session, &target.upstream, &state.id);
                named(text, &handle).map(|task| message.edit().result_member("task", task))
            }
            ("tasks/result", Some(result)) => {
                let members = json::members(result).ok();
                let mark = mark(handle);
                members.map(|members| {
                    let marked = json::object_with(&members, "_meta", meta::RELATED_TASK, &mark);
                    message.edit().result(marked)
                })
            }
            (method, Some(result)) if is_task(method) => {
                named(result, handle).map(|task| message.edit().result(task))
            }
            _ => None,
        };
        let Some(shown) = shown else {
            return Ok(reply);
        };
        Ok(Reply::Relayed(self.reparse(shown.finish())?))
    }
}

/// Tasks had to make room that somebody may miss.
pub(super) fn note_forgotten(forgotten: &[Task]) {
    for task in forgotten {
        COUNTERS.tasks_forgotten.add(1);
        tracing::warn!(
            upstream = %task.upstream,
            "a session has too many tasks or results: one is forgotten that ran or was never fetched"
        );
    }
}

/// The JSON text of a task under another name.
fn named(task: &str, handle: &str) -> Option<String> {
    let mut out = ObjectWriter::default();
    for (name, value) in json::members(task).ok()? {
        if name == "taskId" {
            out.member(&name, &json::quote(handle));
        } else {
            out.member(&name, value);
        }
    }
    Some(out.finish())
}

/// The mark of what belongs to a task, JSON text.
pub(super) fn mark(handle: &str) -> String {
    format!(r#"{{"taskId":{}}}"#, json::quote(handle))
}

/// What an upstream says by itself of a task, as the session's client may hear it.
pub(in crate::relay) fn status(
    session: &Session,
    upstream: &str,
    message: &Message,
) -> Option<Bytes> {
    let id = message.param_str("taskId")?;
    let handle = session.tasks().handle_of(upstream, &id)?;
    let named = message.edit().param("taskId", json::quote(&handle));
    Some(named.finish())
}

/// The call with a way back on which questions say that they belong to the task that the call is
/// about; nothing for a call that is about none. Spec: MCP 2025-11-25, tasks, "Associating
/// Task-Related Messages".
pub(in crate::relay) fn marking(call: &Call, session: &Session, target: &Target) -> Option<Call> {
    let of_result = session.visit().is_none() && call.message.method() == Some("tasks/result");
    let handle = target.shown.as_deref().filter(|_| of_result)?;
    Some(Call {
        link: marked(&call.link, handle),
        ..call.clone()
    })
}

/// The link as one on which questions say that they belong to a task.
pub(super) fn marked(link: &Arc<dyn DownstreamLink>, handle: &str) -> Arc<dyn DownstreamLink> {
    Arc::new(Marking {
        inner: Arc::clone(link),
        mark: mark(handle),
    })
}

/// A client's link on which questions name a task.
#[derive(Debug)]
struct Marking {
    inner: Arc<dyn DownstreamLink>,
    /// JSON text.
    mark: String,
}

impl DownstreamLink for Marking {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        self.inner.notify(notice);
    }

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        let marked = |question: Question| {
            let params = question.params.as_deref().map(std::str::from_utf8);
            let params = params.and_then(Result::ok).unwrap_or("{}");
            let members = json::members(params).unwrap_or_default();
            let params = json::object_with(&members, "_meta", meta::RELATED_TASK, &self.mark);
            Question {
                params: Some(params.into()),
                ..question
            }
        };
        let entries = round.entries.into_iter();
        self.inner.ask(Round {
            entries: entries
                .map(|(key, question)| (key, marked(question)))
                .collect(),
            limit: round.limit,
            carry: round.carry,
        })
    }

    fn behind(&self) -> Option<&dyn DownstreamLink> {
        Some(&*self.inner)
    }
}
