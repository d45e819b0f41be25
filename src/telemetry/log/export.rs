//! Events as OpenTelemetry log records, through the same redaction as the lines.

use std::time::Duration;

use opentelemetry::logs::{AnyValue, LogRecord, Logger, Severity};
use opentelemetry_sdk::logs::{SdkLogRecord, SdkLogger};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::TimeStamps;
use super::line::MAX_VALUE_BYTES;
use crate::telemetry::chain::chain;
use crate::telemetry::record_fields::{RecordEvent, RecordFields};
use crate::telemetry::redact::{MASK, cut, is_secret_name, redact};
use crate::telemetry::request_tag;
use crate::telemetry::trace::TraceId;

/// Targets that take part in exporting: what they say about an export must not cause another.
const EXPORTERS: [&str; 5] = ["opentelemetry", "hyper", "reqwest", "h2", "rustls"];

/// Hands every event to the exporter's bounded queue.
#[derive(Debug)]
pub(in crate::telemetry) struct ExportLayer(SdkLogger);

impl ExportLayer {
    pub(in crate::telemetry) fn new(logger: SdkLogger) -> Self {
        Self(logger)
    }
}

impl<S: Subscriber> Layer<S> for ExportLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        if EXPORTERS
            .iter()
            .any(|exporter| target.starts_with(exporter))
        {
            return;
        }
        emit(&self.0, target, level, |attributes| {
            event.record(attributes);
            if let Some(tag) = request_tag::current() {
                RecordFields::word(attributes, "request_id", tag.as_str());
            }
        });
    }
}

/// Hands one record to the exporter's bounded queue.
pub(in crate::telemetry) fn record(
    logger: &SdkLogger,
    target: &'static str,
    level: Level,
    record: &dyn RecordEvent,
) {
    emit(logger, target, level, |attributes| {
        record.fields(attributes);
    });
}

fn emit(
    logger: &SdkLogger,
    target: &'static str,
    level: Level,
    fill: impl FnOnce(&mut RecordAttributes<'_, SdkLogRecord>),
) {
    let mut record = logger.create_log_record();
    let (number, word) = severity(level);
    record.set_severity_number(number);
    record.set_severity_text(word);
    record.set_target(target);
    fill(&mut RecordAttributes(&mut record));
    logger.emit(record);
}

fn severity(level: Level) -> (Severity, &'static str) {
    match level {
        Level::ERROR => (Severity::Error, "ERROR"),
        Level::WARN => (Severity::Warn, "WARN"),
        Level::INFO => (Severity::Info, "INFO"),
        Level::DEBUG => (Severity::Debug, "DEBUG"),
        Level::TRACE => (Severity::Trace, "TRACE"),
    }
}

/// Values keep control characters and marks of direction: each is a value of its own here, as it is to a reader of the JSON
/// lines. Escaping is for text that is shown as it comes.
struct RecordAttributes<'a, R>(&'a mut R);

impl<R: LogRecord> RecordAttributes<'_, R> {
    fn add(&mut self, name: &'static str, value: AnyValue) {
        if name == "message" {
            self.0.set_body(value);
        } else {
            self.0.add_attribute(name, value);
        }
    }

    fn string(&mut self, name: &'static str, value: &str) {
        let safe = if is_secret_name(name) {
            MASK.into()
        } else {
            redact(cut(value, MAX_VALUE_BYTES))
        };
        self.add(name, AnyValue::from(safe.into_owned()));
    }

    fn unsigned(&mut self, name: &'static str, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.add(name, AnyValue::Int(value)),
            Err(_) => self.string(name, &value.to_string()),
        }
    }
}

impl<R: LogRecord> Visit for RecordAttributes<'_, R> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.string(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_str(field, &chain(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), AnyValue::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.unsigned(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), AnyValue::Double(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), AnyValue::Boolean(value));
    }
}

impl<R: LogRecord> RecordFields for RecordAttributes<'_, R> {
    fn word(&mut self, name: &'static str, value: &str) {
        self.add(name, AnyValue::from(value.to_owned()));
    }

    fn text(&mut self, name: &'static str, value: &str) {
        self.string(name, value);
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.unsigned(name, value);
    }

    /// Also where backends look for it, so that a trace leads to its lines.
    fn trace(&mut self, id: &TraceId) {
        if let Ok(id) = opentelemetry::TraceId::from_hex(id.as_str()) {
            self.0
                .set_trace_context(id, opentelemetry::SpanId::INVALID, None);
        }
        self.word("trace_id", id.as_str());
    }

    fn time(&mut self, name: &'static str, at: Duration) {
        let mut text = String::new();
        TimeStamps::default().put(&mut text, at);
        self.add(name, AnyValue::from(text));
    }
}
