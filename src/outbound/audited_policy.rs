//! `AuditedPolicy`: the decision about a request, with the audit record of a refusal.

use std::sync::Arc;

use super::target::UpstreamTarget;
use crate::audit::{AccountRecord, AuditOutcome, AuditRecord, AuditSink, PendingRecord};
use crate::call::{Call, Reply};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::policy::{Denial, Permit, ToolPolicy};
use crate::telemetry::metrics::LABELED;

/// The policy, and the audit log that its refusals go to.
#[derive(Debug)]
pub(crate) struct AuditedPolicy {
    policy: Arc<ToolPolicy>,
    audit: AuditSink,
}

impl AuditedPolicy {
    pub(crate) fn new(policy: Arc<ToolPolicy>, audit: AuditSink) -> Self {
        Self { policy, audit }
    }

    /// Decides about a request to one upstream. A refusal is audited and counted.
    ///
    /// # Errors
    /// [`Denial`] when a rule refuses it.
    pub(crate) fn decide(&self, call: &Call, target: &UpstreamTarget) -> Result<Permit, Denial> {
        let method = call.message.method().unwrap_or_default();
        self.decide_about(call, &target.upstream, method, target.name.as_deref())
    }

    /// Decides about the part of one upstream in a request that several answer. Audited like any
    /// other decision.
    ///
    /// # Errors
    /// [`Denial`] when a rule refuses it.
    pub(crate) fn decide_part(
        &self,
        call: &Call,
        upstream: &Arc<str>,
        method: &str,
    ) -> Result<Permit, Denial> {
        self.decide_about(call, upstream, method, None)
    }

    fn decide_about(
        &self,
        call: &Call,
        upstream: &Arc<str>,
        method: &str,
        name: Option<&str>,
    ) -> Result<Permit, Denial> {
        let (principal, endpoint) = (&call.principal, &call.endpoint);
        let decision = self
            .policy
            .decide(principal, endpoint, upstream, method, name);
        if let Err(denial) = &decision {
            LABELED.policy_denied.add(&denial.rule, 1);
            let record = AuditRecord::new(call, upstream, name, Some(&denial.rule));
            self.audit.record(record);
        }
        decision
    }

    /// Whether an endpoint shows a tool of an upstream, which calls it `tool`.
    pub(crate) fn shows_tool(&self, endpoint: &Endpoint, upstream: &str, tool: &str) -> bool {
        self.policy.shows_tool(endpoint, upstream, tool)
    }

    /// The audit record of a request to one upstream, written when it is dropped.
    pub(crate) fn audit<'a>(
        &'a self,
        call: &'a Call,
        target: &UpstreamTarget,
    ) -> PendingRecord<'a> {
        let record = AuditRecord::new(call, &target.upstream, target.name.as_deref(), None);
        self.audit.begin(call, record)
    }

    /// The audit record of the part of one upstream, written when it is dropped.
    pub(crate) fn audit_part<'a>(
        &'a self,
        call: &'a Call,
        upstream: &Arc<str>,
    ) -> PendingRecord<'a> {
        let record = AuditRecord::new(call, upstream, None, None);
        self.audit.begin(call, record)
    }

    /// Records an event of an account.
    pub(crate) fn audit_account(&self, record: AccountRecord) {
        self.audit.account(record);
    }

    /// Records a request that failed before it was sent.
    pub(crate) fn audit_failed(&self, call: &Call, target: &UpstreamTarget) {
        let name = target.name.as_deref();
        let record = AuditRecord::new(call, &target.upstream, name, None);
        self.audit.record(record);
    }
}

/// The audited outcome of a reply.
pub(crate) fn outcome(reply: &Result<Reply, Fault>) -> AuditOutcome {
    match reply {
        Ok(reply) if reply.error().is_none() => AuditOutcome::Ok,
        Ok(_) => AuditOutcome::Error,
        Err(_) => AuditOutcome::Failed,
    }
}
