//! Questions of a hosted task: each round waits for a client that requests `tasks/result`, and is put on
//! the stream of that request. Spec: SPEC K-04; MCP 2025-11-25, tasks, "Input Required Status".

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{GatewayTask, TaskOutcome};
use crate::call::{DownstreamLink, InputOutcome, InputRequests};
use crate::sync::on_drop::OnDrop;

/// Numbers rounds, and waiters by age.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Grace after a round's limit, in which its client hands over the answers received in time.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);

/// A round without answers.
#[derive(Debug)]
pub(super) struct UnansweredRound {
    number: u64,
    round: InputRequests,
    /// When the round's limit expires.
    until: Option<Instant>,
    answer: oneshot::Sender<InputOutcome>,
    /// The waiter that has the round now.
    put_to: Option<u64>,
}

impl UnansweredRound {
    /// Whether `waiter` may take the round: it is unassigned, or with an older waiter.
    fn is_for(&self, waiter: u64) -> bool {
        self.put_to.is_none_or(|other| other < waiter)
    }
}

impl GatewayTask {
    /// Puts `round` to the client that waits in [`outcome`](Self::outcome), now or later; the round's limit
    /// covers waiting for a client and answering. At the limit, the answers so far are returned.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions.
    pub async fn ask(&self, round: InputRequests) -> InputOutcome {
        let until = round.limit.map(|limit| Instant::now() + limit);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.change(|state| {
            let is_asked = state.ended.is_none();
            if is_asked {
                state.questions.push(UnansweredRound {
                    number,
                    round,
                    until,
                    answer,
                    put_to: None,
                });
            }
            is_asked
        });
        let _withdraw = OnDrop::new(|| {
            self.change(|state| {
                let before = state.questions.len();
                state.questions.retain(|open| open.number != number);
                state.questions.len() != before
            });
        });
        let answered = match until {
            Some(until) => tokio::time::timeout_at(until + COLLECT_WITHIN, answered).await,
            None => Ok(answered.await),
        };
        match answered {
            Ok(Ok(asked)) => asked,
            Ok(Err(_)) => InputOutcome::Unanswered,
            // No client requested the result in time.
            Err(_) => InputOutcome::Answered(Vec::new()),
        }
    }

    /// Waits for the task's outcome. Rounds that are open meanwhile are put to `client` and withdrawn from
    /// older waiters, whose connections may be dead unnoticed.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions from this client; they are put to the next.
    pub async fn outcome(&self, client: &dyn DownstreamLink) -> Arc<TaskOutcome> {
        let waiter = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut states = self.state.subscribe();
        loop {
            let state = states
                .wait_for(|state| {
                    state.ended.is_some() || state.questions.iter().any(|open| open.is_for(waiter))
                })
                .await;
            // `self` holds the sender, so `wait_for` cannot fail.
            let Ok(ended) = state.map(|state| state.ended.clone()) else {
                return Arc::new(TaskOutcome::Cancelled);
            };
            if let Some(ended) = ended {
                self.fetched.store(true, Ordering::Relaxed);
                return ended.outcome;
            }
            if let Some((put, round)) = self.take(waiter) {
                put.to(client, round).await;
            }
        }
    }

    /// The first round for `waiter`.
    fn take(&self, waiter: u64) -> Option<(DeliveredRound<'_>, InputRequests)> {
        let mut taken = None;
        self.state.send_if_modified(|state| {
            let mut open = state.questions.iter_mut();
            if let Some(open) = open.find(|open| open.is_for(waiter)) {
                open.put_to = Some(waiter);
                let limit = open
                    .until
                    .map(|until| until.saturating_duration_since(Instant::now()));
                let round = InputRequests {
                    limit,
                    ..open.round.clone()
                };
                taken = Some((open.number, round));
            }
            taken.is_some()
        });
        let (number, round) = taken?;
        let put = DeliveredRound {
            task: self,
            number,
            waiter,
        };
        Some((put, round))
    }
}

/// A round that was put to a client.
struct DeliveredRound<'t> {
    task: &'t GatewayTask,
    number: u64,
    waiter: u64,
}

impl DeliveredRound<'_> {
    async fn to(self, client: &dyn DownstreamLink, round: InputRequests) {
        let mut states = self.task.state.subscribe();
        let is_open = |open: &UnansweredRound| self.is(open);
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
            // `ask` may have been dropped just now.
            drop(open.answer.send(asked));
        }
    }

    /// Whether `open` is this round and no newer waiter has taken it.
    fn is(&self, open: &UnansweredRound) -> bool {
        open.number == self.number && open.put_to == Some(self.waiter)
    }
}

impl Drop for DeliveredRound<'_> {
    /// Returns an unanswered round for the next waiter to take.
    fn drop(&mut self) {
        self.task.state.send_if_modified(|state| {
            let mut open = state.questions.iter_mut();
            let open = open.find(|open| self.is(open));
            open.and_then(|open| open.put_to.take()).is_some()
        });
    }
}
