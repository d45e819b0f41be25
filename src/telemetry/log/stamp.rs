//! Points in time as a log writes them.

use std::fmt::Write as _;
use std::time::Duration;

/// Points in time as text; the second is worked out once.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct TimeStamps {
    second: Option<u64>,
    /// `2026-11-21T09:00:00`
    text: String,
}

impl TimeStamps {
    /// Appends the time since the Unix epoch as RFC 3339, in UTC, to the millisecond.
    pub(in crate::telemetry) fn put(&mut self, into: &mut String, at: Duration) {
        let second = at.as_secs();
        if self.second != Some(second) {
            self.second = Some(second);
            self.text.clear();
            let at = i64::try_from(second)
                .ok()
                .and_then(|s| jiff::Timestamp::from_second(s).ok());
            // `2026-11-21T09:00:00Z` without its last letter; the fraction comes in between.
            let _ = write!(self.text, "{}", at.unwrap_or_default());
            self.text.pop();
        }
        into.push_str(&self.text);
        let millis = at.subsec_millis();
        into.push_str(match millis {
            0..10 => ".00",
            10..100 => ".0",
            _ => ".",
        });
        into.push_str(itoa::Buffer::new().format(millis));
        into.push('Z');
    }
}
