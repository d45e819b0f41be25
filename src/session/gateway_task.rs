//! A task of 2025-11-25 that the gateway runs itself, for an upstream without `tasks`: status, questions
//! and outcome.
//! Spec: SPEC K-02 to K-04; BRIDGING §3.8; `docs/adr/0014`.

mod questions;
mod result_quota;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(super) use result_quota::OwnResults;
pub use result_quota::{QuotaReservation, ResultQuota};

use self::questions::UnansweredRound;
use super::{NoRoom, Session};
use crate::clock::SharedClock;
use crate::fault::Fault;
use crate::fault::told::error_object;
use crate::protocol::json::{self, ObjectWriter};
use crate::telemetry::metrics::{self, GAUGES};

/// The `pollInterval` that clients are given, milliseconds.
const POLL_INTERVAL_MS: u32 = 1000;
/// Characters of a `statusMessage`.
const LONGEST_MESSAGE: usize = 1024;

/// How a task ended.
#[derive(Debug)]
pub enum TaskOutcome {
    /// JSON text of the result that the call would have had.
    Result(Bytes, QuotaReservation),
    /// JSON text of the error object that the call would have had, or of one made by the gateway.
    Error(Bytes, Option<QuotaReservation>),
    /// Cancelled, so without a result.
    Cancelled,
}

/// A task that the gateway runs.
#[derive(Debug)]
pub struct GatewayTask {
    clock: SharedClock,
    created: Duration,
    ttl: Duration,
    state: watch::Sender<TaskState>,
    /// Cancelled by [`forget`](Self::forget): no client can name the task.
    gone: CancellationToken,
    /// Cancelled when the task ends or is forgotten; a child of `gone`.
    stop: CancellationToken,
    /// Whether [`outcome`](Self::outcome) returned the outcome to a client.
    fetched: AtomicBool,
}

#[derive(Debug)]
struct TaskState {
    ended: Option<EndedTask>,
    message: Option<String>,
    updated: Duration,
    questions: Vec<UnansweredRound>,
}

#[derive(Debug, Clone)]
struct EndedTask {
    /// Computed once: a result may be long, and `TaskOutcome::status` scans it.
    status: &'static str,
    outcome: Arc<TaskOutcome>,
}

/// A guard that counts a running task among the calls of its principal until dropped.
#[derive(Debug)]
pub struct RunningTask {
    session: Arc<Session>,
    _running: metrics::GaugeGuard,
}

impl TaskOutcome {
    fn status(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Error(..) => "failed",
            // Spec: SPEC K-04: a tool's error is a failure too.
            Self::Result(result, _) => {
                let text = std::str::from_utf8(result).unwrap_or_default();
                match json::member(text, "isError") {
                    Some("true") => "failed",
                    _ => "completed",
                }
            }
        }
    }

    /// The `statusMessage` of a failure: the error's message, or the first text of a tool's result.
    fn why(&self) -> Option<Cow<'_, str>> {
        let (bytes, is_error) = match self {
            Self::Cancelled => return None,
            Self::Error(bytes, _) => (bytes, true),
            Self::Result(bytes, _) => (bytes, false),
        };
        let text = std::str::from_utf8(bytes).ok()?;
        if is_error {
            return json::string(json::member(text, "message")?);
        }
        let content = json::elements(json::member(text, "content")?).ok()?;
        json::string(
            content
                .into_iter()
                .find_map(|one| json::member(one, "text"))?,
        )
    }
}

impl TaskState {
    fn status(&self) -> &'static str {
        match &self.ended {
            Some(ended) => ended.status,
            None if self.questions.is_empty() => "working",
            None => "input_required",
        }
    }
}

impl GatewayTask {
    /// A task that begins now and expires after `ttl`.
    #[must_use]
    pub fn begin(clock: SharedClock, ttl: Duration) -> Arc<Self> {
        let created = clock.now();
        Self::begun(clock, created, ttl)
    }

    /// A task that ran in a replica that is lost: it has failed, and whether it had an effect is not known.
    #[must_use]
    pub(super) fn lost(clock: SharedClock, created: Duration, ttl: Duration) -> Arc<Self> {
        let task = Self::begun(clock, created, ttl);
        let error = error_object(&Fault::outcome_unknown("task"));
        task.end(TaskOutcome::Error(error, None));
        task
    }

    fn begun(clock: SharedClock, created: Duration, ttl: Duration) -> Arc<Self> {
        let gone = CancellationToken::new();
        let state = TaskState {
            ended: None,
            message: None,
            updated: created,
            questions: Vec::new(),
        };
        Arc::new(Self {
            clock,
            created,
            ttl,
            state: watch::Sender::new(state),
            stop: gone.child_token(),
            fetched: AtomicBool::new(false),
            gone,
        })
    }

    /// The lifetime of the task, from its creation.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When the task was created, since the Unix epoch.
    #[must_use]
    pub(super) fn created(&self) -> Duration {
        self.created
    }

