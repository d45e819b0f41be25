//! Serialises attempts. Callers that waited while an attempt failed get its error instead of retrying: otherwise the
//! last of N callers of a hung upstream would wait for N timeouts. Spec: DESIGN §6, "Deadlines per upstream".

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// Attempts at one operation; `S` is the shared outcome of a failed one.
#[derive(Debug)]
pub struct SharedFailure<S> {
    /// The number of outcomes shared so far.
    shared: AtomicU64,
    last: Mutex<Option<S>>,
}

/// The permit for one attempt; when dropped, the next caller gets the permit.
#[derive(Debug)]
pub struct AttemptPermit<'a, S> {
    shared: &'a AtomicU64,
    last: MutexGuard<'a, Option<S>>,
    /// Whether an attempt failed while this caller waited.
    is_spared: bool,
}

impl<S> Default for SharedFailure<S> {
    fn default() -> Self {
        Self {
            shared: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }
}

impl<S: Clone> SharedFailure<S> {
    /// Waits for the permit to make an attempt.
    ///
    /// # Cancel safety
    /// A permit that was just granted goes to the next waiter.
    pub async fn attempt(&self) -> AttemptPermit<'_, S> {
        self.attempt_since(self.shared()).await
    }

    /// The number of failed attempts so far.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared.load(Ordering::Acquire)
    }

    /// [`attempt`](Self::attempt) for a caller that has waited for something else since `before`.
    ///
    /// # Cancel safety
    /// As for [`attempt`](Self::attempt).
    pub async fn attempt_since(&self, before: u64) -> AttemptPermit<'_, S> {
        let last = self.last.lock().await;
        AttemptPermit {
            shared: &self.shared,
            last,
            is_spared: self.shared() != before,
        }
    }
}

impl<S: Clone> AttemptPermit<'_, S> {
    /// The outcome of an attempt that failed while this caller waited.
    #[must_use]
    pub fn spared(&self) -> Option<S> {
        self.last.clone().filter(|_| self.is_spared)
    }

    /// Shares the outcome of this attempt with the callers that wait now.
    pub fn share(mut self, outcome: S) {
        *self.last = Some(outcome);
        self.shared.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_while_an_attempt_fails_is_spared_the_next_and_who_comes_later_is_not() {
        let attempts = SharedFailure::default();
        let first = attempts.attempt().await;
        assert_eq!(first.spared(), None);
        let (waited, also_waited, ()) = tokio::join!(
            async { attempts.attempt().await.spared() },
            async { attempts.attempt().await.spared() },
            async { first.share("failed") },
        );
        assert_eq!([waited, also_waited], [Some("failed"); 2]);
        assert_eq!(attempts.attempt().await.spared(), None);
    }

    #[tokio::test]
    async fn an_attempt_that_is_given_up_spares_nobody() {
        let attempts = SharedFailure::<()>::default();
        let first = attempts.attempt().await;
        let (waited, ()) = tokio::join!(async { attempts.attempt().await.spared() }, async {
            drop(first);
        });
        assert_eq!(waited, None);
    }
}
