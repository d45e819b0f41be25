//! Lines that are written for every request: rendered straight into the log. A general event costs
//! five times as much, most of it for asking what is known here: which values are our own.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry_sdk::logs::SdkLogger;
use tracing::Level;

use super::log::{LineBuffer, LineFormat, LineKind, LogWriter, export};
use super::names::AUDIT_TARGET;
use super::trace::{TraceId, put_hex};
use crate::clock::{Clock, SystemClock};

static LOG: OnceLock<RecordLog> = OnceLock::new();

thread_local! {
    static LINE: RefCell<LineBuffer> = RefCell::default();
}

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

    /// Where somebody is.
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

/// Where records go.
#[derive(Debug)]
pub(super) struct RecordLog {
    pub(super) look: LineFormat,
    pub(super) writer: LogWriter,
    /// The OTLP logger, if records are exported.
    pub(super) exporter: Option<SdkLogger>,
    /// Whether records below the level `WARN` are exported, too.
    pub(super) exports_all: bool,
}

/// Installs the destination of records. Only the first call in a process has an effect.
pub(super) fn install(log: RecordLog) {
    drop(LOG.set(log));
}

/// Whether anybody reads records.
#[must_use]
pub fn is_wanted() -> bool {
    #[cfg(test)]
    if capture::is_on() {
        return true;
    }
    LOG.get().is_some()
}

/// Writes one record, and exports it where logs are exported.
pub fn write(target: &'static str, level: Level, record: &dyn RecordEvent) {
    #[cfg(test)]
    if capture::take(target, level, record) {
        return;
    }
    let Some(log) = LOG.get() else {
        return;
    };
    LINE.with(|line| {
        if let Ok(mut line) = line.try_borrow_mut() {
            let now = SystemClock.now();
            line.render(log.look, now, level, target, |fields| {
                record.fields(fields);
            });
            let kind = if target == AUDIT_TARGET {
                LineKind::Audit
            } else {
                LineKind::Log
            };
            log.writer.put(kind, line.as_bytes());
        }
    });
    if let Some(exporter) = &log.exporter
        && (log.exports_all || level == Level::WARN)
    {
        export::record(exporter, target, level, record);
    }
}

/// Catches the records of a thread.
#[cfg(test)]
pub(crate) mod capture {
    use std::rc::Rc;

    use super::*;

    type Lines = Rc<RefCell<Vec<String>>>;

    thread_local! {
        static CAUGHT: RefCell<Option<Lines>> = const { RefCell::new(None) };
    }

    /// Catches while it lives.
    pub(crate) struct RecordCapture(Lines);

    impl RecordCapture {
        pub(crate) fn begin() -> Self {
            let lines = Lines::default();
            CAUGHT.set(Some(Rc::clone(&lines)));
            Self(lines)
        }

        /// Captured lines, parsed as JSON objects.
        pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
            let lines = self.0.borrow();
            let parse = |line: &String| serde_json::from_str(line).expect("a JSON line");
            lines.iter().map(parse).collect()
        }
    }

    impl Drop for RecordCapture {
        fn drop(&mut self) {
            CAUGHT.set(None);
        }
    }

    pub(super) fn is_on() -> bool {
        CAUGHT.with_borrow(Option::is_some)
    }

    pub(super) fn take(target: &'static str, level: Level, record: &dyn RecordEvent) -> bool {
        CAUGHT.with_borrow(|caught| {
            let Some(caught) = caught else {
                return false;
            };
            let mut line = LineBuffer::default();
            line.render(LineFormat::Json, Duration::ZERO, level, target, |fields| {
                record.fields(fields);
            });
            let line = String::from_utf8(line.as_bytes().to_vec()).expect("text");
            caught.borrow_mut().push(line);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::capture::RecordCapture;
    use super::*;

    struct All<'a>(&'a str);

    impl RecordEvent for All<'_> {
        fn fields(&self, to: &mut dyn RecordFields) {
            to.word("word", "tools/call");
            to.text("name", self.0);
            to.number("count", u64::MAX);
            to.hex("tag", 0xab, 8);
            to.time("at", Duration::from_millis(1_800_000_000_007));
            to.number("none", 0);
            to.address("client", IpAddr::from([192, 0, 2, 100]));
            to.address("other", "2001:db8::1".parse().expect("an address"));
            let cached = CachedText::new(self.0);
            for _ in 0..2 {
                to.cached("again", &cached);
            }
        }
    }

    #[test]
    fn a_record_is_one_object_with_its_fields_in_order() {
        let caught = RecordCapture::begin();
        write("audit", Level::WARN, &All("read"));
        let line = caught.lines().remove(0);
        assert_eq!(
            line,
            json!({
                "timestamp": "1970-01-01T00:00:00.000Z", "level": "WARN", "target": "audit",
                "word": "tools/call", "name": "read", "count": u64::MAX, "tag": "000000ab",
                "at": "2027-01-15T08:00:00.007Z", "none": 0, "client": "192.0.2.100",
                "other": "2001:db8::1", "again": "read",
            })
        );
    }

    #[test]
    fn what_others_chose_can_neither_break_the_line_nor_show_a_secret() {
        let caught = RecordCapture::begin();
        for text in [
            "a\"b\\c\nd\u{1b}é",
            "Bearer abcdef0123456789",
            "password=hunter22",
        ] {
            write("access", Level::INFO, &All(text));
        }
        let lines = caught.lines();
        assert_eq!(lines[0]["name"], "a\"b\\c\nd\u{1b}é");
        assert_eq!(lines[1]["name"], "Bearer [redacted]");
        assert_eq!(lines[2]["name"], "password=[redacted]");
        for line in lines {
            assert_eq!(line["again"], line["name"]);
        }
    }

    #[test]
    fn nobody_reads_until_somebody_listens() {
        assert!(!is_wanted());
        let _caught = RecordCapture::begin();
        assert!(is_wanted());
    }
}
