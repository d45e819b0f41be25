//! `Fence`: whether this replica may write for its sessions, by its own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::boot_time;

/// Open while this replica owns its sessions for certain. Clones share one state. The default fence is always open: a
/// single process is the only owner.
#[derive(Debug, Clone, Default)]
pub struct Fence(Option<Arc<FenceState>>);

#[derive(Debug, Default)]
struct FenceState {
    /// Milliseconds on `CLOCK_BOOTTIME`, which counts the time in which the machine was suspended.
    until: AtomicU64,
    opened: Notify,
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

    /// Opens the fence up to a time on `CLOCK_BOOTTIME`; zero closes it.
    pub fn open_until(&self, until: Duration) {
        if let Some(state) = &self.0 {
            let millis = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
            state.until.store(millis, Ordering::Release);
            state.opened.notify_waiters();
        }
    }

    /// How long it stays open if it is not moved; zero where it is closed, and where there is one process.
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
        while let Some(state) = &self.0 {
            let opened = state.opened.notified();
            if self.is_open() {
                return;
            }
            opened.await;
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
}
