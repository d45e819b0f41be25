//! `BeatCounter`: numbers of heartbeats. A caller can wait for a heartbeat that begins after its question.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Numbers of the newest heartbeat, and of the newest answered one.
#[derive(Debug, Default)]
pub(super) struct BeatCounter {
    begun: AtomicU64,
    answered: watch::Sender<u64>,
}

impl BeatCounter {
    /// Begins a heartbeat; its number.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The heartbeat was answered.
    pub(super) fn answered(&self, number: u64) {
        self.answered
            .send_modify(|newest| *newest = number.max(*newest));
    }

    /// Resolves when a heartbeat is answered that begins after this call. One under way does not count: Redis may have
    /// read its list before.
    pub(super) fn next(&self) -> impl Future<Output = ()> + use<> {
        let begun = self.begun.load(Ordering::SeqCst);
        let mut answered = self.answered.subscribe();
        async move {
            drop(answered.wait_for(|newest| *newest > begun).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn heartbeat_under_way_is_not_the_next_one() {
        let beats = BeatCounter::default();
        let under_way = beats.begin();
        let mut next = Box::pin(beats.next());
        beats.answered(under_way);
        assert_eq!(next.as_mut().now_or_never(), None);
        beats.answered(beats.begin());
        assert_eq!(next.now_or_never(), Some(()));
    }
}
