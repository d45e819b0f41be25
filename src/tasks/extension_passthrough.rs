//! Tasks of the extension between modern clients and modern upstreams. A client gets sealed handles
//! that name the upstream and work for this client alone.
//! Spec: SPEC K-10 to K-19, M-10; BRIDGING §3.8, §4.1.

use std::sync::Arc;

use super::inputs;
use super::request::{is_task, task_target};
use super::sealed::SealedTask;
use super::shown_error;
use crate::call::{Call, Principal};
use crate::endpoint::Endpoint;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{EditDepth, SessionLinks, UpstreamTarget, invalid, required_text};
use crate::ownership::Ownership;
use crate::protocol::{Era, Message, icons, input_request_rules, json};
use crate::seal::{SealPurpose, Sealer};
use crate::session::{Session, SessionRegistry};
use crate::store::events::SessionKey;
use crate::telemetry::metrics::LABELED;
use crate::translate::project::RevisionProjection;

/// Upstream of a task, its task id there, and the session of the `ImplicitSession` that owns it, if any.
type OwnedTask = (Arc<str>, String, Option<Arc<Session>>);

/// Seals the ids of tasks for clients that know the extension, and opens them again.
#[derive(Debug)]
pub(crate) struct TaskHandles {
    pub(super) links: Arc<SessionLinks>,
    pub(super) sealer: Arc<Sealer>,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) edits: EditDepth,
}

impl TaskHandles {
    /// The target of a request about a task: the upstream that runs it.
    pub(super) fn target(&self, call: &Call) -> Result<UpstreamTarget, Fault> {
        let given = required_text(&call.message, "taskId")?;
        let (upstream, task, home) = self
            .open(call, &given)
            .ok_or_else(|| invalid("there is no such task here"))?;
        let target = task_target(call, &self.links, self.edits, upstream, &task)?;
        Ok(UpstreamTarget { home, ..target })
    }

    /// A result with the client's handle in place of the id of its task.
    ///
    /// # Errors
    /// When the upstream's id is too long to be carried.
    pub(crate) fn show(
        &self,
        call: &Call,
        target: &UpstreamTarget,
        message: Message,
    ) -> Result<Message, Fault> {
        let method = call.message.method().unwrap_or_default();
        let creates =
            method == "tools/call" && message.result_member("resultType") == Some("\"task\"");
        if call.revision.era() == Era::Legacy || !(creates || is_task(method)) {
            return Ok(message);
        }
        // Spec: SPEC C-82, K-14.
        let asked = message.result_member("inputRequests");
        if let Some(flaw) = asked.and_then(input_request_rules::flaw_among) {
            LABELED.upstream_garbage.add(&target.upstream, 1);
            let text = format!(
                "upstream \"{}\" asks what no client may be asked: {flaw}",
                target.upstream
            );
            return Err(Fault::upstream(FaultKind::UpstreamInvalid, text));
        }
        let way = (
            &target.view,
            RevisionProjection::new(call.revision, call.revision),
        );
        // Spec: SPEC C-96.
        let purged = asked.and_then(icons::purged_requests);
        let purged = purged.map(|purged| purged.text);
        let asked = purged.as_deref().or(asked);
        let shown = asked.and_then(|asked| inputs::shown(asked, way, call.link.capabilities()));
        let mut edit = message.edit();
        if let Some(shown) = shown.or(purged) {
            edit = edit.result_member("inputRequests", shown);
        }
        let failed = message
            .result_member("error")
            .filter(|error| error.starts_with('{'));
        let failed =
            failed.and_then(|error| shown_error::shown_text(error, call, &target.upstream, way.1));
        if let Some(failed) = failed {
            edit = edit.result_member("error", failed);
        }
        // Spec: SPEC K-19.
        if !creates {
            edit = edit.result_member("resultType", "\"complete\"");
        }
        if let Some(task) = message.result_member("taskId").and_then(json::string) {
            // A known task keeps its handle.
            let known = target
                .shown
                .as_ref()
                .filter(|_| target.name.as_deref() == Some(&*task));
            let handle = match known {
                Some(handle) if !creates => handle.clone(),
                _ => self.seal(call, &target.upstream, &task, None)?,
            };
            edit = edit.result_member("taskId", json::quote(&handle));
        }
        self.edits.parse(edit.finish())
    }

    /// Seals the handle of a task of `upstream`; `home` is the `ImplicitSession` whose upstream session owns the task,
    /// if any.
    ///
    /// # Errors
    /// When the upstream's id is too long to be carried.
    pub(super) fn seal(
        &self,
        call: &Call,
        upstream: &Arc<str>,
        task: &str,
        home: Option<SessionKey>,
    ) -> Result<String, Fault> {
        let task = SealedTask {
            upstream: (&**upstream).into(),
            id: task.to_owned(),
            home: home.map(|key| (self.sessions.ownership(), key)),
        };
        let handle = task.seal(&self.sealer, &task_context(&call.endpoint, &call.principal));
        if handle.len() <= SealPurpose::Task.max_len() {
            return Ok(handle);
        }
        LABELED.upstream_garbage.add(upstream, 1);
        Err(Fault::upstream(
            FaultKind::UpstreamInvalid,
            format!("upstream \"{upstream}\" began a task whose id is too long to be used"),
        ))
    }

    /// The replica that keeps the session of a task; `None` for a task that lives in none, and for a handle not issued
    /// to this client.
    pub(crate) fn owner(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        given: &str,
    ) -> Option<Ownership> {
        let context = task_context(endpoint, principal);
        let task = SealedTask::open(&self.sealer, &context, given)?;
        task.home.map(|(owner, _)| owner)
    }

    /// The upstream of a task whose session another replica kept; `None` for any other handle. Requests about such a task
    /// are forwarded to that replica, or refused on a WebSocket, and reach this point only if the replica is lost.
    pub(super) fn lost(&self, call: &Call, given: &str) -> Option<Arc<str>> {
        let context = task_context(&call.endpoint, &call.principal);
        let task = SealedTask::open(&self.sealer, &context, given)?;
        let (owner, _) = task.home?;
        let mut shown = call.endpoint.upstreams.iter();
        let upstream = shown.find(|upstream| ***upstream == *task.upstream)?;
        (owner.node != self.sessions.ownership().node).then(|| Arc::clone(upstream))
    }

    /// Opens a task handle: upstream and task id; `None` for a handle not issued to this client.
    pub(super) fn open(&self, call: &Call, given: &str) -> Option<OwnedTask> {
        let task = SealedTask::open(
            &self.sealer,
            &task_context(&call.endpoint, &call.principal),
            given,
        )?;
        let mut shown = call.endpoint.upstreams.iter();
        let upstream = shown.find(|upstream| ***upstream == *task.upstream)?;
        let home = match task.home {
            None => None,
            // A task ends with its session.
            Some((owner, key)) => Some(self.sessions.live_implicit_session(owner, key)?),
        };
        Some((Arc::clone(upstream), task.id, home))
    }
}

/// Seal context of a task handle: endpoint and binding of the caller (SPEC K-18, A-30).
fn task_context(endpoint: &Endpoint, principal: &Principal) -> Vec<u8> {
    let mut context = endpoint.seal_context();
    context.extend_from_slice(principal.binding().bytes());
    context
}
