//! Tasks of 2025-11-25 that the gateway runs: the client requests a task, and the upstream knows only tasks of
//! the extension, which the server begins. The call is handled like any other, with the task in
//! place of its client; the outcome is kept until the client fetches it.
//! Spec: SPEC K-02 to K-04; BRIDGING §3.8; `docs/adr/0014`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::forgotten::note_forgotten;
use super::related_task::mark;
use super::request::wanted;
use crate::call::{
    Call, ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, LogLevel, Notice,
    NoticeKind, Reply,
};
use crate::cause::chain;
use crate::config::{HostedTaskLimits, LimitsConfig};
use crate::fault::{Fault, FaultKind, told};
use crate::outbound::{
    AuditedPolicy, RelayFailure, RequestHandler, SessionLinks, UpstreamTarget, invalid,
};
use crate::protocol::{Message, extensions, json, meta, rpc};
use crate::session::{
    GatewayTask, NoticeSource, QuotaReservation, RunningTask, Session, SessionRegistry, TaskOutcome,
};
use crate::store::quotas::QuotaClaim;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::request_tag;
use crate::telemetry::trace;

/// Depth limit for messages that were already checked on arrival.
const ANY_DEPTH: usize = usize::MAX;

/// Runs tasks for clients of 2025-11-25 whose upstreams know only those of the extension.
#[derive(Debug)]
pub(crate) struct GatewayTasks {
    pub(super) links: Arc<SessionLinks>,
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) limits: LimitsConfig,
    /// Answers the call that a task runs.
    pub(super) handler: Weak<dyn RequestHandler>,
}

impl GatewayTasks {
    /// Begins a task for a call that requests one, if the gateway runs the tasks of its upstream; otherwise
    /// `None`. The policy decides about the call as about one without a task.
    ///
    /// # Errors
    /// [`RelayFailure`] when the call is denied or a limit is reached.
    pub(super) async fn begin(
        &self,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
    ) -> Result<Option<Reply>, RelayFailure> {
        self.policy.decide(call, target)?;
        call.link.routed(&target.upstream);
        let declared = self.links.learn(session, &target.upstream, None).await;
        // A plain call might reach the upstream after all, and would be no task.
        let declared = declared.inspect_err(|_| self.policy.audit_failed(call, target))?;
        let Some(handler) = self.handler.upgrade().filter(|_| declared.hosts_tasks()) else {
            return Ok(None);
        };
        let begun = self.admit(call, session);
        let (ttl, message, running) =
            begun.inspect_err(|_| self.policy.audit_failed(call, target))?;
        let task = self.sessions.begin_task(ttl);
        let most = self.limits.tasks_per_session;
        let known = session.tasks().host(&target.upstream, &task, most);
        let begun = task.shown(&known.handle);
        note_forgotten(known.forgotten.as_slice());
        session.record_changed();
        let client = TaskClientLink {
            capabilities: session.capabilities.with_extension(extensions::TASKS),
            session: Arc::clone(session),
            task: Arc::clone(&task),
            mark: mark(&known.handle),
            wants_progress: meta::progress_token(&call.message).is_some(),
        };
        let call = Call {
            message,
            link: Arc::new(client),
            cancel: task.stopped().clone(),
            resumption: None,
            ..call.clone()
        };
        let hosted = GatewayRun {
            handler,
            limits: self.limits.hosted_tasks,
            session: Arc::clone(session),
            upstream: Arc::clone(&target.upstream),
            task: Arc::clone(&task),
        };
        let known = KnownTask {
            session: Arc::clone(session),
            handle: known.handle,
            task,
        };
        // A drain waits for the end of the run, as for every call, and not for the end of the task's lifetime.
        let work = request_tag::keep(trace::keep(hosted.work(call, running)));
        self.links.spawner.spawn(work);
        self.links.spawner.spawn_service(known.live());
        Ok(Some(Reply::Result(json::object([("task", begun)]).into())))
    }

