//! Tools that run only as tasks, for clients that know no tasks: the task is run here, and the
//! call waits for its end. Spec: BRIDGING §3.7, §3.8; SPEC K-01, K-10, K-13.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::bridge::Bridged;
use super::declare::{declaring, is_declared, would_help};
use super::host::wanted;
use super::pace::Pace;
use super::wait::{Ended, Wait};
use super::watched::Watched;
use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::{Fault, FaultKind};
use crate::policy::Permit;
use crate::protocol::{Message, json, meta};
use crate::relay::Relay;
use crate::relay::bring_back::tool_failure;
use crate::relay::route::Target;
use crate::session::Session;
use crate::telemetry::metrics::LABELED;
use crate::translate::project::Projection;
use crate::translate::task::state::{Design, State};

impl Relay {
    /// Sends a request; a tool that its upstream runs only as a task is waited for, unless the
    /// client takes tasks itself.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request, and the task that it has become.
    pub(in crate::relay) async fn send_or_hold(
        &self,
        permit: &Permit,
        link: &Arc<dyn UpstreamLink>,
        call: &Call,
        session: &Arc<Session>,
        target: &Target,
    ) -> Result<Reply, Fault> {
        if call.message.method() != Some("tools/call") {
            if call.message.method() == Some("tasks/result") && session.visit().is_none() {
                let result = self.result_of_task(permit, link, call, session, target);
                return Box::pin(result).await;
            }
            return self.send(permit, &**link, call, session, target).await;
        }
        if call.revision.has_tasks_capability()
            && let Some(task) = wanted(&call.message)
            && Box::pin(self.may_have_tasks(session, target)).await
        {
            let begun = self.carry(permit, &**link, call, session, target, task);
            return Box::pin(begun).await;
        }
        let settings = self.parts.upstreams.settings(&target.upstream);
        let runs_tasks = settings.is_some_and(|settings| settings.run_tasks);
        // For a task that is run here it is declared as well.
        let takes_tasks = session.visit().is_some() && is_declared(call);
        if (runs_tasks || takes_tasks) && self.runs_only_as_task(link, call, session, target).await
        {
            let request = self.request_for(&**link, call, target)?;
            let request = self.reparse(as_task(&request, self.patience(target)))?;
            let reply = self
                .transmit(permit, &**link, call, session, target, &request)
                .await?;
            let Some(state) = State::begun(&reply, Design::Legacy) else {
                return Ok(reply);
            };
            if takes_tasks {
                let bridged = Bridged {
                    relay: self,
                    link,
                    call,
                    session,
                    target,
                };
                return bridged.begun(&state);
            }
            let held = self.hold(link, call, session, target, &state, Design::Legacy);
            return Box::pin(held).await;
        }
        let reply = self.send(permit, &**link, call, session, target).await?;
        if takes_tasks {
            return Ok(reply);
        }
        let (reply, newer) = if runs_tasks && would_help(&reply, call) {
            // The upstream refused before running the call; a legacy session cannot declare the extension.
            let newer = Box::pin(self.newer_link(&**link, session)).await;
            let link = newer.as_ref().unwrap_or(link);
            let declaring = declaring(call);
            let sent = self.send(permit, &**link, &declaring, session, target);
            (sent.await?, newer)
        } else {
            (reply, None)
        };
        let link = newer.as_ref().unwrap_or(link);
        match State::begun(&reply, Design::Extension) {
            Some(_) if !runs_tasks => Err(unasked(&target.upstream)),
            Some(state) => {
                let declaring = declaring(call);
                let held = self.hold(link, &declaring, session, target, &state, Design::Extension);
                Box::pin(held).await
            }
            None => Ok(reply),
        }
    }

    /// Whether a tool of a legacy upstream can be called only as a task. Spec: SPEC K-01.
    async fn runs_only_as_task(
        &self,
        link: &Arc<dyn UpstreamLink>,
        call: &Call,
        session: &Arc<Session>,
        target: &Target,
    ) -> bool {
        let upstream = &target.upstream;
        let declared = match link.declared() {
            Some(declared) => Some(declared),
            None => Box::pin(self.learn(session, upstream, None)).await.ok(),
        };
        let (Some(declared), Some(name)) = (declared, target.name.as_deref()) else {
            return false;
        };
        if !declared.takes_tasks() {
            return false;
        }
        let tool = Box::pin(self.tool_of(call, session, upstream, name)).await;
        tool.as_deref()
            .and_then(|tool| std::str::from_utf8(tool).ok())
            .and_then(|tool| json::member(tool, "execution"))
            .and_then(|execution| json::member(execution, "taskSupport"))
            == Some("\"required\"")
    }

    /// Waits for the end of a task; its outcome is the call's.
    async fn hold(
        &self,
        link: &Arc<dyn UpstreamLink>,
        call: &Call,
        session: &Session,
        target: &Target,
        state: &State<'_>,
        design: Design,
    ) -> Result<Reply, Fault> {
        let upstream = &target.upstream;
        let declared = link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let shown = target.view.link(
            call,
            Projection::of(revision, call.revision),
            link.declared(),
        );
        let shown = Call {
            link: shown.unwrap_or_else(|| Arc::clone(&call.link)),
            resumption: None,
            ..call.clone()
        };
        let mut pace = Pace::new(&shown, state);
        pace.note(state, &*shown.link);
        let watched = Watched::new(
            link,
            shown,
            &state.id,
            session.last_word(),
            &self.parts.tasks,
        );
        let wait = Wait {
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
            Ended::Reply(reply) => {
                watched.over();
                return Ok(reply);
            }
            Ended::Cancelled => {
                watched.over();
                format!("upstream \"{upstream}\" cancelled the task that the call had become")
            }
            // What still runs is cancelled.
            Ended::Unanswered(why) => format!("upstream \"{upstream}\" needs an answer: {why}"),
        };
        let source = self.source(call, declared, &target.view);
        Ok(tool_failure(call, &source, &why))
    }

    /// How long a task may take.
    pub(super) fn patience(&self, target: &Target) -> Duration {
        let settings = self.parts.upstreams.settings(&target.upstream);
        settings.map_or(Duration::ZERO, |settings| settings.total_timeout)
    }
}

/// The request as one for a task that is kept for `ttl`. Its progress is what the task's status says,
/// so that the upstream is not asked for any.
fn as_task(request: &Message, ttl: Duration) -> Bytes {
    let edit = request
        .edit()
        .param("task", format!(r#"{{"ttl":{}}}"#, ttl.as_millis()));
    edit.remove_meta(meta::PROGRESS_TOKEN).finish()
}

/// Spec: SPEC K-10.
fn unasked(upstream: &str) -> Fault {
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
