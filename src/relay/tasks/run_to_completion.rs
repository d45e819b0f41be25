//! Tools that run only as tasks, for clients that know no tasks: the task is run here, and the
//! call waits for its end. Spec: BRIDGING §3.7, §3.8; SPEC K-01, K-10, K-13.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::cancel_on_drop::CancelOnDrop;
use super::polling::PollPace;
use super::wait::{TaskWait, WaitEnd};
use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::outbound::UpstreamTarget;
use crate::outbound::tool_failure;
use crate::protocol::{Message, meta};
use crate::relay::Relay;
use crate::session::Session;
use crate::telemetry::metrics::LABELED;
use crate::translate::project::RevisionProjection;
use crate::translate::task::state::{TaskDialect, UpstreamTask};

impl Relay {
    /// Waits for the end of a task; its outcome is the call's.
    pub(crate) async fn hold(
        &self,
        link: &Arc<dyn UpstreamLink>,
        call: &Call,
        session: &Session,
        target: &UpstreamTarget,
        state: &UpstreamTask<'_>,
        design: TaskDialect,
    ) -> Result<Reply, Fault> {
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
        let wait = TaskWait {
            task: &watched,
            upstream,
            ask_timeout: self.ask_timeout(upstream).unwrap_or_default(),
        };
        let ended = tokio::select! {
            ended = wait.for_end(design, &mut pace) => ended?,
            () = tokio::time::sleep(self.patience(target)) => {
                let text = format!("the task that upstream \"{upstream}\" began did not end in time");
                return Err(Fault::upstream(FaultKind::UpstreamTimeout, text));
            }
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
            // What still runs is cancelled.
            WaitEnd::Unanswered(why) => format!("upstream \"{upstream}\" needs an answer: {why}"),
        };
        let source = self.sources.of(call, declared, &target.view);
        Ok(tool_failure(call, &source, &why))
    }

    /// How long a task may take.
    pub(crate) fn patience(&self, target: &UpstreamTarget) -> Duration {
        let settings = self.links.upstreams.settings(&target.upstream);
        settings.map_or(Duration::ZERO, |settings| settings.total_timeout)
    }
}

/// The request as one for a task that is kept for `ttl`. Its progress is what the task's status says,
/// so that the upstream is not asked for any.
pub(crate) fn as_task(request: &Message, ttl: Duration) -> Bytes {
    let edit = request
        .edit()
        .param("task", format!(r#"{{"ttl":{}}}"#, ttl.as_millis()));
    edit.remove_meta(meta::PROGRESS_TOKEN).finish()
}

/// Spec: SPEC K-10.
pub(crate) fn unasked(upstream: &str) -> Fault {
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