    /// How long a task is known, the call that it runs, and its place among those of its principal.
    fn admit(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<(Duration, Message, RunningTask), Fault> {
        let limits = &self.limits;
        let ttl = granted(&call.message, limits.hosted_tasks.ttl)?;
        let message = plain(&call.message)?;
        // At most half of the principal's calls may be tasks; otherwise no call would be left to poll them.
        let running = RunningTask::begin(session, limits.calls_per_principal / 2);
        let running =
            running.map_err(|why| Fault::downstream(FaultKind::CallerBusy, why.to_string()))?;
        Ok((ttl, message, running))
    }
}

/// A task that the gateway runs. Dropping it before the task has an outcome removes the task.
struct GatewayRun {
    handler: Arc<dyn RequestHandler>,
    limits: HostedTaskLimits,
    session: Arc<Session>,
    upstream: Arc<str>,
    task: Arc<GatewayTask>,
}

impl GatewayRun {
    /// Runs `call`, whose client is the task.
    fn work(self, call: Call, running: RunningTask) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let answer = tokio::select! {
                answer = self.handler.handle(&call, &self.session) => answer,
                () = self.task.stopped().cancelled() => return,
            };
            let outcome = self.outcome(answer).await;
            // Release the slot before publishing the outcome, so that a client that is told can start the next task.
            drop(running);
            self.task.end(outcome);
        })
    }

    /// The outcome of the task: the reply that the call would have got.
    async fn outcome(&self, answer: Result<Reply, RelayFailure>) -> TaskOutcome {
        let reply = match answer {
            Ok(reply) => reply,
            Err(RelayFailure::Fault(fault)) if fault.kind == FaultKind::Cancelled => {
                return TaskOutcome::Cancelled;
            }
            Err(RelayFailure::Fault(fault)) => {
                let upstream = &self.upstream;
                tracing::debug!(%upstream, kind = ?fault.kind, error = chain(&fault), "a task failed");
                if told::is_tool_error(fault.kind) {
                    Reply::Result(told::tool_error(&fault))
                } else {
                    Reply::Error(told::error_object(&fault))
                }
            }
            Err(RelayFailure::Denied(denial)) => {
                let fault = Fault::downstream(FaultKind::InvalidParams, denial.public());
                Reply::Error(told::error_object(&fault))
            }
        };
        let text = reply.result().or(reply.error()).unwrap_or("{}");
        let claim = self.session.results().claim(text.len()).await;
        let kept = self.room_for(text.len(), claim.as_ref());
        drop(claim);
        let Some(kept) = kept else {
            COUNTERS.tasks_unkept.add(1);
            tracing::warn!(
                upstream = %self.upstream, bytes = text.len(),
                "there is no room for the result of a task, which fails: see limits.task_results_per_principal and task_results_total"
            );
            return TaskOutcome::Error(UNKEPT, None);
        };
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        match reply.error() {
            None => TaskOutcome::Result(bytes, kept),
            Some(_) => TaskOutcome::Error(bytes, Some(kept)),
        }
    }

    /// Reserves quota for a result, and evicts other tasks of the session if necessary.
    fn room_for(&self, bytes: usize, claim: Option<&QuotaClaim>) -> Option<QuotaReservation> {
        let (own, all) = (self.limits.results_per_principal, self.limits.results_total);
        if bytes > own.min(all) {
            return None;
        }
        let results = self.session.results();
        loop {
            if let Some(kept) = results.take((bytes, claim), own, all) {
                return Some(kept);
            }
            let lacking = results.lacking(bytes, own, all);
            if lacking == 0 {
                // Another task released quota between `take` and `lacking`: try again.
                continue;
            }
            note_forgotten(&self.session.tasks().give_up(lacking)?);
        }
    }
}

impl Drop for GatewayRun {
    fn drop(&mut self) {
        if !self.task.is_over() {
            self.task.forget();
        }
    }
}

/// A guard while the client can ask for the task.
struct KnownTask {
    session: Arc<Session>,
    /// Its handle for the client.
    handle: Arc<str>,
    task: Arc<GatewayTask>,
}

impl KnownTask {
    async fn live(self) {
        let life = async {
            // Not held any longer than it takes.
            Box::pin(self.announce()).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = life => {}
            () = tokio::time::sleep(self.task.ttl()) => {}
            () = self.session.closed().cancelled() => {}
            () = self.task.forgotten().cancelled() => {}
        }
    }

    /// Tells the client of every new status.
    async fn announce(&self) {
        let mut known = "working";
        while matches!(known, "working" | "input_required") {
            known = self.task.changed(known).await;
            let task = self.task.shown(&self.handle);
            let bytes = rpc::notification("notifications/tasks/status", &task);
            let notice = Notice {
                kind: NoticeKind::Other,
                bytes: bytes.into(),
            };
            self.session.tell(notice, NoticeSource::default());
        }
    }
}

