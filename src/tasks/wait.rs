//! The wait for the end of a task, in either design. Spec: SPEC K-03, K-04, K-12 to K-14.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::inputs::{self, AskedInputs};
use super::polling::PollPace;
use super::remote_task::RemoteTask;
use crate::call::Reply;
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, json, meta, rpc};
use crate::translate::task::state::{TaskDialect, TaskStatus, UpstreamTask};

/// How often in a row a task may be out of reach before it is given up.
const MAX_MISSES: u32 = 3;

/// How the wait for a task ends.
pub(super) enum WaitEnd {
    /// With the response that the call would have had.
    Reply(Reply),
    /// The upstream gave the task up.
    Cancelled,
    /// The task asked a question that has no answer; the task still runs.
    Unanswered(String),
}

/// A task that is waited for.
pub(super) struct TaskWait<'a> {
    pub(super) task: RemoteTask<'a>,
    pub(super) upstream: &'a Arc<str>,
    /// For one round of questions.
    pub(super) ask_timeout: Duration,
}

impl TaskWait<'_> {
    /// Waits for the end of the task, however long that takes.
    ///
    /// # Errors
    /// The upstream cannot be reached, or says that it no longer knows the task.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the task as it is.
    pub(super) async fn for_end(
        &self,
        design: TaskDialect,
        pace: &mut PollPace,
    ) -> Result<WaitEnd, Fault> {
        match design {
            TaskDialect::Legacy => self.for_result(pace).await,
            TaskDialect::Extension => self.for_state(pace).await,
        }
    }

    /// Waits for the end of a legacy task: `tasks/result` answers at that time, and questions of the task arrive while
    /// it is open.
    async fn for_result(&self, pace: &mut PollPace) -> Result<WaitEnd, Fault> {
        loop {
            let reply = tokio::select! {
                reply = self.task.send("tasks/result", &[]) => reply,
                never = self.report(pace) => match never {},
            };
            match reply {
                Ok(reply) => return Ok(WaitEnd::Reply(unmarked(reply))),
                Err(fault) => self.task.asks_again(fault).await?,
            }
        }
    }

    /// Reports the status of a legacy task to the caller, for as long as the upstream answers `tasks/get`.
    async fn report(&self, pace: &mut PollPace) -> Infallible {
        while pace.is_followed() {
            pace.wait().await;
            let Ok(reply) = self.task.send("tasks/get", &[]).await else {
                break;
            };
            let Some(state) = reply.result().and_then(UpstreamTask::read) else {
                break;
            };
            pace.note(&state, &*self.task.call.link);
        }
        std::future::pending().await
    }

    /// Polls a task of the extension until it has ended.
    async fn for_state(&self, pace: &mut PollPace) -> Result<WaitEnd, Fault> {
        let mut inputs = AskedInputs::default();
        let mut misses = 0;
        loop {
            pace.wait().await;
            let reply = match self.task.send("tasks/get", &[]).await {
                Err(fault) if is_passing(&fault) && misses < MAX_MISSES => {
                    misses += 1;
                    continue;
                }
                reply => reply?,
            };
            misses = 0;
            // An error to `tasks/get` (the upstream no longer knows the task) is the outcome.
            if reply.error().is_some() {
                return Ok(WaitEnd::Reply(reply));
            }
            let state = reply.result().and_then(UpstreamTask::read);
            let state = state.ok_or_else(|| self.lost_track())?;
            pace.note(&state, &*self.task.call.link);
            match state.status {
                TaskStatus::Working => {}
                TaskStatus::InputRequired => {
                    if let Err(why) = self.answer(&state, &mut inputs, pace).await? {
                        return Ok(WaitEnd::Unanswered(why));
                    }
                }
                TaskStatus::Completed => return self.outcome(&state, "result"),
                TaskStatus::Failed => return self.outcome(&state, "error"),
                TaskStatus::Cancelled => return Ok(WaitEnd::Cancelled),
            }
        }
    }

    /// Puts the questions of the task to the client and passes the answers on. Returns the reason if there are
    /// none. The questions are withdrawn as soon as the task goes on without answers: its result must not wait for them.
    async fn answer(
        &self,
        state: &UpstreamTask<'_>,
        inputs: &mut AskedInputs,
        pace: &mut PollPace,
    ) -> Result<Result<(), String>, Fault> {
        let link = &*self.task.call.link;
        let fresh = match inputs.fresh(state, link) {
            Ok(fresh) if fresh.is_empty() => return Ok(Ok(())),
            Ok(fresh) => fresh,
            Err(why) => return Ok(Err(why)),
        };
        let keys: Vec<String> = fresh.iter().map(|(key, _)| key.clone()).collect();
        let responses = tokio::select! {
            biased;
            responses = inputs::ask(link, fresh, self.ask_timeout) => responses,
            () = self.until_it_goes_on(pace) => {
                inputs.withdraw(&keys);
                return Ok(Ok(()));
            }
        };
        let responses = match responses {
            Ok(responses) => responses,
            Err(why) => return Ok(Err(why)),
        };
        let more = [("inputResponses", &*responses)];
        let reply = self.task.send("tasks/update", &more).await?;
        let Some(error) = reply.error() else {
            return Ok(Ok(()));
        };
        // The task may have gone on while the answers were under way.
        if self.goes_on().await {
            inputs.withdraw(&keys);
            return Ok(Ok(()));
        }
        // A refused `tasks/update` ends the wait: the task needs these answers, and a client is asked only once.
        Ok(Err(refused(error)))
    }

    /// Whether the upstream says that the task has a status that needs no answer.
    async fn goes_on(&self) -> bool {
        let reply = self.task.send("tasks/get", &[]).await;
        let state = reply.as_ref().ok().and_then(Reply::result);
        let state = state.and_then(UpstreamTask::read);
        state.is_some_and(|state| state.status != TaskStatus::InputRequired)
    }

    /// Waits until the task has a status that needs no answer, or its upstream no longer knows it. A task that is out of
    /// reach may still wait for the answer.
    async fn until_it_goes_on(&self, pace: &mut PollPace) {
        loop {
            pace.wait().await;
            let Ok(reply) = self.task.send("tasks/get", &[]).await else {
                continue;
            };
            let Some(state) = reply.result().and_then(UpstreamTask::read) else {
                return;
            };
            pace.note(&state, &*self.task.call.link);
            if state.status != TaskStatus::InputRequired {
                return;
            }
        }
    }

    /// The outcome of the task, as the response that a plain call would have got.
    fn outcome(&self, state: &UpstreamTask<'_>, name: &str) -> Result<WaitEnd, Fault> {
        let outcome = state.member(name).filter(|text| text.starts_with('{'));
        let outcome = outcome.ok_or_else(|| self.lost_track())?;
        let text = rpc::response(0, name, outcome);
        let message = Message::parse(text.into(), json::MAX_DEPTH);
        let message = message.map_err(|error| self.lost_track().caused_by(error))?;
        Ok(WaitEnd::Reply(Reply::Relayed(message)))
    }

    fn lost_track(&self) -> Fault {
        let upstream = self.upstream;
        let text = format!("upstream \"{upstream}\" does not say what became of a task");
        Fault::upstream(FaultKind::UpstreamInvalid, text)
    }
}

