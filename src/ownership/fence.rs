//! `Fence`: whether this replica may write for its sessions, by its own clock.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{boot_time, millis};

/// Open while this replica owns its sessions for certain. Clones share one state. The default fence is always open: a
/// single process is the only owner.
#[derive(Debug, Clone, Default)]
pub struct Fence(Option<Arc<FenceState>>);

#[derive(Debug, Default)]
struct FenceState {
    /// Milliseconds on `CLOCK_BOOTTIME`, which counts the time in which the machine was suspended.
    until: AtomicU64,
    /// Whether it was open when it was last moved.
    told: watch::Sender<bool>,
}

impl Fence {
    /// A fence that is closed until [`open_until`](Self::open_until).
    #[must_use]
    pub fn closed() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether no other replica may own the sessions yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let Some(state) = &self.0 else {
            return true;
        };
        boot_time() < Duration::from_millis(state.until.load(Ordering::Acquire))
    }

    /// Opens the fence up to a time on `CLOCK_BOOTTIME`; zero closes it. A fence that has closed by itself is to be closed
    /// as well, for the sake of [`until_closed`](Self::until_closed).
    pub fn open_until(&self, until: Duration) {
        if let Some(state) = &self.0 {
            state.until.store(millis(until), Ordering::Release);
            let is_open = self.is_open();
            let is_change = |told: &mut bool| std::mem::replace(told, is_open) != is_open;
            state.told.send_if_modified(is_change);
        }
    }

    /// How long the fence stays open unless it is moved; zero if it is closed, and without `[cluster]`.
    #[must_use]
    pub fn left(&self) -> Duration {
        let until = self
            .0
            .as_ref()
            .map_or(0, |state| state.until.load(Ordering::Acquire));
        Duration::from_millis(until).saturating_sub(boot_time())
    }

    /// Waits until the fence is open.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn opened(&self) {
        if let Some(state) = &self.0 {
            drop(state.told.subscribe().wait_for(|is_open| *is_open).await);
        }
    }

    /// Waits until the fence was closed, which may be a moment after its time was over: for what only has to end soon.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn until_closed(&self) {
        match &self.0 {
            Some(state) => drop(state.told.subscribe().wait_for(|is_open| !is_open).await),
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn fence_of_one_process_is_always_open() {
        let fence = Fence::default();
        fence.open_until(Duration::ZERO);
        assert!(fence.is_open());
        assert!(fence.opened().now_or_never().is_some());
    }

    #[test]
    fn fence_closes_by_itself() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        let shared = fence.clone();
        shared.open_until(boot_time() + Duration::from_mins(1));
        assert!(fence.is_open());
        shared.open_until(boot_time());
        assert!(!fence.is_open());
    }

    #[tokio::test]
    async fn waiting_ends_when_the_fence_opens() {
        let fence = Fence::closed();
        let open = async { fence.open_until(boot_time() + Duration::from_mins(1)) };
        tokio::join!(fence.opened(), open);
        assert!(fence.is_open());
    }

    #[tokio::test]
    async fn waiting_ends_when_the_fence_is_closed() {
        let fence = Fence::closed();
        fence.open_until(boot_time() + Duration::from_mins(1));
        assert!(fence.left() > Duration::from_secs(50));
        assert!(fence.until_closed().now_or_never().is_none());
        let close = async { fence.open_until(Duration::ZERO) };
        tokio::join!(fence.until_closed(), close);
        assert_eq!(fence.left(), Duration::ZERO);
        assert!(Fence::default().until_closed().now_or_never().is_none());
    }
}
