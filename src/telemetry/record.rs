//! Lines that are written for every request: rendered straight into the log. A general event costs more than
//! twice as much, for asking what is known here: which values are our own (`docs/adr/0032`).

use std::cell::RefCell;
use std::sync::OnceLock;

use opentelemetry_sdk::logs::SdkLogger;
use tracing::Level;

use super::log::{LineBuffer, LineFormat, LineKind, LogWriter, export};
use super::names::AUDIT_TARGET;
pub use super::record_fields::{CachedText, RecordEvent, RecordFields};
use crate::clock::{Clock, SystemClock};

static LOG: OnceLock<RecordLog> = OnceLock::new();

thread_local! {
    static LINE: RefCell<LineBuffer> = RefCell::default();
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
    use std::time::Duration;

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
    use std::net::IpAddr;
    use std::time::Duration;

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
    fn fields_are_read_only_for_a_listener() {
        assert!(!is_wanted());
        let _caught = RecordCapture::begin();
        assert!(is_wanted());
    }
}
