//! `AccountRecord`: the audit record of an event of a principal's account at an upstream. It holds no token.

use std::borrow::Cow;
use std::sync::Arc;

use super::{AuditOutcome, cut};
use crate::call::{Call, OwnerKey, Principal};
use crate::telemetry::record::RecordFields;
use crate::telemetry::request_tag::{self, RequestTag};
use crate::telemetry::trace::{self, TraceId};

/// What happened to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountEvent {
    /// A person connected it, also in place of an earlier one.
    Connected,
    /// It was not connected, or the upstream refused it.
    Refused,
    /// A newer token replaced its token, or the request for one failed.
    Refreshed,
    /// Its authorization server ended it or was told to, or it was removed for being unused.
    Revoked,
    /// Its person disconnected it.
    Disconnected,
    /// A program used it for the first time since it was connected.
    FirstUse,
}

impl AccountEvent {
    /// The value of `event`.
    fn word(self) -> &'static str {
        match self {
            Self::Connected => "account_connected",
            Self::Refused => "account_refused",
            Self::Refreshed => "account_refreshed",
            Self::Revoked => "account_revoked",
            Self::Disconnected => "account_disconnected",
            Self::FirstUse => "account_first_use",
        }
    }
}

/// The audit record of one [`AccountEvent`]. Texts that others chose are cut to 256 bytes each.
#[derive(Debug)]
pub struct AccountRecord {
    event: AccountEvent,
    owner: OwnerKey,
    upstream: Box<str>,
    pub(super) outcome: AuditOutcome,
    principal: Option<Arc<Principal>>,
    endpoint: Option<Arc<str>>,
    server: Option<Box<str>>,
    scopes: Option<Box<str>>,
    program: Option<Box<str>>,
    reason: Option<Cow<'static, str>>,
    tag: Option<RequestTag>,
    trace: Option<TraceId>,
}

impl AccountRecord {
    /// The record of `event` of the account of `owner` at `upstream`, as part of the request that this task serves. The
    /// outcome is [`AuditOutcome::Ok`].
    #[must_use]
    pub fn new(event: AccountEvent, owner: OwnerKey, upstream: &str) -> Self {
        Self {
            event,
            owner,
            upstream: upstream.into(),
            outcome: AuditOutcome::Ok,
            principal: None,
            endpoint: None,
            server: None,
            scopes: None,
            program: None,
            reason: None,
            tag: request_tag::current(),
            trace: trace::parent().trace_id(),
        }
    }

    /// Names the person or the caller who acts. Where that is not the owner, the record still tells of the owner's
    /// account.
    #[must_use]
    pub fn by(mut self, principal: &Arc<Principal>) -> Self {
        self.principal = Some(Arc::clone(principal));
        self
    }

    /// Names caller, endpoint and trace of `call`.
    #[must_use]
    pub fn of_call(mut self, call: &Call) -> Self {
        self.endpoint = Some(Arc::clone(&call.endpoint.name));
        self.trace = call.trace.trace_id();
        self.by(&call.principal)
    }

    /// Names the authorization server. An empty `issuer`, as that of a pasted key, is left out.
    #[must_use]
    pub fn server(mut self, issuer: &str) -> Self {
        self.server = (!issuer.is_empty()).then(|| cut(issuer).into());
        self
    }

    /// Names the scopes as granted; none are left out.
    #[must_use]
    pub fn scopes(mut self, scopes: &[String]) -> Self {
        let joined = scopes.join(" ");
        self.scopes = (!joined.is_empty()).then(|| cut(&joined).into());
        self
    }

    /// Names the program, as it names itself.
    #[must_use]
    pub fn program(mut self, program: Option<&str>) -> Self {
        self.program = program.map(|program| cut(program).into());
        self
    }

    /// Says why it ended or went wrong, in one word.
    #[must_use]
    pub fn reason(mut self, outcome: AuditOutcome, reason: impl Into<Cow<'static, str>>) -> Self {
        self.outcome = outcome;
        self.reason = Some(reason.into());
        self
    }

    /// Shows every field that applies.
    pub(super) fn fields(&self, to: &mut dyn RecordFields) {
        to.word("event", self.event.word());
        to.word("principal", &self.owner.to_string());
        if let Some(principal) = &self.principal {
            let names = ["issuer", "subject", "client"].into_iter();
            // The pages know of no client, and `auth.mode = "none"` of no issuer.
            for (name, value) in names.zip(principal.names()) {
                if !value.as_str().is_empty() {
                    to.cached(name, value);
                }
            }
        }
        if let Some(endpoint) = &self.endpoint {
            to.word("endpoint", endpoint);
        }
        // A revocation may be of an upstream that is in the configuration no more.
        to.text("upstream", &self.upstream);
        let chosen = [
            ("server", &self.server),
            ("scopes", &self.scopes),
            ("program", &self.program),
        ];
        for (name, value) in chosen {
            if let Some(value) = value {
                to.text(name, value);
            }
        }
        to.word("outcome", self.outcome.word());
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
