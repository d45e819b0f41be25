//! `ChildLines`: rate limit for log lines about the children of each upstream, so that many children that fail alike
//! make few lines.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;
use crate::telemetry::line_limit::LineLimit;

/// How long a text of one child keeps the same text of another one out of the log.
const REPEAT: Duration = Duration::from_mins(1);
/// Remembered texts; the oldest is evicted first.
const MAX_TEXTS: usize = 256;

/// Events of children that make one line a minute for each upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ChildEvent {
    /// A start, while the last one gave no sign of life.
    Start,
    /// An end that the gateway did not cause.
    End,
    /// A line of standard output that is no message.
    Stray,
}

/// Lines already logged, by upstream. Not evicted, as upstreams are few.
#[derive(Debug, Default)]
pub(super) struct ChildLines {
    told: LineLimit<(Arc<str>, ChildEvent)>,
    hasher: RandomState,
    texts: Mutex<VecDeque<EventText>>,
}

#[derive(Debug)]
struct EventText {
    digest: u64,
    pid: u32,
    at: Instant,
}

impl ChildLines {
    /// Admits an event to the log, with the number of suppressed events before it; `None` if suppressed.
    pub(super) fn admit(&self, upstream: &Arc<str>, event: ChildEvent) -> Option<u64> {
        self.told.admit((Arc::clone(upstream), event))
    }

    /// Whether another child of `upstream` wrote the same text within the last minute.
    pub(super) fn is_repeated(&self, upstream: &str, pid: u32, text: &str) -> bool {
        let digest = self.hasher.hash_one((upstream, text));
        let mut texts = lock(&self.texts);
        texts.retain(|text| text.at.elapsed() < REPEAT);
        if let Some(known) = texts.iter().find(|text| text.digest == digest) {
            return known.pid != pid;
        }
        if texts.len() >= MAX_TEXTS {
            texts.pop_front();
        }
        let at = Instant::now();
        texts.push_back(EventText { digest, pid, at });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_child_does_not_repeat_a_text() {
        let lines = ChildLines::default();
        assert!(!lines.is_repeated("a", 1, "boom"));
        assert!(!lines.is_repeated("a", 1, "boom"), "the same child");
        assert!(lines.is_repeated("a", 2, "boom"));
        assert!(!lines.is_repeated("b", 2, "boom"), "another upstream");
        assert!(!lines.is_repeated("a", 2, "bang"));
        tokio::time::advance(REPEAT).await;
        assert!(!lines.is_repeated("a", 2, "boom"));
    }

    #[test]
    fn the_number_of_texts_is_bounded() {
        let lines = ChildLines::default();
        for n in 0..2 * MAX_TEXTS {
            lines.is_repeated("a", 1, &n.to_string());
        }
        assert_eq!(lock(&lines.texts).len(), MAX_TEXTS);
    }
}
