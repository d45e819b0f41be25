//! `BroughtAnswer`: an answer that a person's browser brought, and the audit record of its end.

use std::sync::Arc;

use super::callback::CallbackRefusal;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome, AuditSink};
use crate::call::Principal;
use crate::vault::{GrantKey, PendingRecord};

/// An answer: the person whose browser brought it, and the authorization.
pub(super) struct BroughtAnswer {
    pub(super) person: Arc<Principal>,
    pub(super) key: GrantKey,
    pub(super) pending: PendingRecord,
}

impl BroughtAnswer {
    /// Records that the account is connected, with these scopes.
    pub(super) fn connected(&self, audit: &AuditSink, scopes: &[String]) {
        audit.account(self.record(AccountEvent::Connected).scopes(scopes));
    }

    /// Records that the account is not connected, and why.
    pub(super) fn refused(&self, audit: &AuditSink, refusal: &CallbackRefusal) {
        let outcome = match refusal {
            CallbackRefusal::NoCode | CallbackRefusal::Failed(_) => AuditOutcome::Failed,
            _ => AuditOutcome::Denied,
        };
        let record = self.record(AccountEvent::Refused);
        audit.account(record.reason(outcome, refusal.word()));
    }

    fn record(&self, event: AccountEvent) -> AccountRecord {
        AccountRecord::new(event, self.key.owner, &self.key.upstream)
            .by(&self.person)
            .server(&self.pending.issuer)
            .program(self.pending.program.as_deref())
    }
}
