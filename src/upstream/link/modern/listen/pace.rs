//! How long to wait before a stream of change notices is opened again.

use std::time::Duration;

/// The first wait, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_mins(1);
/// Before a stream that ended properly is opened again.
const GRACEFUL: Duration = Duration::from_secs(1);
/// A stream that lasted as long was no failure.
const LASTING: Duration = Duration::from_secs(5);

/// The wait after the next failure: twice as long each time that a stream was refused, or broke off at
/// once. Whoever listens is told after each that all may have changed, and looks at it again.
#[derive(Debug)]
pub(super) struct ListenBackoff(Duration);

impl Default for ListenBackoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl ListenBackoff {
    /// No stream could be opened.
    pub(super) fn refused(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }

    /// A stream broke off that was open for so long.
    pub(super) fn broke(&mut self, lasted: Duration) -> Duration {
        if lasted >= LASTING {
            self.0 = FIRST;
        }
        self.refused()
    }

    /// A stream ended properly.
    pub(super) fn ended(&mut self) -> Duration {
        self.0 = FIRST;
        GRACEFUL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Spec: BRIDGING §3.4.
    #[test]
    fn a_stream_that_breaks_at_once_is_opened_ever_less_often() {
        let mut pace = ListenBackoff::default();
        let waits: Vec<_> = (0..10).map(|_| pace.broke(Duration::ZERO)).collect();
        assert_eq!(waits.first(), Some(&FIRST));
        assert!(waits.is_sorted(), "{waits:?}");
        assert_eq!(waits.last(), Some(&LONGEST));
        assert_eq!(pace.refused(), LONGEST);
        assert_eq!(pace.broke(LASTING), FIRST, "it has recovered");
        assert_eq!(pace.ended(), GRACEFUL);
        assert_eq!(pace.refused(), FIRST, "it is there");
    }
}
