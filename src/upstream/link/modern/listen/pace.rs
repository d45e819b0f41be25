//! `ListenBackoff`: the pause before a stream of change notices is opened again.

use std::time::Duration;

use crate::sync::backoff::Backoff;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_mins(1);
/// Pause before a stream that ended properly is opened again, at least.
const GRACEFUL: Duration = Duration::from_secs(1);
/// A stream that lasted this long resets the backoff.
const LASTING: Duration = Duration::from_secs(5);

/// The pause after the next failure, doubled each time that a stream is refused or ends at once: after each broken
/// stream every list counts as changed, and clients fetch it again. Servers without state acknowledge nothing and end
/// the stream properly.
#[derive(Debug)]
pub(super) struct ListenBackoff(Backoff);

impl Default for ListenBackoff {
    fn default() -> Self {
        Self(Backoff::new(FIRST, LONGEST))
    }
}

impl ListenBackoff {
    /// The pause after a refused stream.
    pub(super) fn refused(&mut self) -> Duration {
        self.0.next_pause()
    }

    /// The pause after a stream that broke off after `lasted`.
    pub(super) fn broke(&mut self, lasted: Duration) -> Duration {
        if lasted >= LASTING {
            self.0.reset();
        }
        self.refused()
    }

    /// The pause after a stream that ended properly after `lasted`.
    pub(super) fn ended(&mut self, lasted: Duration) -> Duration {
        if lasted >= LASTING {
            self.0.reset();
            return GRACEFUL;
        }
        GRACEFUL.max(self.refused())
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
        assert_eq!(pace.ended(LASTING), GRACEFUL);
        assert_eq!(pace.refused(), FIRST, "it is there");
    }

    #[test]
    fn stream_ended_at_once_is_opened_ever_less_often() {
        let mut pace = ListenBackoff::default();
        let waits: Vec<_> = (0..10).map(|_| pace.ended(Duration::ZERO)).collect();
        assert_eq!(waits.first(), Some(&GRACEFUL));
        assert!(waits.is_sorted(), "{waits:?}");
        assert_eq!(waits.last(), Some(&LONGEST));
    }
}
