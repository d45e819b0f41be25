//! Tasks of the extension towards a client, tasks of 2025-11-25 towards the upstream.
//! Spec: BRIDGING §3.8; SPEC K-11 to K-14, M-65.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::extension_passthrough::TaskHandles;
use super::pending_input::{PendingInput, PendingInputs, TaskKey};
use super::remote_task::{RemoteTask, task_request};
use super::request::TaskRequest;
use super::shown_error;
use super::wait::unmarked;
use crate::call::{Call, InputRequest, Reply};
use crate::fault::told::error_object;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{EndpointView, ReplySource, ReplySources, invalid};
use crate::protocol::{Message, json, rpc};
use crate::runtime::lifecycle::TaskSpawner;
use crate::translate::mapping;
use crate::translate::project::RevisionProjection;
use crate::translate::task::convert::{ShownTask, task};
use crate::translate::task::state::{TaskStatus, UpstreamTask};

/// Shows clients that know the extension the tasks of legacy upstreams.
#[derive(Debug)]
pub(crate) struct ExtensionOverLegacy {
    pub(super) handles: Arc<TaskHandles>,
    /// Tasks that ask while their clients poll.
    pub(super) pending_inputs: Arc<PendingInputs>,
    pub(super) sources: ReplySources,
    pub(super) spawner: TaskSpawner,
}

impl ExtensionOverLegacy {
    /// Answers `tasks/get`, `tasks/update` or `tasks/cancel`. An error of the upstream is the
    /// upstream's own.
    ///
    /// # Errors
    /// A [`Fault`] when the upstream gives no answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the task as it is.
    pub(super) async fn answer(&self, about: TaskRequest<'_>) -> Result<Reply, Fault> {
        let request = BridgedRequest { tasks: self, about };
        match about.call.message.method() {
            Some("tasks/update") => request.update().await,
            Some("tasks/cancel") => request.cancel().await,
            _ => request.get().await,
        }
    }

    /// The answer to a request about a task whose session was lost with its replica: the task has failed. `None` for any
    /// other request.
    pub(super) fn lost(&self, call: &Call) -> Option<Reply> {
        let handle = call.message.param_str("taskId")?;
        let upstream = self.handles.lost(call, &handle)?;
        let view = self.handles.links.views.of(&call.endpoint, &upstream);
        let source = self.sources.of(call, None, &view);
        let text = if call.message.method() == Some("tasks/get") {
            let now = json::quote(&self.handles.sessions.task_time());
            let state = json::object([
                ("taskId", "\"\""),
                ("status", "\"failed\""),
                ("createdAt", &*now),
                ("lastUpdatedAt", &*now),
            ]);
            let error = Reply::Error(error_object(&Fault::outcome_unknown("task")));
            task(
                &UpstreamTask::read(&state)?,
                &handle,
                &ShownTask::Came(&error),
            )
        } else {
            "{}".to_owned()
        };
        let text = source.projection.authored(text, &source.origin(call));
        Some(Reply::Result(text.into()))
    }

    /// The reply that begins a task, for its client.
    pub(super) fn begun(
        &self,
        about: TaskRequest<'_>,
        state: &UpstreamTask<'_>,
    ) -> Result<Reply, Fault> {
        let (call, upstream) = (about.call, &about.target.upstream);
        let home = Some(about.session.key());
        let handle = self.handles.seal(call, upstream, &state.id, home)?;
        let text = task(state, &handle, &ShownTask::Bare);
        let source = BridgedRequest { tasks: self, about }.source();
        let text = RevisionProjection::begun(text, &source.origin(call));
        Ok(Reply::Result(text.into()))
    }
}

/// A request about a legacy task, on its way.
struct BridgedRequest<'a> {
    tasks: &'a ExtensionOverLegacy,
    about: TaskRequest<'a>,
}

