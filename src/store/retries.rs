//! `FailedWork`: work of a task that writes behind whose calls failed. A few pieces are tried again after a pause, and
//! all once one of them succeeds: other work goes on meanwhile.

use std::collections::VecDeque;

use tokio::time::{Instant, sleep_until};

use super::pause::store_backoff;
use crate::sync::backoff::Backoff;

/// Pieces of work that are tried again after a pause, until one succeeds.
const AT_ONCE: usize = 16;

/// Failed work, oldest first. The caller adds each piece once.
#[derive(Debug)]
pub(super) struct FailedWork<W> {
    work: VecDeque<W>,
    backoff: Backoff,
    /// When the next pieces are tried again; `None` without any.
    due: Option<Instant>,
}

impl<W> FailedWork<W> {
    pub(super) fn new() -> Self {
        Self {
            work: VecDeque::new(),
            backoff: store_backoff(),
            due: None,
        }
    }

    /// Adds work whose call failed.
    pub(super) fn add(&mut self, work: W) {
        self.work.push_back(work);
        if self.due.is_none() {
            self.due = Some(Instant::now() + self.backoff.next_pause());
        }
    }

    /// The pieces that are to be tried again now.
    pub(super) fn take_due(&mut self) -> Vec<W> {
        let now = Instant::now();
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let count = AT_ONCE.min(self.work.len());
        let taken = self.work.drain(..count).collect();
        self.due = (!self.work.is_empty()).then(|| now + self.backoff.next_pause());
        taken
    }

    /// A piece has succeeded that had failed before: all others may be tried again at once.
    pub(super) fn take_all(&mut self) -> VecDeque<W> {
        self.backoff.reset();
        self.due = None;
        std::mem::take(&mut self.work)
    }

    /// Drops the pieces that `is_wanted` does not want any more.
    pub(super) fn retain(&mut self, is_wanted: impl FnMut(&W) -> bool) {
        self.work.retain(is_wanted);
        if self.work.is_empty() {
            self.due = None;
        }
    }

    /// Waits until pieces are due; for ever without any.
    ///
    /// # Cancel safety
    /// Nothing changes.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_are_tried_again_until_one_succeeds() {
        let mut failed = FailedWork::new();
        for work in 0..20 {
            failed.add(work);
        }
        assert!(failed.take_due().is_empty(), "not yet");
        failed.due().await;
        let first = failed.take_due();
        assert_eq!(first, (0..16).collect::<Vec<_>>());
        for work in first {
            failed.add(work);
        }
        failed.due().await;
        assert_eq!(failed.take_due()[..5], [16, 17, 18, 19, 0]);
        assert_eq!(failed.take_all().len(), 4);
        assert!(failed.take_due().is_empty());
    }
}
