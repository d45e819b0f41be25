//! A record as a line of the log.

use std::time::Duration;

use tracing::Level;

use super::{AuditOutcome, AuditRecord, QueuedRecord};
use crate::telemetry::names::AUDIT_TARGET;
use crate::telemetry::record::{self, RecordFields};

/// Writes `record`, which was made `at` this time since the Unix epoch. What was refused or failed
/// is a warning.
pub(super) fn write(at: Duration, record: &QueuedRecord) {
    let outcome = match record {
        QueuedRecord::Call(record) => record.outcome,
        QueuedRecord::Account(record) => record.outcome,
    };
    let level = match outcome {
        AuditOutcome::Ok | AuditOutcome::Error => Level::INFO,
        AuditOutcome::Failed | AuditOutcome::Denied => Level::WARN,
    };
    record::write(AUDIT_TARGET, level, &AuditLine { at, record });
}

struct AuditLine<'a> {
    at: Duration,
    record: &'a QueuedRecord,
}

impl record::RecordEvent for AuditLine<'_> {
    fn fields(&self, to: &mut dyn RecordFields) {
        to.time("time", self.at);
        match self.record {
            QueuedRecord::Call(record) => record.fields(to),
            QueuedRecord::Account(record) => record.fields(to),
        }
    }
}

impl AuditRecord {
    fn fields(&self, to: &mut dyn RecordFields) {
        let [issuer, subject, client] = self.principal.names();
        to.cached("issuer", issuer);
        to.cached("subject", subject);
        to.cached("client", client);
        to.word("endpoint", &self.endpoint);
        to.word("upstream", &self.upstream);
        to.text("method", &self.method);
        if let Some(name) = &self.name {
            to.text("name", name);
        }
        to.word("outcome", self.outcome.word());
        if let Some(rule) = &self.rule {
            to.text("rule", rule);
        }
        if let Some(reason) = &self.reason {
            to.text("reason", reason);
        }
        if let Some(tag) = &self.tag {
            to.word("request_id", tag.as_str());
        }
        if let Some(trace) = &self.trace {
            to.trace(trace);
        }
    }
}

impl AuditOutcome {
    /// The value of `outcome`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Failed => "failed",
            Self::Denied => "denied",
        }
    }
}