/// The text about refused answers; `error` is JSON text.
fn refused(error: &str) -> String {
    let message = json::member(error, "message").and_then(json::string);
    let message: String = message.unwrap_or_default().chars().take(200).collect();
    format!("it refused what the client answered: {message}")
}

/// The result without the mark of a task that its client does not know (SPEC K-03).
pub(super) fn unmarked(reply: Reply) -> Reply {
    let Reply::Relayed(message) = &reply else {
        return reply;
    };
    let members = message
        .result_member("_meta")
        .and_then(|meta| json::members(meta).ok())
        .unwrap_or_default();
    let is_mark = |(name, _): &(Cow<'_, str>, &str)| name == meta::RELATED_TASK;
    if !members.iter().any(is_mark) {
        return reply;
    }
    let edit = message.edit();
    let bytes = if members.len() == 1 {
        edit.remove_result_member("_meta").finish()
    } else {
        let kept = members.iter().filter(|member| !is_mark(member));
        let kept = json::object(kept.map(|(name, value)| (name, value)));
        edit.result_member("_meta", kept).finish()
    };
    // What was whole and lost a member is whole.
    Message::parse(bytes, usize::MAX).map_or(reply, Reply::Relayed)
}

/// Whether a fault is transient, so that the upstream may still know its tasks.
pub(super) fn is_passing(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::UpstreamLost | FaultKind::UpstreamTimeout | FaultKind::UpstreamUnavailable
    )
}

#[cfg(test)]
pub(super) mod tests;
