//! Tasks of the extension towards a client, tasks of 2025-11-25 towards the upstream.
//! Spec: BRIDGING §3.8; SPEC K-11 to K-14, M-65.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::extension_passthrough::TaskHandles;
use super::pending_input::{PendingInput, PendingInputs, TaskKey};
use super::request::request;
use super::task_request::TaskRequest;
use super::wait::unmarked;
use crate::call::{Call, InputRequest, Reply, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::outbound::{EndpointView, ReplySource, ReplySources, UpstreamTarget, invalid};
use crate::protocol::{Message, json, rpc};
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::Session;
use crate::translate::mapping;
use crate::translate::project::RevisionProjection;
use crate::translate::task::convert::{ShownTask, task};
use crate::translate::task::state::{TaskStatus, UpstreamTask};

/// Shows clients that know the extension the tasks of legacy upstreams.
#[derive(Debug)]
pub(crate) struct ExtensionOverLegacy {
    pub(super) handles: Arc<TaskHandles>,
    /// Tasks that ask while their clients poll.
    pub(super) desks: Arc<PendingInputs>,
    pub(super) sources: ReplySources,
    pub(super) spawner: TaskSpawner,
}

impl ExtensionOverLegacy {
    pub(super) fn request<'a>(&'a self, request: TaskRequest<'a>) -> BridgedRequest<'a> {
        BridgedRequest {
            tasks: self,
            link: request.link,
            call: request.call,
            session: request.session,
            target: request.target,
        }
    }
}

/// A request about a legacy task, on its way.
pub(super) struct BridgedRequest<'a> {
    tasks: &'a ExtensionOverLegacy,
    link: &'a Arc<dyn UpstreamLink>,
    call: &'a Call,
    session: &'a Arc<Session>,
    target: &'a UpstreamTarget,
}

impl BridgedRequest<'_> {
    /// Answers `tasks/get`, `tasks/update` or `tasks/cancel`. An error of the upstream is the
    /// upstream's own.
    ///
    /// # Errors
    /// A [`Fault`] when the upstream gives no answer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the task as it is.
    pub(super) async fn answer(&self) -> Result<Reply, Fault> {
        match self.call.message.method() {
            Some("tasks/update") => self.update().await,
            Some("tasks/cancel") => self.cancel().await,
            _ => self.get().await,
        }
    }

    /// The reply that begins a task, for its client.
    pub(super) fn begun(&self, state: &UpstreamTask<'_>) -> Result<Reply, Fault> {
        let upstream = &self.target.upstream;
        let home = Some(self.session.key());
        let handle = self
            .tasks
            .handles
            .seal(self.call, upstream, &state.id, home)?;
        let text = task(state, &handle, &ShownTask::Bare);
        let source = self.source();
        let text = RevisionProjection::begun(text, &source.origin(self.call));
        Ok(Reply::Result(text.into()))
    }

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
                self.show(&state, &ShownTask::Came(&came))
            }
        }
    }

    /// Open questions of the task; a legacy upstream asks them while `tasks/result` is pending.
    async fn questions(&self) -> Vec<(String, InputRequest)> {
        let key = self.key();
        let desks = &self.tasks.desks;
        let owner = self.session.owner();
        if let Some(client) = desks.open(&key, owner, &self.session.capabilities) {
            let desk = Arc::clone(&client.desk);
            let shown = self.asking(&desk);
            let Ok(request) = request("tasks/result", &key.2, "") else {
                return Vec::new();
            };
            let link = Arc::clone(self.link);
            self.tasks.spawner.spawn_service(async move {
                // Its result is asked for again when the task is over.
                drop(link.call(&request, &shown).await);
                drop(client);
            });
            return desk.first_questions().await;
        }
        let desk = desks.find(&key);
        desk.map(|desk| desk.questions()).unwrap_or_default()
    }

    /// The call as one whose questions lie on `desk`.
    fn asking(&self, desk: &Arc<PendingInput>) -> Call {
        let call = Call {
            link: Arc::clone(desk) as _,
            cancel: CancellationToken::new(),
            ..self.call.clone()
        };
        let declared = self.link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let projection = RevisionProjection::of(revision, call.revision);
        match self.target.view.link(&call, projection, declared) {
            Some(link) => Call { link, ..call },
            None => call,
        }
    }

    async fn update(&self) -> Result<Reply, Fault> {
        let responses = self.call.message.param("inputResponses");
        let responses = responses
            .and_then(|text| json::members(text).ok())
            .ok_or_else(|| invalid("params.inputResponses must be an object"))?;
        let Some(desk) = self.tasks.desks.find(&self.key()) else {
            // No question is open: `tasks/get` tells whether the task exists.
            let reply = self.send("tasks/get").await?;
            return Ok(if reply.error().is_some() {
                reply
            } else {
                self.acknowledged()
            });
        };
        for (key, text) in responses {
            desk.answer(&key, text);
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
        let id = self.target.name.as_deref().unwrap_or_default();
        let request = request(method, id, "")?;
        self.link.call(&request, self.call).await
    }

    /// A task as its client may see it.
    fn show(&self, state: &UpstreamTask<'_>, shown: &ShownTask<'_>) -> Result<Reply, Fault> {
        let handle = self.target.shown.as_deref().unwrap_or_default();
        let mut text = task(state, handle, shown);
        if let EndpointView::Merged(prefix) = &self.target.view {
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
        let text = source.projection.authored(text, &source.origin(self.call));
        Reply::Result(text.into())
    }

    fn source(&self) -> ReplySource {
        let declared = self.link.declared();
        self.tasks
            .sources
            .of(self.call, declared, &self.target.view)
    }

    fn key(&self) -> TaskKey {
        let task = self.target.name.clone().unwrap_or_default();
        (self.session.key(), Arc::clone(&self.target.upstream), task)
    }

    fn unusable(&self) -> Fault {
        let upstream = &self.target.upstream;
        let text = format!("upstream \"{upstream}\" does not say how a task stands");
        Fault::upstream(FaultKind::UpstreamInvalid, text)
    }
}
