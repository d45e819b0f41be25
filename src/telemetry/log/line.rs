//! One event as one line of JSON, or of text for people.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use super::escape;
use super::stamp::TimeStamps;
use crate::config::LogFormat;
use crate::telemetry::chain::chain;
use crate::telemetry::record_fields::{CachedText, RecordFields};
use crate::telemetry::redact::{MASK, cut, is_harmless, is_secret_name, redact};
use crate::telemetry::request_tag;

/// A value is cut here; whole bodies have no place in a log.
pub(super) const MAX_VALUE_BYTES: usize = 4096;
/// A line that grew beyond this gives its buffer back.
const KEPT_BYTES: usize = 16 * 1024;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::telemetry) enum LineFormat {
    /// One JSON object each.
    Json,
    /// Text for people.
    Text,
    /// The same with colours, for a terminal.
    Coloured,
}

impl LineFormat {
    /// What `format` means where the output is a terminal that shows colours, or not.
    pub(in crate::telemetry) fn new(format: LogFormat, colours: bool) -> Self {
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Text if colours => Self::Coloured,
            LogFormat::Text => Self::Text,
        }
    }
}

/// A buffer for lines that keeps what successive lines share.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct LineBuffer {
    text: String,
    scratch: String,
    written: TimeStamps,
    told: TimeStamps,
}

impl LineBuffer {
    /// Replaces the content by `event`, with a line feed.
    pub(in crate::telemetry) fn write(
        &mut self,
        look: LineFormat,
        now: Duration,
        event: &Event<'_>,
    ) {
        let about = event.metadata();
        self.render(look, now, *about.level(), about.target(), |fields| {
            event.record(fields);
            if let Some(tag) = request_tag::current() {
                RecordFields::word(fields, "request_id", tag.as_str());
            }
        });
    }

    /// Replaces the content by a line with these fields, and a line feed.
    pub(in crate::telemetry) fn render(
        &mut self,
        look: LineFormat,
        now: Duration,
        level: Level,
        target: &str,
        fields: impl FnOnce(&mut FieldWriter<'_>),
    ) {
        self.text.clear();
        self.text.shrink_to(KEPT_BYTES);
        let (word, text) = (level_word(level), &mut self.text);
        match look {
            LineFormat::Json => {
                text.push_str(r#"{"timestamp":""#);
                self.written.put(text, now);
                push_all(
                    text,
                    &["\",\"level\":\"", word, "\",\"target\":\"", target, "\""],
                );
            }
            LineFormat::Text => {
                self.written.put(text, now);
                // Writing to a String cannot fail.
                let _ = write!(text, " {word:<5} {target}:");
            }
            LineFormat::Coloured => {
                text.push_str(DIM);
                self.written.put(text, now);
                let colour = colour(level);
                let _ = write!(
                    text,
                    "{PLAIN} {colour}{word:<5}{PLAIN} {DIM}{target}:{PLAIN}"
                );
            }
        }
        fields(&mut FieldWriter {
            look,
            text: &mut self.text,
            scratch: &mut self.scratch,
            stamp: &mut self.told,
        });
        self.text.push_str(if look == LineFormat::Json {
            "}\n"
        } else {
            "\n"
        });
    }

    pub(in crate::telemetry) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn push_all(text: &mut String, parts: &[&str]) {
    for part in parts {
        text.push_str(part);
    }
}

/// Appends a number. Formatting costs five times as much.
fn push_number(into: &mut String, value: u64) {
    into.push_str(itoa::Buffer::new().format(value));
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARN",
        Level::INFO => "INFO",
        Level::DEBUG => "DEBUG",
        Level::TRACE => "TRACE",
    }
}

/// Ends what the other sequences began.
const PLAIN: &str = "\u{1b}[0m";
const DIM: &str = "\u{1b}[2m";

/// The sequence that begins the colour of a level.
fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\u{1b}[31m",
        Level::WARN => "\u{1b}[33m",
        Level::INFO => "\u{1b}[32m",
        Level::DEBUG => "\u{1b}[34m",
        Level::TRACE => "\u{1b}[35m",
    }
}

/// Writes the fields of an event or a record.
pub(in crate::telemetry) struct FieldWriter<'a> {
    look: LineFormat,
    text: &'a mut String,
    scratch: &'a mut String,
    stamp: &'a mut TimeStamps,
}