    /// The task's `status`, as the protocol spells it.
    #[must_use]
    pub fn status(&self) -> &'static str {
        self.state.borrow().status()
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Whether evicting the task now loses work: the task still runs, or its outcome was not cancelled and
    /// has not been fetched.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        match &self.state.borrow().ended {
            None => true,
            Some(ended) => {
                !matches!(&*ended.outcome, TaskOutcome::Cancelled)
                    && !self.fetched.load(Ordering::Relaxed)
            }
        }
    }

    /// Bytes of the outcome that count against [`ResultQuota`].
    #[must_use]
    pub fn kept(&self) -> usize {
        let state = self.state.borrow();
        match state.ended.as_ref().map(|ended| &*ended.outcome) {
            Some(TaskOutcome::Result(bytes, _) | TaskOutcome::Error(bytes, Some(_))) => bytes.len(),
            _ => 0,
        }
    }

    /// JSON text of the `Task` object, with `handle` as the `taskId`.
    #[must_use]
    pub fn shown(&self, handle: &str) -> String {
        let state = self.state.borrow();
        let mut out = ObjectWriter::default();
        out.member("taskId", &json::quote(handle));
        out.member("status", &json::quote(state.status()));
        out.member("createdAt", &json::quote(&task_time(self.created)));
        out.member("lastUpdatedAt", &json::quote(&task_time(state.updated)));
        out.member("ttl", &self.ttl.as_millis().to_string());
        out.member("pollInterval", &POLL_INTERVAL_MS.to_string());
        if let Some(message) = &state.message {
            out.member("statusMessage", &json::quote(message));
        }
        out.finish()
    }

    /// Sets the `statusMessage` of a running task.
    pub fn note(&self, message: &str) {
        self.change(|state| {
            let message = cut(message);
            if state.ended.is_some() || state.message.as_deref() == Some(message) {
                return false;
            }
            state.message = Some(message.to_owned());
            true
        });
    }

    /// Ends the task with `outcome`; `false` if already ended: a terminal status stays (SPEC K-04).
    pub fn end(&self, outcome: TaskOutcome) -> bool {
        let status = outcome.status();
        let ended = self.change(|state| {
            if state.ended.is_some() {
                return false;
            }
            if status == "failed" {
                state.message = outcome.why().map(|why| cut(&why).to_owned());
            }
            state.questions.clear();
            state.ended = Some(EndedTask {
                status,
                outcome: Arc::new(outcome),
            });
            true
        });
        self.stop.cancel();
        ended
    }

    /// Evicts the task: cancels the run and wakes waiters with [`TaskOutcome::Cancelled`].
    pub fn forget(&self) {
        self.change(|state| {
            state.questions.clear();
            let ended = state.ended.take();
            // The outcome's bytes are released now; a terminal status stays (SPEC K-04).
            state.ended = Some(EndedTask {
                status: ended.map_or(TaskOutcome::Cancelled.status(), |ended| ended.status),
                outcome: Arc::new(TaskOutcome::Cancelled),
            });
            true
        });
        self.gone.cancel();
    }

    /// Cancelled once the task has ended or is forgotten.
    #[must_use]
    pub fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// Cancelled by [`forget`](Self::forget).
    #[must_use]
    pub fn forgotten(&self) -> &CancellationToken {
        &self.gone
    }

    /// Waits for a status that differs from `known`.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn changed(&self, known: &'static str) -> &'static str {
        let mut state = self.state.subscribe();
        let changed = state.wait_for(|state| state.status() != known).await;
        changed.map_or(known, |state| state.status())
    }

    /// Runs `change`; on `true`, stamps `updated` and wakes the waiters.
    fn change(&self, change: impl FnOnce(&mut TaskState) -> bool) -> bool {
        let now = self.clock.now();
        self.state.send_if_modified(|state| {
            let changed = change(state);
            if changed {
                state.updated = now;
            }
            changed
        })
    }
}

impl RunningTask {
    /// Counts a hosted task of `session` against its principal. One more than the cap is allowed: the call that begins
    /// the task still holds its place and is about to release it.
    ///
    /// # Errors
    /// [`NoRoom::TooManyCalls`] when the principal already runs `max_per_principal` calls and tasks.
    pub fn begin(session: &Arc<Session>, max_per_principal: usize) -> Result<Self, NoRoom> {
        if !session.permits.enter(max_per_principal.saturating_add(1)) {
            return Err(NoRoom::TooManyCalls);
        }
        session.tasks.running.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            session: Arc::clone(session),
            _running: GAUGES.tasks_hosted.enter(),
        })
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.session.permits.leave();
        self.session.tasks.running.fetch_sub(1, Ordering::Relaxed);
        self.session.touch();
    }
}

/// RFC 3339, in UTC, to the millisecond: such texts have the order of their times.
pub(super) fn task_time(since_epoch: Duration) -> String {
    let ms = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    format!("{time:.3}")
}

/// The first [`LONGEST_MESSAGE`] characters of `message`.
fn cut(message: &str) -> &str {
    let end = message.char_indices().nth(LONGEST_MESSAGE);
    end.and_then(|(end, _)| message.get(..end))
        .unwrap_or(message)
}

#[cfg(test)]
mod tests;
