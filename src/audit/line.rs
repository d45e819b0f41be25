//! A record as a line of the log.

use std::time::Duration;

use tracing::Level;

use super::{AuditOutcome, AuditRecord};
use crate::telemetry::names::AUDIT_TARGET;
use crate::telemetry::record::{self, RecordFields};

/// Writes `record`, which was made `at` this time since the Unix epoch. What was refused or failed
/// is a warning.
pub(super) fn write(at: Duration, record: &AuditRecord) {
    let level = match record.outcome {
        AuditOutcome::Ok | AuditOutcome::Error => Level::INFO,
        AuditOutcome::Failed | AuditOutcome::Denied => Level::WARN,
    };
    record::write(AUDIT_TARGET, level, &AuditLine { at, record });
}

struct AuditLine<'a> {
    at: Duration,
    record: &'a AuditRecord,
}

impl record::RecordEvent for AuditLine<'_> {
    fn fields(&self, to: &mut dyn RecordFields) {
        let Self { at, record } = self;
        to.time("time", *at);
        let [issuer, subject, client] = record.principal.names();
        to.cached("issuer", issuer);
        to.cached("subject", subject);
        to.cached("client", client);
        to.word("endpoint", &record.endpoint);
        to.word("upstream", &record.upstream);
        to.text("method", &record.method);
        if let Some(name) = &record.name {
            to.text("name", name);
        }
        to.word("outcome", word(record.outcome));
        if let Some(rule) = &record.rule {
            to.text("rule", rule);
        }
        if let Some(reason) = &record.reason {
            to.text("reason", reason);
        }
        if let Some(tag) = &record.tag {
            to.word("request_id", tag.as_str());
        }
        if let Some(trace) = &record.trace {
            to.trace(trace);
        }
    }
}

fn word(outcome: AuditOutcome) -> &'static str {
    match outcome {
        AuditOutcome::Ok => "ok",
        AuditOutcome::Error => "error",
        AuditOutcome::Failed => "failed",
        AuditOutcome::Denied => "denied",
    }
}