impl BridgedRequest<'_> {
    async fn get(&self) -> Result<Reply, Fault> {
        let reply = self.send("tasks/get").await?;
        if reply.error().is_some() {
            return Ok(reply);
        }
        let state = reply.result().and_then(UpstreamTask::read);
        let state = state.ok_or_else(|| self.unusable())?;
        match state.status {
            TaskStatus::Working | TaskStatus::Cancelled => self.show(&state, &ShownTask::Bare),
            TaskStatus::InputRequired => {
                let questions = self.questions().await;
                if questions.is_empty() {
                    return self.show(&state, &ShownTask::Bare);
                }
                self.show(&state, &ShownTask::Asks(&questions))
            }
            TaskStatus::Completed | TaskStatus::Failed => {
                let came = unmarked(self.send("tasks/result").await?);
                let (call, upstream) = (self.about.call, &self.about.target.upstream);
                let came = shown_error::shown(came, call, upstream, self.source().projection);
                self.show(&state, &ShownTask::Came(&came))
            }
        }
    }

    /// Open questions of the task; a legacy upstream asks them while `tasks/result` is pending.
    async fn questions(&self) -> Vec<(String, InputRequest)> {
        let key = self.key();
        let pending_inputs = &self.tasks.pending_inputs;
        let owner = self.about.session.owner();
        if let Some(client) = pending_inputs.open(&key, owner, &self.about.session.capabilities) {
            let pending_input = Arc::clone(&client.pending_input);
            let shown = self.asking(&pending_input);
            let Ok(request) = task_request("tasks/result", &key.2, &[]) else {
                return Vec::new();
            };
            let link = Arc::clone(self.about.link);
            self.tasks.spawner.spawn_service(async move {
                // Its result is asked for again when the task is over.
                drop(link.call(&request, &shown).await);
                drop(client);
            });
            return pending_input.first_questions().await;
        }
        let pending_input = pending_inputs.find(&key);
        pending_input
            .map(|pending_input| pending_input.questions())
            .unwrap_or_default()
    }

    /// The call, with its questions put into `pending_input`.
    fn asking(&self, pending_input: &Arc<PendingInput>) -> Call {
        let call = Call {
            link: Arc::clone(pending_input) as _,
            cancel: CancellationToken::new(),
            ..self.about.call.clone()
        };
        let declared = self.about.link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let projection = RevisionProjection::of(revision, call.revision);
        match self.about.target.view.link(&call, projection, declared) {
            Some(link) => Call { link, ..call },
            None => call,
        }
    }

    async fn update(&self) -> Result<Reply, Fault> {
        let responses = self.about.call.message.param("inputResponses");
        let responses = responses
            .and_then(|text| json::members(text).ok())
            .ok_or_else(|| invalid("params.inputResponses must be an object"))?;
        let Some(pending_input) = self.tasks.pending_inputs.find(&self.key()) else {
            // No question is open: `tasks/get` tells whether the task exists.
            let reply = self.send("tasks/get").await?;
            return Ok(if reply.error().is_some() {
                reply
            } else {
                self.acknowledged()
            });
        };
        for (key, text) in responses {
            pending_input.answer(&key, text);
        }
        Ok(self.acknowledged())
    }

    async fn cancel(&self) -> Result<Reply, Fault> {
        let reply = self.send("tasks/cancel").await?;
        if reply.error().is_none() {
            return Ok(self.acknowledged());
        }
        // Upstreams refuse to cancel a finished task, the extension acknowledges it. An unknown task keeps its error.
        let known = self.send("tasks/get").await?;
        Ok(if known.error().is_some() {
            reply
        } else {
            self.acknowledged()
        })
    }

    async fn send(&self, method: &str) -> Result<Reply, Fault> {
        let id = self.about.target.name.as_deref().unwrap_or_default();
        let (link, call) = (&**self.about.link, self.about.call);
        RemoteTask { link, call, id }.send(method, &[]).await
    }

    /// The reply that shows a task to its client.
    fn show(&self, state: &UpstreamTask<'_>, shown: &ShownTask<'_>) -> Result<Reply, Fault> {
        let handle = self.about.target.shown.as_deref().unwrap_or_default();
        let mut text = task(state, handle, shown);
        if let EndpointView::Merged(prefix) = &self.about.target.view {
            let message = rpc::response(0, "result", &text);
            let message = Message::parse(message.into(), json::MAX_DEPTH);
            let message = message.map_err(|error| self.unusable().caused_by(error))?;
            let mapped = mapping::result(prefix, "tasks/get", message)?;
            mapped.result().unwrap_or("{}").clone_into(&mut text);
        }
        Ok(self.authored(text))
    }

    fn acknowledged(&self) -> Reply {
        self.authored("{}".to_owned())
    }

    fn authored(&self, text: String) -> Reply {
        let source = self.source();
        let text = source
            .projection
            .authored(text, &source.origin(self.about.call));
        Reply::Result(text.into())
    }

    fn source(&self) -> ReplySource {
        let declared = self.about.link.declared();
        self.tasks
            .sources
            .of(self.about.call, declared, &self.about.target.view)
    }

    fn key(&self) -> TaskKey {
        let task = self.about.target.name.clone().unwrap_or_default();
        (
            self.about.session.key(),
            Arc::clone(&self.about.target.upstream),
            task,
        )
    }

    fn unusable(&self) -> Fault {
        let upstream = &self.about.target.upstream;
        let text = format!("upstream \"{upstream}\" does not say how a task stands");
        Fault::upstream(FaultKind::UpstreamInvalid, text)
    }
}
