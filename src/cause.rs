//! Why something fails: the text of an error with its sources, and the last cause of a part that is watched.

mod connection;

use std::borrow::Cow;
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::connection::{ConnectionFault, DESCRIPTORS_WANTED, lacks_descriptors};
use crate::clock::{Clock, SystemClock};
use crate::lock::lock;
pub use crate::telemetry::chain::chain;
use crate::telemetry::redact::shown;

/// The longest text that is kept, in bytes.
const MAX_BYTES: usize = 1024;

/// One cause, fit to be shown to operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorCause {
    /// What is wrong: masked, one line, 1 KiB at most. It may name addresses: it is not for callers.
    pub text: String,
    /// What an operator can do.
    pub remedy: Option<Cow<'static, str>>,
    /// When it was last seen, since the Unix epoch.
    pub at: Duration,
}

/// The last cause of a part that fails; empty while the part does well.
#[derive(Debug, Default)]
pub struct LastCause {
    /// Whether `cause` is `Some`, read without the lock on every success.
    is_set: AtomicBool,
    cause: Mutex<Option<ErrorCause>>,
}

impl LastCause {
    /// The part failed with `error`.
    pub fn set(&self, error: &dyn Error, remedy: Option<Cow<'static, str>>) {
        self.set_text(&chain(error), remedy);
    }

    /// The part failed with what `text` says.
    pub fn set_text(&self, text: &str, remedy: Option<Cow<'static, str>>) {
        let text = shown(text, MAX_BYTES).replace(char::is_control, " ");
        let at = SystemClock.now();
        let mut cause = lock(&self.cause);
        *cause = Some(ErrorCause { text, remedy, at });
        self.is_set.store(true, Ordering::Release);
    }

    /// The part did well.
    pub fn clear(&self) {
        if self.is_set.load(Ordering::Acquire) {
            let mut cause = lock(&self.cause);
            *cause = None;
            self.is_set.store(false, Ordering::Release);
        }
    }

    /// The last cause, unless the part did well since.
    #[must_use]
    pub fn snapshot(&self) -> Option<ErrorCause> {
        if self.is_set.load(Ordering::Acquire) {
            lock(&self.cause).clone()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_lasts_until_a_success() {
        let last = LastCause::default();
        assert_eq!(last.snapshot(), None);
        last.set(&std::fmt::Error, Some("restart it".into()));
        let cause = last.snapshot().expect("a cause");
        assert_eq!(cause.text, std::fmt::Error.to_string());
        assert_eq!(cause.remedy.as_deref(), Some("restart it"));
        last.clear();
        assert_eq!(last.snapshot(), None);
    }

    #[test]
    fn a_cause_is_one_masked_line() {
        let last = LastCause::default();
        last.set_text("password=hunter22\nand \u{1b}[2J", None);
        let text = last.snapshot().expect("a cause").text;
        assert_eq!(text, "password=[redacted] and  [2J");
        last.set_text(&"é".repeat(MAX_BYTES), None);
        assert_eq!(last.snapshot().expect("a cause").text.len(), MAX_BYTES);
    }
}
