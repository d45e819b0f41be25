//! A task of 2025-11-25 that the gateway runs itself, for an upstream that knows no such tasks: how it
//! stands, what it asks, and what it came to.
//! Spec: SPEC K-02 to K-04; BRIDGING §3.8; `docs/adr/0014`.

mod questions;
mod room;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use room::{Kept, ResultRoom};

use self::questions::Open;
use super::{NoRoom, Session};
use crate::clock::SharedClock;
use crate::protocol::json;
use crate::telemetry::metrics::{self, GAUGES};

/// How often its client is asked to look after it, milliseconds.
const POLL_INTERVAL_MS: u32 = 1000;
/// Characters of what is said of a task for people.
const LONGEST_MESSAGE: usize = 1024;

/// What a task came to.
#[derive(Debug)]
pub enum Outcome {
    /// JSON text of the result that the call would have had.
    Result(Bytes, Kept),
    /// JSON text of the error object that it would have had, or of one of ours.
    Error(Bytes, Option<Kept>),
    /// Nothing: it was cancelled.
    Cancelled,
}

/// A task that is run here.
#[derive(Debug)]
pub struct HostedTask {
    clock: SharedClock,
    created: Duration,
    ttl: Duration,
    state: watch::Sender<State>,
    /// Nobody can ask for it any more.
    gone: CancellationToken,
    /// It is not to run on.
    stop: CancellationToken,
    /// Somebody has been told what it came to.
    fetched: AtomicBool,
}

#[derive(Debug)]
struct State {
    ended: Option<Ended>,
    message: Option<String>,
    updated: Duration,
    questions: Vec<Open>,
}

#[derive(Debug, Clone)]
struct Ended {
    /// Looked up once: a result may be long.
    status: &'static str,
    outcome: Arc<Outcome>,
}

/// A task that runs, counted among the calls of its principal until this is dropped.
#[derive(Debug)]
pub struct RunningTask {
    session: Arc<Session>,
    _running: metrics::Open,
}

impl Outcome {
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
}

impl Outcome {
    /// What a failure says of itself for people: its error's message, or the first text of a tool's.
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

impl State {
    fn status(&self) -> &'static str {
        match &self.ended {
            Some(ended) => ended.status,
            None if self.questions.is_empty() => "working",
            None => "input_required",
        }
    }
}

impl HostedTask {
    /// A task that begins now, of which nothing is known when `ttl` is over.
    #[must_use]
    pub fn begin(clock: SharedClock, ttl: Duration) -> Arc<Self> {
        let created = clock.now();
        let gone = CancellationToken::new();
        let state = State {
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

    /// How long it is known, from its beginning.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Where it stands, in the protocol's word.
    #[must_use]
    pub fn status(&self) -> &'static str {
        self.state.borrow().status()
    }

    /// Whether nothing about it will change.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Whether something is lost when it is forgotten now: it runs, or nobody has fetched what it came
    /// to.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        match &self.state.borrow().ended {
            None => true,
            Some(ended) => {
                !matches!(&*ended.outcome, Outcome::Cancelled)
                    && !self.fetched.load(Ordering::Relaxed)
            }
        }
    }

    /// Bytes that are kept of what it came to.
    #[must_use]
    pub fn kept(&self) -> usize {
        let state = self.state.borrow();
        match state.ended.as_ref().map(|ended| &*ended.outcome) {
            Some(Outcome::Result(bytes, _) | Outcome::Error(bytes, Some(_))) => bytes.len(),
            _ => 0,
        }
    }

    /// JSON text of the task, which its client calls `handle`.
    #[must_use]
    pub fn shown(&self, handle: &str) -> String {
        let state = self.state.borrow();
        let mut out = format!(
            r#"{{"taskId":{},"status":"{}","createdAt":"{}","lastUpdatedAt":"{}","ttl":{},"pollInterval":{POLL_INTERVAL_MS}"#,
            json::quote(handle),
            state.status(),
            time(self.created),
            time(state.updated),
            self.ttl.as_millis(),
        );
        if let Some(message) = &state.message {
            out.push_str(",\"statusMessage\":");
            json::quote_into(&mut out, message);
        }
        out.push('}');
        out
    }

    /// Takes what is said of it for people, while it runs.
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

    /// Ends it, unless it has ended before: a terminal status stays (SPEC K-04).
    pub fn end(&self, outcome: Outcome) -> bool {
        let status = outcome.status();
        let ended = self.change(|state| {
            if state.ended.is_some() {
                return false;
            }
            if status == "failed" {
                state.message = outcome.why().map(|why| cut(&why).to_owned());
            }
            state.questions.clear();
            state.ended = Some(Ended {
                status,
                outcome: Arc::new(outcome),
            });
            true
        });
        self.stop.cancel();
        ended
    }

    /// Nobody can ask for it any more: it does not run on, and who waits for it is told.
    pub fn forget(&self) {
        self.change(|state| {
            state.questions.clear();
            let ended = state.ended.take();
            // What it came to is given up at once; that it did, and how, stays (SPEC K-04).
            state.ended = Some(Ended {
                status: ended.map_or(Outcome::Cancelled.status(), |ended| ended.status),
                outcome: Arc::new(Outcome::Cancelled),
            });
            true
        });
        self.gone.cancel();
    }

    /// Set once it is not to run on: it is over, or forgotten.
    #[must_use]
    pub fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// Set once nobody can ask for it any more.
    #[must_use]
    pub fn forgotten(&self) -> &CancellationToken {
        &self.gone
    }

    /// Waits until its status is another one than `known`.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn changed(&self, known: &'static str) -> &'static str {
        let mut state = self.state.subscribe();
        let changed = state.wait_for(|state| state.status() != known).await;
        changed.map_or(known, |state| state.status())
    }

    /// Changes the state where `change` says that it did.
    fn change(&self, change: impl FnOnce(&mut State) -> bool) -> bool {
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

impl Session {
    /// Counts a task in that is run here, besides the call that begins it and is about to be over.
    ///
    /// # Errors
    /// [`NoRoom::TooManyCalls`] when so many calls and tasks of its principal run.
    pub fn begin_task(self: &Arc<Self>, max_per_principal: usize) -> Result<RunningTask, NoRoom> {
        if !self.places.enter(max_per_principal.saturating_add(1)) {
            return Err(NoRoom::TooManyCalls);
        }
        self.tasks.running.fetch_add(1, Ordering::Relaxed);
        Ok(RunningTask {
            session: Arc::clone(self),
            _running: GAUGES.tasks_hosted.enter(),
        })
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.session.places.leave();
        self.session.tasks.running.fetch_sub(1, Ordering::Relaxed);
        self.session.touch();
    }
}

/// RFC 3339, in UTC, to the millisecond: such texts have the order of their times.
fn time(since_epoch: Duration) -> String {
    let ms = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    format!("{time:.3}")
}

/// The beginning of what is said for people.
fn cut(message: &str) -> &str {
    let end = message.char_indices().nth(LONGEST_MESSAGE);
    end.and_then(|(end, _)| message.get(..end))
        .unwrap_or(message)
}

#[cfg(test)]
mod tests;
