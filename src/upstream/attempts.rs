//! Attempts of which one is made at a time. Who waited while one came to nothing has what that came
//! to, instead of making the next: else the last of many callers of an upstream that hangs would wait
//! for as many attempts as there are callers. Spec: DESIGN §6, "Deadlines per upstream".

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// Attempts at the same thing; `S` is what is shared of one that came to nothing.
#[derive(Debug)]
pub(super) struct Attempts<S> {
    /// How many were shared.
    shared: AtomicU64,
    last: Mutex<Option<S>>,
}

/// The turn to make an attempt, which the next caller has when this is dropped.
#[derive(Debug)]
pub(super) struct Attempt<'a, S> {
    shared: &'a AtomicU64,
    last: MutexGuard<'a, Option<S>>,
    /// Whether one came to nothing while this turn was waited for.
    is_spared: bool,
}

impl<S> Default for Attempts<S> {
    fn default() -> Self {
        Self {
            shared: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }
}

impl<S: Clone> Attempts<S> {
    /// Waits until nobody else makes an attempt.
    ///
    /// # Cancel safety
    /// A turn that was just given goes on to the next who waits.
    pub(super) async fn turn(&self) -> Attempt<'_, S> {
        self.turn_since(self.shared()).await
    }

    /// How many attempts came to nothing up to now.
    pub(super) fn shared(&self) -> u64 {
        self.shared.load(Ordering::Acquire)
    }

    /// [`turn`](Self::turn) for who has waited for something else since `before`.
    ///
    /// # Cancel safety
    /// As for [`turn`](Self::turn).
    pub(super) async fn turn_since(&self, before: u64) -> Attempt<'_, S> {
        let last = self.last.lock().await;
        Attempt {
            shared: &self.shared,
            last,
            is_spared: self.shared() != before,
        }
    }
}

impl<S: Clone> Attempt<'_, S> {
    /// What an attempt came to that ended while this turn was waited for.
    pub(super) fn spared(&self) -> Option<S> {
        self.last.clone().filter(|_| self.is_spared)
    }

    /// Lets those who wait now have what this attempt came to.
    pub(super) fn share(mut self, outcome: S) {
        *self.last = Some(outcome);
        self.shared.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_while_an_attempt_fails_is_spared_the_next_and_who_comes_later_is_not() {
        let attempts = Attempts::default();
        let first = attempts.turn().await;
        assert_eq!(first.spared(), None);
        let (waited, also_waited, ()) = tokio::join!(
            async { attempts.turn().await.spared() },
            async { attempts.turn().await.spared() },
            async { first.share("failed") },
        );
        assert_eq!([waited, also_waited], [Some("failed"); 2]);
        assert_eq!(attempts.turn().await.spared(), None);
    }

    #[tokio::test]
    async fn an_attempt_that_is_given_up_spares_nobody() {
        let attempts = Attempts::<()>::default();
        let first = attempts.turn().await;
        let (waited, ()) = tokio::join!(async { attempts.turn().await.spared() }, async {
            drop(first);
        });
        assert_eq!(waited, None);
    }
}
