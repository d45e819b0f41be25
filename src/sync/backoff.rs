//! `Backoff`: the pause before a retry, twice as long after each failure.

use std::ops::Range;
use std::time::Duration;

/// Exponential back-off between a first and a longest pause.
#[derive(Debug, Clone)]
pub struct Backoff {
    pause: Duration,
    first: Duration,
    longest: Duration,
    /// Part of each pause that is waited for, at random.
    jitter: Option<Range<f64>>,
}

impl Backoff {
    /// Nothing has failed yet.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            pause: first,
            first,
            longest,
            jitter: None,
        }
    }

    /// The same with pauses multiplied by a random part in `jitter`, so that many do not retry together.
    #[must_use]
    pub fn with_jitter(first: Duration, longest: Duration, jitter: Range<f64>) -> Self {
        Self {
            jitter: Some(jitter),
            ..Self::new(first, longest)
        }
    }

    /// The pause after a failure. The next one is twice as long.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(self.longest);
        match &self.jitter {
            Some(part) => pause.mul_f64(rand::random_range(part.clone())),
            None => pause,
        }
    }

    /// The length of the next pause, before jitter.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.pause
    }

    /// Begins with the first pause again: an attempt succeeded.
    pub fn reset(&mut self) {
        self.pause = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(2);
    const LENGTHS: [u64; 7] = [100, 200, 400, 800, 1600, 2000, 2000];

    #[test]
    fn pauses_double_to_their_bound_and_begin_again() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let pauses = LENGTHS.map(|_| backoff.next_pause());
        assert_eq!(pauses, LENGTHS.map(Duration::from_millis));
        backoff.reset();
        assert_eq!(backoff.length(), FIRST);
        assert_eq!(backoff.next_pause(), FIRST);
    }

    #[test]
    fn jitter_takes_a_part_of_each_pause() {
        let mut backoff = Backoff::with_jitter(FIRST, LONGEST, 0.5..0.75);
        for length in LENGTHS.map(Duration::from_millis) {
            assert_eq!(backoff.length(), length);
            let pause = backoff.next_pause();
            assert!(pause >= length / 2 && pause <= length * 3 / 4, "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= FIRST * 3 / 4);
    }
}
