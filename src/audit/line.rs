//! A record as a line of the log.

use std::time::Duration;

use super::{Outcome, Record};
use crate::telemetry::names::AUDIT_TARGET;
use crate::telemetry::trace::TraceId;

/// Writes `record`, which was made `at` this time since the Unix epoch. What was refused or failed
/// is a warning: exporters of logs pass that on, and not one record for every call.
pub(super) fn write(at: Duration, record: &Record) {
    let principal = &record.principal;
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                target: AUDIT_TARGET,
                time = time(at),
                issuer = principal.issuer(),
                subject = principal.subject(),
                client = principal.client(),
                endpoint = &*record.endpoint,
                upstream = &*record.upstream,
                method = &*record.method,
                name = record.name.as_deref(),
                outcome = word(record.outcome),
                rule = record.rule.as_deref(),
                trace_id = record.trace.as_ref().map(TraceId::as_str),
            )
        };
    }
    match record.outcome {
        Outcome::Ok | Outcome::Error => line!(info),
        Outcome::Failed | Outcome::Denied => line!(warn),
    }
}

/// RFC 3339, in UTC, to the millisecond.
fn time(at: Duration) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis)
        .map(|time| format!("{time:.3}"))
        .unwrap_or_default()
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error => "error",
        Outcome::Failed => "failed",
        Outcome::Denied => "denied",
    }
}
