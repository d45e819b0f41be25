//! The pauses between attempts to reach the shared store.

use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

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
