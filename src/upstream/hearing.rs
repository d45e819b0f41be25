//! `Hearing`: whether notices of changes arrive from one source, and waiting until they do. Spec: SPEC M-75, M-85.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long to wait for a source that had no notices when last tried.
const DOUBT: Duration = Duration::from_millis(500);

/// A number for a stretch of time in which no notice can be missed.
pub(crate) fn next_stretch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// State of a source of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// No notices for now.
    #[default]
    NotNow,
    /// No notices until [`Hearing::try_again`].
    Never,
    /// Every notice, since this stretch began.
    Since(u64),
}

/// The hearing of one source of notices.
#[derive(Debug, Default)]
pub(crate) struct Hearing {
    state: watch::Sender<State>,
    /// Whether the source refused when last tried.
    was_refused: AtomicBool,
}

impl Hearing {
    /// Notes that no notice can be missed from now on; `true` when that is new. A running stretch goes on.
    pub(crate) fn begin(&self) -> bool {
        self.was_refused.store(false, Ordering::Relaxed);
        self.state.send_if_modified(|state| {
            let is_new = !matches!(state, State::Since(_));
            if is_new {
                *state = State::Since(next_stretch());
            }
            is_new
        })
    }

    /// Notes that notices may be missed from now on, until `begin`.
    pub(crate) fn end(&self) {
        self.set(State::NotNow);
    }

    /// Notes that the source has no notices.
    pub(crate) fn give_up(&self) {
        self.set(State::Never);
    }

    /// Notes that the source refuses. When tried again, the wait for it is shorter.
    pub(crate) fn refused(&self) {
        self.was_refused.store(true, Ordering::Relaxed);
        self.give_up();
    }

    /// Notes that a source without notices is tried again, with an open outcome.
    pub(crate) fn try_again(&self) {
        self.state.send_if_modified(|state| {
            let had_none = *state == State::Never;
            if had_none {
                *state = State::NotNow;
            }
            had_none
        });
    }

    /// See [`crate::call::UpstreamLink::hearing`].
    pub(crate) fn stretch(&self) -> Option<u64> {
        match *self.state.borrow() {
            State::Since(stretch) => Some(stretch),
            State::NotNow | State::Never => None,
        }
    }

    /// See [`crate::call::UpstreamLink::until_heard`].
    ///
    /// # Cancel safety
    /// Nothing is taken.
    pub(crate) async fn begun(&self) -> bool {
        let mut states = self.state.subscribe();
        let begun = async {
            let decided = states.wait_for(|state| *state != State::NotNow).await;
            decided.is_ok_and(|state| matches!(*state, State::Since(_)))
        };
        if self.was_refused.load(Ordering::Relaxed) {
            return tokio::time::timeout(DOUBT, begun).await.unwrap_or(false);
        }
        begun.await
    }

    fn set(&self, state: State) {
        self.state.send_replace(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_is_told_when_hearing_begins_or_never_will() {
        for (act, expected) in [
            (Hearing::give_up as fn(&Hearing), false),
            (|hearing: &Hearing| assert!(hearing.begin()), true),
        ] {
            let hearing = Hearing::default();
            let (begun, ()) = tokio::join!(hearing.begun(), async { act(&hearing) });
            assert_eq!(begun, expected);
            assert_eq!(hearing.begun().await, expected, "and who asks later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_refused_lately_does_not_wait_for_long() {
        let hearing = Hearing::default();
        hearing.refused();
        hearing.end();
        let waited = tokio::time::timeout(DOUBT * 2, hearing.begun()).await;
        assert_eq!(waited, Ok(false));
        let (begun, _) = tokio::join!(hearing.begun(), async { hearing.begin() });
        assert!(begun, "in time");
        hearing.end();
        let waited = tokio::time::timeout(DOUBT * 2, hearing.begun()).await;
        assert!(waited.is_err(), "it was open since");
    }

    #[test]
    fn a_stretch_goes_on_until_it_ends_and_is_never_had_again() {
        let hearing = Hearing::default();
        assert_eq!(hearing.stretch(), None);
        assert!(hearing.begin());
        let first = hearing.stretch();
        assert!(first.is_some() && !hearing.begin() && hearing.stretch() == first);
        hearing.end();
        assert_eq!(hearing.stretch(), None);
        hearing.give_up();
        assert_eq!(hearing.stretch(), None);
        assert!(hearing.begin());
        assert_ne!(hearing.stretch(), first);
    }

    #[test]
    fn only_what_was_given_up_is_open_again_when_it_is_tried_again() {
        let hearing = Hearing::default();
        hearing.give_up();
        hearing.try_again();
        assert_eq!(*hearing.state.borrow(), State::NotNow);
        assert!(hearing.begin());
        let lasting = hearing.stretch();
        hearing.try_again();
        assert_eq!(hearing.stretch(), lasting);
    }
}
