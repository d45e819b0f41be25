//! `NoticeFeed`: whether notices of changes arrive from one source, and waiting until they do. Spec: SPEC M-75, M-85.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long to wait for a source that had no notices when last tried.
const DOUBT: Duration = Duration::from_millis(500);

/// A number for an epoch in which no notice can be missed.
pub(crate) fn next_epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// State of a source of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum FeedState {
    /// No notices for now.
    #[default]
    NotNow,
    /// No notices until [`NoticeFeed::try_again`].
    Never,
    /// Every notice, since this epoch began.
    Since(u64),
}

/// The notice feed of one source.
#[derive(Debug, Default)]
pub(crate) struct NoticeFeed {
    state: watch::Sender<FeedState>,
    /// Whether the source refused when last tried.
    was_refused: AtomicBool,
}

impl NoticeFeed {
    /// Notes that no notice can be missed from now on; `true` when that is new. A running epoch goes on.
    pub(crate) fn begin(&self) -> bool {
        self.was_refused.store(false, Ordering::Relaxed);
        self.state.send_if_modified(|state| {
            let is_new = !matches!(state, FeedState::Since(_));
            if is_new {
                *state = FeedState::Since(next_epoch());
            }
            is_new
        })
    }

    /// Notes that notices may be missed from now on, until `begin`.
    pub(crate) fn end(&self) {
        self.set(FeedState::NotNow);
    }

    /// Notes that the source has no notices.
    pub(crate) fn give_up(&self) {
        self.set(FeedState::Never);
    }

    /// Notes that the source refuses. When tried again, the wait for it is shorter.
    pub(crate) fn refused(&self) {
        self.was_refused.store(true, Ordering::Relaxed);
        self.give_up();
    }

    /// Notes that a source without notices is tried again, with an open outcome.
    pub(crate) fn try_again(&self) {
        self.state.send_if_modified(|state| {
            let had_none = *state == FeedState::Never;
            if had_none {
                *state = FeedState::NotNow;
            }
            had_none
        });
    }

    /// See [`crate::call::UpstreamLink::notice_feed`].
    pub(crate) fn epoch(&self) -> Option<u64> {
        match *self.state.borrow() {
            FeedState::Since(epoch) => Some(epoch),
            FeedState::NotNow | FeedState::Never => None,
        }
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`].
    ///
    /// # Cancel safety
    /// Nothing is taken.
    pub(crate) async fn begun(&self) -> bool {
        let mut states = self.state.subscribe();
        let begun = async {
            let decided = states.wait_for(|state| *state != FeedState::NotNow).await;
            decided.is_ok_and(|state| matches!(*state, FeedState::Since(_)))
        };
        if self.was_refused.load(Ordering::Relaxed) {
            return tokio::time::timeout(DOUBT, begun).await.unwrap_or(false);
        }
        begun.await
    }

    fn set(&self, state: FeedState) {
        self.state.send_replace(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_is_told_when_hearing_begins_or_never_will() {
        for (act, expected) in [
            (NoticeFeed::give_up as fn(&NoticeFeed), false),
            (
                |notice_feed: &NoticeFeed| assert!(notice_feed.begin()),
                true,
            ),
        ] {
            let notice_feed = NoticeFeed::default();
            let (begun, ()) = tokio::join!(notice_feed.begun(), async { act(&notice_feed) });
            assert_eq!(begun, expected);
            assert_eq!(notice_feed.begun().await, expected, "and who asks later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_refused_lately_does_not_wait_for_long() {
        let notice_feed = NoticeFeed::default();
        notice_feed.refused();
        notice_feed.end();
        let waited = tokio::time::timeout(DOUBT * 2, notice_feed.begun()).await;
        assert_eq!(waited, Ok(false));
        let (begun, _) = tokio::join!(notice_feed.begun(), async { notice_feed.begin() });
        assert!(begun, "in time");
        notice_feed.end();
        let waited = tokio::time::timeout(DOUBT * 2, notice_feed.begun()).await;
        assert!(waited.is_err(), "it was open since");
    }

    #[test]
    fn a_stretch_goes_on_until_it_ends_and_is_never_had_again() {
        let notice_feed = NoticeFeed::default();
        assert_eq!(notice_feed.epoch(), None);
        assert!(notice_feed.begin());
        let first = notice_feed.epoch();
        assert!(first.is_some() && !notice_feed.begin() && notice_feed.epoch() == first);
        notice_feed.end();
        assert_eq!(notice_feed.epoch(), None);
        notice_feed.give_up();
        assert_eq!(notice_feed.epoch(), None);
        assert!(notice_feed.begin());
        assert_ne!(notice_feed.epoch(), first);
    }

    #[test]
    fn only_what_was_given_up_is_open_again_when_it_is_tried_again() {
        let notice_feed = NoticeFeed::default();
        notice_feed.give_up();
        notice_feed.try_again();
        assert_eq!(*notice_feed.state.borrow(), FeedState::NotNow);
        assert!(notice_feed.begin());
        let task_progress = notice_feed.epoch();
        notice_feed.try_again();
        assert_eq!(notice_feed.epoch(), task_progress);
    }
}
