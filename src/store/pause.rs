//! The pauses between attempts to reach the shared store, and between many pieces of work for it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::sync::backoff::Backoff;

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(2);

/// Pauses with jitter, so that replicas do not return to the store together.
#[must_use]
pub fn store_backoff() -> Backoff {
    Backoff::with_jitter(FIRST, LONGEST, 0.5..1.0)
}

/// Spreads many pieces of work evenly over a time.
#[derive(Debug)]
pub(super) struct SpreadWork {
    next: Instant,
    pause: Duration,
}

impl SpreadWork {
    /// For `count` pieces from now on.
    pub(super) fn new(count: usize, time: Duration) -> Self {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        Self {
            next: Instant::now(),
            pause: time / count,
        }
    }

    /// Waits until the next piece is due. Due times count from the first one: a sleep takes a millisecond at least, so that
    /// sleeps of thousands of short pauses would take many times as long as the whole.
    pub(super) async fn pause(&mut self) {
        self.next += self.pause;
        sleep_until(self.next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_below_a_millisecond_add_up_to_the_time() {
        let (began, time) = (Instant::now(), Duration::from_secs(5));
        let mut spread = SpreadWork::new(20_000, time);
        for _ in 0..20_000 {
            spread.pause().await;
        }
        let took = began.elapsed();
        assert!(
            took >= time && took < time + Duration::from_millis(2),
            "{took:?}"
        );
    }

    #[test]
    fn pauses_are_at_least_half_as_long_as_their_bounds_allow() {
        let mut backoff = store_backoff();
        let first = backoff.next_pause();
        assert!(first >= FIRST / 2 && first <= FIRST, "{first:?}");
        let pauses = [(); 16].map(|()| backoff.next_pause());
        let last = pauses[15];
        assert!(last >= LONGEST / 2 && last <= LONGEST, "{last:?}");
        assert!(pauses[10..].iter().any(|pause| *pause != last), "no jitter");
    }
}
