//! `SourceState`: the state of a token source: the request under way, the last failure, the scopes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::failure::TokenFailure;
use super::held_token::HeldToken;

/// Pauses after failures that a retry may solve: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(15);
/// Pause after a failure that an operator or the server has to solve.
const PAUSE_REFUSED: Duration = Duration::from_secs(15);
/// Least time between two token requests that refusals of the upstream cause.
const FORCED_EVERY: Duration = Duration::from_mins(1);
/// How often the same set of scopes is requested. Spec: SPEC B-11
const MOST_STEP_UPS: u32 = 3;
/// Different sets of scopes that an upstream can cause requests for.
const MOST_SCOPE_SETS: usize = 32;

/// How a request ended.
pub(super) type Outcome = Result<Arc<HeldToken>, TokenFailure>;
/// The request under way; the channel holds its outcome at the end.
pub(super) type PendingToken = watch::Receiver<Option<Outcome>>;

#[derive(Debug, Default)]
pub(super) struct SourceState {
    /// The request under way.
    pub(super) running: Option<PendingToken>,
    /// The last failure, until when it is returned instead of another request, and the number of the caller's token
    /// that was exchanged.
    pub(super) failure: Option<(TokenFailure, Instant, Option<u64>)>,
    pub(super) failures: u32,
    /// When a refusal of the upstream last caused a token request.
    pub(super) forced: Option<Instant>,
    /// Scopes that challenges of the upstream added, and that the server has granted.
    pub(super) further: Vec<String>,
    /// Scopes that challenges of the upstream added, and that the server has not granted yet.
    pub(super) adding: Vec<String>,
    /// Scopes that the server refused. They are not requested again.
    pub(super) refused: BTreeSet<String>,
    /// How often each set of scopes was requested.
    step_ups: BTreeMap<BTreeSet<String>, u32>,
}

impl SourceState {
    /// The request under way; `None` also where its task ended without an outcome.
    pub(super) fn running(&self) -> Option<PendingToken> {
        let running = self.running.as_ref()?;
        running.has_changed().is_ok().then(|| running.clone())
    }

    /// The cached failure, if it also applies to the caller's token with the number `subject`.
    pub(super) fn current_failure(&self, subject: Option<u64>) -> Option<&TokenFailure> {
        let (failure, until, of) = self.failure.as_ref()?;
        let is_answer = *of == subject || !failure.is_of_caller();
        (is_answer && Instant::now() < *until).then_some(failure)
    }

    /// Whether a refusal of the upstream caused a token request less than a minute ago.
    pub(super) fn was_forced(&self) -> bool {
        self.forced.is_some_and(|at| at.elapsed() < FORCED_EVERY)
    }

    /// Counts one more request for the scopes `wanted`; `None` where that exceeds a limit.
    pub(super) fn count_step_up(&mut self, wanted: &BTreeSet<String>) -> Option<()> {
        let is_known = self.step_ups.contains_key(wanted);
        if !is_known && self.step_ups.len() >= MOST_SCOPE_SETS {
            return None;
        }
        let times = self.step_ups.entry(wanted.clone()).or_default();
        *times += 1;
        (*times <= MOST_STEP_UPS).then_some(())
    }

    /// Records that the server granted a token with these scopes.
    pub(super) fn granted(&mut self, scopes: &[String]) {
        self.adding.retain(|scope| !scopes.contains(scope));
        self.further.extend_from_slice(scopes);
    }

    /// Records that the server refused these scopes.
    pub(super) fn refuse(&mut self, scopes: Vec<String>) {
        self.adding.retain(|scope| !scopes.contains(scope));
        self.further.retain(|scope| !scopes.contains(scope));
        self.refused.extend(scopes);
    }
}

/// How long a failure is cached, after `before` others in a row.
pub(super) fn pause(failure: &TokenFailure, before: u32) -> Duration {
    if !failure.may_pass {
        return PAUSE_REFUSED;
    }
    let doubled = PAUSE_FIRST.saturating_mul(1 << before.min(10));
    failure
        .retry_after
        .unwrap_or_default()
        .max(doubled.min(PAUSE_LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_whose_task_is_gone_is_not_waited_for() {
        let (told, running) = watch::channel(None);
        let state = SourceState {
            running: Some(running),
            ..SourceState::default()
        };
        assert!(state.running().is_some());
        drop(told);
        assert!(state.running().is_none());
    }

    #[test]
    fn step_ups_are_counted_for_each_set_of_scopes() {
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let mut state = SourceState::default();
        for _ in 0..MOST_STEP_UPS {
            assert!(state.count_step_up(&set("a")).is_some());
        }
        assert!(state.count_step_up(&set("a")).is_none());
        assert!(state.count_step_up(&set("b")).is_some());
    }

    #[test]
    fn sets_of_scopes_are_bounded() {
        let mut state = SourceState::default();
        let counted = (0..2 * MOST_SCOPE_SETS).filter(|at| {
            state
                .count_step_up(&BTreeSet::from([at.to_string()]))
                .is_some()
        });
        assert_eq!(counted.count(), MOST_SCOPE_SETS);
    }

    #[test]
    fn refused_scopes_leave_the_granted_ones() {
        let list = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let mut state = SourceState {
            adding: list(&["a"]),
            ..SourceState::default()
        };
        state.granted(&list(&["a"]));
        state.adding = list(&["b"]);
        state.refuse(list(&["b"]));
        assert_eq!(state.further, list(&["a"]));
        assert!(state.adding.is_empty() && state.refused.contains("b"));
    }
}
