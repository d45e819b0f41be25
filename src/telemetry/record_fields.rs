//! What a record shows: `RecordEvent` names its fields, a `RecordFields` takes them.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::trace::{TraceId, put_hex};

/// Takes the fields of a record, in their order.
pub trait RecordFields {
    /// One of our own words, or a name from the configuration: without quotes, backslashes,
    /// control characters, and certainly no secret.
    fn word(&mut self, name: &'static str, value: &str);
    /// What others chose: masked where it looks like a secret, cut, escaped. The name is ours, and
    /// none whose value must not be shown.
    fn text(&mut self, name: &'static str, value: &str);
    /// A number.
    fn number(&mut self, name: &'static str, value: u64);
    /// A time since the Unix epoch.
    fn time(&mut self, name: &'static str, at: Duration);

    /// The same as [`RecordFields::text`], worked out once.
    fn cached(&mut self, name: &'static str, value: &CachedText) {
        self.text(name, value.as_str());
    }

    /// The trace that the record belongs to.
    fn trace(&mut self, id: &TraceId) {
        self.word("trace_id", id.as_str());
    }

    /// An IP address.
    fn address(&mut self, name: &'static str, value: IpAddr) {
        self.word(name, &value.to_string());
    }

    /// So many hexadecimal digits.
    fn hex(&mut self, name: &'static str, value: u64, digits: usize) {
        let mut text = [b'0'; 16];
        put_hex(&mut text, value.into());
        let shown = text.get(text.len().saturating_sub(digits)..);
        let shown = shown.and_then(|digits| std::str::from_utf8(digits).ok());
        self.word(name, shown.unwrap_or_default());
    }
}

/// An untrusted text shown in many lines, escaped once.
#[derive(Debug, Clone)]
pub struct CachedText {
    text: Arc<str>,
    /// As lines show it: all lines of a process have one format.
    fit: OnceLock<Box<str>>,
}

impl CachedText {
    /// Wraps `text`; escaping is deferred to the first line that shows the text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            fit: OnceLock::new(),
        }
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn fit(&self, make: impl FnOnce(&str) -> String) -> &str {
        self.fit.get_or_init(|| make(&self.text).into())
    }
}

/// An event with fields to log.
pub trait RecordEvent {
    /// Shows every field that applies.
    fn fields(&self, to: &mut dyn RecordFields);
}
