//! Events as OpenTelemetry log records, through the same redaction as the lines.

use opentelemetry::logs::{AnyValue, LogRecord, Logger, Severity};
use opentelemetry_sdk::logs::SdkLogger;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::telemetry::names::{ACCESS_TARGET, AUDIT_TARGET};
use crate::telemetry::redact::{MASK, is_secret_name, redact};

/// Targets that take part in exporting: what they say about an export must not cause another.
const EXPORTERS: [&str; 5] = ["opentelemetry", "hyper", "reqwest", "h2", "rustls"];

/// Hands every event to the exporter's bounded queue, except what is there for every request:
/// access lines, and audit lines of calls that went well. Spans and metrics tell the same, and an
/// exported record of twenty attributes costs more than the call.
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
        let left_out = target == ACCESS_TARGET
            || (target == AUDIT_TARGET && level == Level::INFO)
            || EXPORTERS
                .iter()
                .any(|exporter| target.starts_with(exporter));
        if left_out {
            return;
        }
        let mut record = self.0.create_log_record();
        let (number, word) = severity(level);
        record.set_severity_number(number);
        record.set_severity_text(word);
        record.set_target(target.to_owned());
        event.record(&mut Attributes(&mut record));
        self.0.emit(record);
    }
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

struct Attributes<'a, R>(&'a mut R);

impl<R: LogRecord> Attributes<'_, R> {
    fn add(&mut self, field: &Field, value: AnyValue) {
        if field.name() == "message" {
            self.0.set_body(value);
        } else {
            self.0.add_attribute(field.name(), value);
        }
    }
}

impl<R: LogRecord> Visit for Attributes<'_, R> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let safe = if is_secret_name(field.name()) {
            MASK.into()
        } else {
            redact(value)
        };
        self.add(field, AnyValue::from(safe.into_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, AnyValue::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.add(field, AnyValue::Int(value)),
            Err(_) => self.record_debug(field, &value),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, AnyValue::Double(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, AnyValue::Boolean(value));
    }
}