impl FieldWriter<'_> {
    fn name(&mut self, name: &str) {
        match self.look {
            LineFormat::Json => {
                self.text.push_str(",\"");
                self.text.push_str(name);
                self.text.push_str("\":");
            }
            LineFormat::Text | LineFormat::Coloured => {
                self.text.push(' ');
                if name != "message" {
                    self.text.push_str(name);
                    self.text.push('=');
                }
            }
        }
    }

    fn plain(&mut self, name: &str, value: impl std::fmt::Display) {
        self.name(name);
        let _ = write!(self.text, "{value}");
    }

    /// What needs neither masking nor escaping.
    fn quoted(&mut self, name: &str, put: impl FnOnce(&mut String, &mut TimeStamps)) {
        self.name(name);
        let json = self.look == LineFormat::Json;
        if json {
            self.text.push('"');
        }
        put(self.text, self.stamp);
        if json {
            self.text.push('"');
        }
    }

    fn string(&mut self, name: &str, value: &str) {
        if is_harmless(value) && value.len() <= MAX_VALUE_BYTES && !is_secret_name(name) {
            return self.quoted(name, |text, _| text.push_str(value));
        }
        let (look, secret) = (self.look, is_secret_name(name));
        self.quoted(name, |text, _| {
            if secret {
                text.push_str(MASK);
            } else {
                put_fit(text, look, name, value);
            }
        });
    }
}