impl Drop for KnownTask {
    fn drop(&mut self) {
        self.session.tasks().remove(&self.handle);
        self.task.forget();
    }
}

/// JSON text of the error of a task whose result has no room in the quota.
const UNKEPT: Bytes = Bytes::from_static(
    br#"{"code":-32603,"message":"there is no room to keep the result of the task: call the tool without one","data":{"side":"gateway"}}"#,
);

/// A `DownstreamLink` in place of the client: receives the upstream's notifications and questions for the task.
#[derive(Debug)]
struct TaskClientLink {
    task: Arc<GatewayTask>,
    session: Arc<Session>,
    /// The mark of messages that belong to the task, JSON text.
    mark: String,
    /// The capabilities of the client, and the extension.
    capabilities: ClientCapabilities,
    /// Whether progress is told besides the status.
    wants_progress: bool,
}

impl DownstreamLink for TaskClientLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn notify(&self, notice: Notice) {
        let Ok(message) = Message::parse(notice.bytes.clone(), ANY_DEPTH) else {
            return;
        };
        if let NoticeKind::Progress { .. } = &notice.kind {
            if let Some(text) = message.param_str("message") {
                self.task.note(&text);
            }
            if !self.wants_progress {
                return;
            }
        }
        let bytes = match &notice.kind {
            NoticeKind::Progress { .. } | NoticeKind::Log => message
                .edit()
                .meta(meta::RELATED_TASK, self.mark.as_str())
                .finish(),
            _ => notice.bytes,
        };
        let kind = notice.kind;
        let notice = Notice { kind, bytes };
        self.session.tell(notice, NoticeSource::default());
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(self.task.ask(round))
    }

    fn cancel_reason(&self) -> Option<&str> {
        let is_cancelled = self.task.stopped().is_cancelled();
        is_cancelled.then_some("the task was cancelled")
    }

    fn level(&self) -> Option<LogLevel> {
        self.session.levels().wanted()
    }
}

/// How long a task is known: as long as its client wants, and no longer than `most`.
fn granted(request: &Message, most: Duration) -> Result<Duration, Fault> {
    let task = wanted(request).filter(|task| task.starts_with('{'));
    let task = task.ok_or_else(|| invalid("params.task must be an object"))?;
    let wanted = json::member(task, "ttl").and_then(json::whole_number);
    Ok(wanted.map_or(most, |ms| Duration::from_millis(ms).min(most)))
}

/// Progress token of a call whose client wants no progress, JSON text: no client sees it.
const OWN_TOKEN: &str = "\"task\"";

/// The plain call that a task runs, with a progress token: progress messages become the task's status message.
fn plain(request: &Message) -> Result<Message, Fault> {
    let mut edit = request.edit().remove_param("task");
    if meta::progress_token(request).is_none() {
        edit = edit.meta(meta::PROGRESS_TOKEN, OWN_TOKEN);
    }
    Message::parse(edit.finish(), ANY_DEPTH).map_err(Fault::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        Message::parse(text.into(), 128).unwrap()
    }

    const MOST: Duration = Duration::from_mins(1);

    // SPEC K-02.
    #[test]
    fn a_task_is_known_as_long_as_is_wanted_and_may_be() {
        let of = |task: &str| granted(&request(&format!(r#"{{"task":{task}}}"#)), MOST);
        for five in [r#"{"ttl":5000}"#, r#"{"ttl":5000.0}"#] {
            assert_eq!(of(five).unwrap(), Duration::from_secs(5), "{five}");
        }
        for most in ["{}", r#"{"ttl":null}"#, r#"{"ttl":60001}"#, r#"{"ttl":-1}"#] {
            assert_eq!(of(most).unwrap(), MOST, "{most}");
        }
        assert_eq!(of("7").unwrap_err().kind, FaultKind::InvalidParams);
        assert_eq!(wanted(&request(r#"{"task":null}"#)), None);
    }

    // SPEC K-15.
    #[test]
    fn the_call_of_a_task_asks_for_none_and_for_progress() {
        let call = plain(&request(r#"{"name":"t","task":{}}"#)).unwrap();
        assert_eq!(call.param("task"), None);
        assert_eq!(meta::progress_token(&call), Some(OWN_TOKEN));
        let call = plain(&request(r#"{"task":{},"_meta":{"progressToken":7}}"#)).unwrap();
        assert_eq!(meta::progress_token(&call), Some("7"));
    }
}
