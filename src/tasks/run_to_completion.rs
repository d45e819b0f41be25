//! Tools that run only as tasks, for clients that know no tasks: the gateway begins the task, and
//! the call waits for its end. Spec: BRIDGING §3.7, §3.8; SPEC K-01, K-10, K-13.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::cancel_on_drop::CancelOnDrop;
use super::polling::PollPace;
use super::request::TaskRequest;
use super::wait::{TaskWait, WaitEnd};
use crate::call::{Call, NullIntake, Reply, UpstreamLink};
use crate::cause::chain;
use crate::fault::{Fault, FaultKind};
use crate::outbound::{ReplySources, SessionLinks, tool_failure};
use crate::protocol::{Era, Message, Revision, json, meta};
use crate::session::Session;
use crate::telemetry::metrics::LABELED;
use crate::translate::project::RevisionProjection;
use crate::translate::task::state::{TaskDialect, UpstreamTask};
use crate::upstream::ClientContext;

/// Waits for tasks on behalf of clients that know none.
#[derive(Debug)]
pub(crate) struct TaskRunner {
    pub(super) links: Arc<SessionLinks>,
    pub(super) sources: ReplySources,
}

impl TaskRunner {
    /// Waits for the end of a task; returns its outcome as that of the call.
    pub(super) async fn hold(
        &self,
        begun: TaskRequest<'_>,
        state: &UpstreamTask<'_>,
        design: TaskDialect,
    ) -> Result<Reply, Fault> {
        let TaskRequest {
            link,
            call,
            session,
            target,
            ..
        } = begun;
        let upstream = &target.upstream;
        let declared = link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let shown = target.view.link(
            call,
            RevisionProjection::of(revision, call.revision),
            link.declared(),
        );
        let shown = Call {
            link: shown.unwrap_or_else(|| Arc::clone(&call.link)),
            resumption: None,
            ..call.clone()
        };
        let mut pace = PollPace::new(&shown, state);
        pace.note(state, &*shown.link);
        let watched = CancelOnDrop::new(
            link,
            shown,
            &state.id,
            session.last_word(),
            &self.links.spawner,
        );
        let settings = self.links.upstreams.settings(upstream);
        let wait = TaskWait {
            task: watched.remote(),
            upstream,
            ask_timeout: settings.map_or(Duration::ZERO, |settings| settings.ask_timeout),
        };
        let ended = tokio::select! {
            ended = wait.for_end(design, &mut pace) => ended?,
            () = tokio::time::sleep(begun.patience(&self.links)) => return Err(begun.late()),
            () = call.cancel.cancelled() => {
                return Err(Fault::downstream(FaultKind::Cancelled, "the request was cancelled"));
            }
        };
        let why = match ended {
            WaitEnd::Reply(reply) => {
                watched.over();
                return Ok(reply);
            }
            WaitEnd::Cancelled => {
                watched.over();
                format!("upstream \"{upstream}\" cancelled the task that the call had become")
            }
            // The task still runs, and is cancelled.
            WaitEnd::Unanswered(why) => format!("upstream \"{upstream}\" needs an answer: {why}"),
        };
        let source = self.sources.of(call, declared, &target.view);
        Ok(tool_failure(call, &source, &why))
    }

    /// A modern link to the upstream of the legacy `link`. `None` if the upstream is not known to speak both
    /// eras, or cannot be reached. The link ends when it is dropped.
    pub(super) async fn newer_link(
        &self,
        link: &dyn UpstreamLink,
        session: &Arc<Session>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let upstream = link.upstream();
        let is_older = link.declared()?.revision.era() == Era::Legacy;
        if !is_older || !self.links.upstreams.speaks_modern(upstream) {
            return None;
        }
        let client = ClientContext {
            offer: Revision::V2026_07_28,
            // The session gets messages outside calls over its own link.
            intake: Arc::new(NullIntake),
            ..self.links.client(session, upstream)
        };
        let newer = self.links.upstreams.link(upstream, client)?;
        match newer.open().await {
            Ok(declared) => (declared.revision.era() == Era::Modern).then_some(newer),
            Err(fault) => {
                tracing::debug!(%upstream, error = chain(&fault), "modern endpoint unreachable");
                None
            }
        }
    }
}

/// The request as one for a task that is kept for `ttl`. Without a progress token: the status of the task is the
/// progress.
pub(super) fn as_task(request: &Message, ttl: Duration) -> Bytes {
    let task = json::object([("ttl", ttl.as_millis().to_string())]);
    let edit = request.edit().param("task", task);
    edit.remove_meta(meta::PROGRESS_TOKEN).finish()
}

/// Spec: SPEC K-10.
pub(super) fn unasked(upstream: &str) -> Fault {
    LABELED.upstream_garbage.add(upstream, 1);
    let text = format!("upstream \"{upstream}\" answered with a task that nobody asked for");
    Fault::upstream(FaultKind::UpstreamInvalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC K-01, K-02.
    #[test]
    fn a_request_for_a_task_says_how_long_and_asks_for_no_progress() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":7,"a":1}}}"#;
        let request = Message::parse(text.into(), 128).unwrap();
        let asked = as_task(&request, Duration::from_secs(2));
        let asked = Message::parse(asked, 128).unwrap();
        assert_eq!(asked.param("task"), Some(r#"{"ttl":2000}"#));
        assert_eq!(meta::progress_token(&asked), None);
        assert_eq!(asked.meta("a"), Some("1"));
    }
}
