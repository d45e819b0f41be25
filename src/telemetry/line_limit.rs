//! `LineLimit`: one log line a minute for each kind of event, with the number of those left out.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// How often a line of the same kind is written again.
const REPEAT: Duration = Duration::from_mins(1);

/// Limits lines that callers or peers can cause as often as they like. Holds one entry for each kind.
#[derive(Debug)]
pub struct LineLimit<K = &'static str> {
    written: Mutex<HashMap<K, WrittenLines>>,
}

#[derive(Debug)]
struct WrittenLines {
    at: Instant,
    /// Events since then.
    muted: u64,
}

impl<K> Default for LineLimit<K> {
    fn default() -> Self {
        Self {
            written: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash> LineLimit<K> {
    /// `Some(muted)` if an event of this `kind` is to be logged, with the number of events suppressed before.
    /// `None` if a line of this `kind` was logged within the last minute.
    pub fn admit(&self, kind: K) -> Option<u64> {
        let now = Instant::now();
        let mut written = lock(&self.written);
        let Some(last) = written.get_mut(&kind) else {
            written.insert(kind, WrittenLines { at: now, muted: 0 });
            return Some(0);
        };
        if now.duration_since(last.at) < REPEAT {
            last.muted += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.muted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_minute_counts_those_left_out() {
        let limit = LineLimit::<&str>::default();
        assert_eq!(limit.admit("refused"), Some(0));
        assert_eq!(limit.admit("refused"), None);
        assert_eq!(limit.admit("timeout"), Some(0), "another kind");
        tokio::time::advance(REPEAT).await;
        assert_eq!(limit.admit("refused"), Some(1));
    }
}
