//! `RetryPause`: the wait between attempts to reach the shared store.

use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(2);

/// Exponential back-off with jitter, so that replicas do not return to the store together.
#[derive(Debug)]
pub struct RetryPause(Duration);

impl Default for RetryPause {
    /// Nothing has failed yet.
    fn default() -> Self {
        Self(FIRST)
    }
}

impl RetryPause {
    /// Begins with the first wait again: an attempt succeeded.
    pub fn reset(&mut self) {
        self.0 = FIRST;
    }

    /// The next wait: half of the present length up to all of it. The length doubles.
    pub fn lengthen(&mut self) -> Duration {
        let length = self.0;
        self.0 = (length * 2).min(LONGEST);
        length.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_again() {
        let mut pause = RetryPause::default();
        for length in [100, 200, 400, 800, 1600, 2000, 2000] {
            let length = Duration::from_millis(length);
            let next = pause.lengthen();
            assert!(next >= length / 2 && next <= length, "{next:?}");
        }
        pause.reset();
        assert!(pause.lengthen() <= FIRST);
    }
}