/// Appends what others chose: cut, masked where it looks like a secret, escaped. The message is a sentence, without marks.
fn put_fit(into: &mut String, look: LineFormat, name: &str, value: &str) {
    let safe = redact(cut(value, MAX_VALUE_BYTES));
    match look {
        LineFormat::Json => escape::json(into, &safe),
        _ if name == "message" => escape::terminal(into, &safe),
        LineFormat::Text | LineFormat::Coloured => escape::value(into, &safe),
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.string(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut scratch = std::mem::take(self.scratch);
        scratch.clear();
        let _ = write!(scratch, "{value:?}");
        self.string(field.name(), &scratch);
        scratch.shrink_to(KEPT_BYTES);
        *self.scratch = scratch;
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.string(field.name(), &chain(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        // `muted=0` is noise in the text formats; JSON keeps the field.
        if value == 0 && self.look != LineFormat::Json && field.name() == "muted" {
            return;
        }
        self.plain(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.plain(field.name(), value);
        } else {
            self.record_debug(field, &value);
        }
    }
}

impl RecordFields for FieldWriter<'_> {
    fn word(&mut self, name: &'static str, value: &str) {
        self.quoted(name, |text, _| text.push_str(value));
    }

    fn text(&mut self, name: &'static str, value: &str) {
        let look = self.look;
        self.quoted(name, |text, _| {
            if is_harmless(value) && value.len() <= MAX_VALUE_BYTES {
                text.push_str(value);
            } else {
                put_fit(text, look, name, value);
            }
        });
    }

    fn cached(&mut self, name: &'static str, value: &CachedText) {
        let look = self.look;
        let fit = value.fit(|text| {
            let mut fit = String::new();
            put_fit(&mut fit, look, name, text);
            fit
        });
        self.quoted(name, |text, _| text.push_str(fit));
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        push_number(self.text, value);
    }

    fn address(&mut self, name: &'static str, value: IpAddr) {
        self.quoted(name, |text, _| match value {
            IpAddr::V4(address) => {
                let [first, rest @ ..] = address.octets();
                push_number(text, first.into());
                for octet in rest {
                    text.push('.');
                    push_number(text, octet.into());
                }
            }
            IpAddr::V6(address) => {
                let _ = write!(text, "{address}");
            }
        });
    }

    fn time(&mut self, name: &'static str, at: Duration) {
        self.quoted(name, |text, stamp| stamp.put(text, at));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    /// Collects lines instead of writing them.
    struct Collect(LineFormat, Arc<Mutex<String>>);

    impl<S: tracing::Subscriber> Layer<S> for Collect {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let mut line = LineBuffer::default();
            line.write(self.0, Duration::from_millis(1_795_251_600_123), event);
            self.1.lock().unwrap().push_str(&line.text);
        }
    }

    fn collect(look: LineFormat, work: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let layer = Collect(look, Arc::clone(&lines));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn a_json_line_is_one_object_with_its_fields_on_top() {
        let line = collect(LineFormat::Json, || {
            tracing::warn!(upstream = "files", tries = 3, ok = false, "gone \"away\"\n");
        });
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(value["timestamp"], "2026-11-21T09:00:00.123Z");
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["message"], "gone \"away\"\n");
        assert_eq!(value["upstream"], "files");
        assert_eq!(value["tries"], 3);
        assert_eq!(value["ok"], false);
    }

    #[test]
    fn an_error_is_logged_with_its_sources() {
        #[derive(Debug, thiserror::Error)]
        #[error("no keys")]
        struct NoKeys(#[source] std::io::Error);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for format in [LineFormat::Json, LineFormat::Text] {
            let line = collect(format, || {
                let error: &(dyn std::error::Error + 'static) = &NoKeys(refused.kind().into());
                tracing::warn!(error, "failed");
            });
            assert!(line.contains(&format!("no keys: {refused}")), "{line}");
        }
    }

    #[test]
    fn a_text_line_cannot_be_broken_by_what_it_says() {
        let line = collect(LineFormat::Text, || {
            tracing::info!(name = "a\n2026 ERROR forged\u{1b}[2J", "hello");
        });
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains('\u{1b}'));
        assert!(line.starts_with("2026-11-21T09:00:00.123Z INFO "));
    }

    #[test]
    fn no_part_of_a_value_can_be_taken_for_another_field() {
        let shown = |name: &str| {
            let line = collect(LineFormat::Text, || {
                tracing::info!(name, ok = true, "a=b c");
            });
            let (_, shown) = line.split_once("INFO  ").unwrap();
            let (_, shown) = shown.split_once(": ").unwrap();
            shown.to_owned()
        };
        for (name, value) in [
            ("read", "read"),
            (r"a\b", r"a\b"),
            ("x ok=false", r#""x ok=false""#),
            ("x\u{a0}ok", "\"x\u{a0}ok\""),
            ("a=b", r#""a=b""#),
            (r#"x\" ok=false"#, r#""x\\\" ok=false""#),
            ("a\nb", r#""a\nb""#),
            // Not `\u{1b}`, which a parser of logfmt refuses.
            ("a \u{1b}[2J", r#""a \u001b[2J""#),
        ] {
            assert_eq!(shown(name), format!("a=b c name={value} ok=true\n"));
        }
    }

    #[test]
    fn what_others_chose_does_not_change_the_order_in_which_a_line_is_shown() {
        let name = "a\u{202e}b\u{2066}c\u{2028}d\u{200f}é";
        for look in [LineFormat::Json, LineFormat::Text, LineFormat::Coloured] {
            let line = collect(look, || tracing::info!(name, "hello"));
            let hidden = |c| "\u{202e}\u{2066}\u{2028}\u{200f}".contains(c);
            assert!(!line.contains(hidden), "{line:?}");
            assert!(line.contains("202e") && line.contains('é'), "{line:?}");
        }
        let line = collect(LineFormat::Json, || tracing::info!(name, "hello"));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["name"], name);
    }

    #[test]
    fn only_a_line_for_a_terminal_has_colours() {
        let plain = |look| collect(look, || tracing::warn!(name = "a\u{1b}[2Jb", "hello"));
        for look in [LineFormat::Json, LineFormat::Text] {
            assert!(!plain(look).contains('\u{1b}'), "{look:?}");
        }
        let coloured = plain(LineFormat::Coloured);
        assert!(coloured.contains("\u{1b}[33mWARN \u{1b}[0m"), "{coloured}");
        assert!(!coloured.contains("\u{1b}[2J"), "{coloured}");
        assert_eq!(LineFormat::new(LogFormat::Json, true), LineFormat::Json);
        assert_eq!(LineFormat::new(LogFormat::Text, false), LineFormat::Text);
        assert_eq!(LineFormat::new(LogFormat::Text, true), LineFormat::Coloured);
    }

    #[test]
    fn secrets_are_masked_in_fields_and_messages() {
        let token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln";
        for look in [LineFormat::Json, LineFormat::Text] {
            let line = collect(look, || {
                let shown = format!("Authorization: Bearer {token}");
                tracing::info!(password = "hunter2", header = %shown, debug = ?Some(token), "token={token}");
            });
            assert!(!line.contains("hunter2") && !line.contains("eyJ"), "{line}");
        }
    }

    #[test]
    fn long_values_are_cut() {
        let line = collect(LineFormat::Json, || {
            tracing::info!(body = "é".repeat(10_000), "x");
        });
        assert!(line.len() < MAX_VALUE_BYTES + 200);
        serde_json::from_str::<serde_json::Value>(&line).unwrap();
    }
}
