//! What a task asks: each round waits for a client that asks for the task's result, and is put on the
//! stream of that request. Spec: SPEC K-04; MCP 2025-11-25, tasks, "Input Required Status".

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{HostedTask, Outcome};
use crate::call::{Asked, DownstreamLink, Round};

/// Tells rounds apart, and puts who waits in order.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// After the limit of a round, how long its client may take to hand over what was answered by then.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);

/// A round without answers.
#[derive(Debug)]
pub(super) struct Open {
    number: u64,
    round: Round,
    /// When the round's limit is over.
    until: Option<Instant>,
    answer: oneshot::Sender<Asked>,
    /// Before whom it is now.
    put_to: Option<u64>,
}

impl Open {
    /// Whether it is before nobody, or before somebody who came earlier than `waiter`.
    fn is_for(&self, waiter: u64) -> bool {
        self.put_to.is_none_or(|other| other < waiter)
    }
}

impl HostedTask {
    /// Asks whoever asks for the result, now or later; the round's limit is for both together. Of several
    /// questions, those that were answered within it count.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions.
    pub async fn ask(&self, round: Round) -> Asked {
        let until = round.limit.map(|limit| Instant::now() + limit);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.change(|state| {
            let is_asked = state.ended.is_none();
            if is_asked {
                state.questions.push(Open {
                    number,
                    round,
                    until,
                    answer,
                    put_to: None,
                });
            }
            is_asked
        });
        let _withdraw = Withdraw { task: self, number };
        let answered = match until {
            Some(until) => tokio::time::timeout_at(until + COLLECT_WITHIN, answered).await,
            None => Ok(answered.await),
        };
        match answered {
            Ok(Ok(asked)) => asked,
            Ok(Err(_)) => Asked::Unanswered,
            // No client was there.
            Err(_) => Asked::Answered(Vec::new()),
        }
    }

    /// Waits for what it comes to. What it asks meanwhile is put to `client`, and withdrawn from those
    /// who have waited for longer: their connections may be gone without a word.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions from this client; they are put to the next.
    pub async fn outcome(&self, client: &dyn DownstreamLink) -> Arc<Outcome> {
        let waiter = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut states = self.state.subscribe();
        loop {
            let state = states
                .wait_for(|state| {
                    state.ended.is_some() || state.questions.iter().any(|open| open.is_for(waiter))
                })
                .await;
            // Its sender is in `self`.
            let Ok(ended) = state.map(|state| state.ended.clone()) else {
                return Arc::new(Outcome::Cancelled);
            };
            if let Some(ended) = ended {
                self.fetched.store(true, Ordering::Relaxed);
                return ended.outcome;
            }
            if let Some(put) = self.take(waiter) {
                put.to(client).await;
            }
        }
    }

    /// The first round for `waiter`.
    fn take(&self, waiter: u64) -> Option<Put<'_>> {
        let mut taken = None;
        self.state.send_if_modified(|state| {
            let mut open = state.questions.iter_mut();
            if let Some(open) = open.find(|open| open.is_for(waiter)) {
                open.put_to = Some(waiter);
                let limit = open
                    .until
                    .map(|until| until.saturating_duration_since(Instant::now()));
                let round = Round {
                    limit,
                    ..open.round.clone()
                };
                taken = Some((open.number, round));
            }
            taken.is_some()
        });
        let (number, round) = taken?;
        let task = self;
        Some(Put {
            task,
            number,
            waiter,
            round: Some(round),
        })
    }
}

/// A round that is before a client.
struct Put<'t> {
    task: &'t HostedTask,
    number: u64,
    waiter: u64,
    round: Option<Round>,
}

impl Put<'_> {
    async fn to(mut self, client: &dyn DownstreamLink) {
        let Some(round) = self.round.take() else {
            return;
        };
        let mut states = self.task.state.subscribe();
        let is_open = |open: &Open| self.is(open);
        let asked = tokio::select! {
            asked = client.ask(round) => asked,
            _ = states.wait_for(|state| !state.questions.iter().any(is_open)) => return,
        };
        let mut answered = None;
        self.task.change(|state| {
            let place = state.questions.iter().position(is_open);
            answered = place.map(|place| state.questions.remove(place));
            answered.is_some()
        });
        if let Some(open) = answered {
            // Whoever asked may have gone just now.
            drop(open.answer.send(asked));
        }
    }

    /// Whether it is this one, and still before this client.
    fn is(&self, open: &Open) -> bool {
        open.number == self.number && open.put_to == Some(self.waiter)
    }
}

impl Drop for Put<'_> {
    /// What has no answer is put to the next one.
    fn drop(&mut self) {
        self.task.state.send_if_modified(|state| {
            let mut open = state.questions.iter_mut();
            let open = open.find(|open| self.is(open));
            open.and_then(|open| open.put_to.take()).is_some()
        });
    }
}

/// Takes a round back when nobody waits for its answers any more.
struct Withdraw<'t> {
    task: &'t HostedTask,
    number: u64,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        self.task.change(|state| {
            let before = state.questions.len();
            state.questions.retain(|open| open.number != self.number);
            state.questions.len() != before
        });
    }
}
