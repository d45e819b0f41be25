//! What spans, durations, access lines and the log say of a call.

use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, Revision};
use crate::relay::Failure;
use crate::session::Session;
use crate::telemetry::names::{attribute, error_type};
use crate::telemetry::trace::{CallSpan, Outcome};

/// The span of a call, with what is known before it runs; the session where the client has one.
/// SPEC C-99.
pub(super) fn server_span(call: &Call, session: Option<&Session>) -> CallSpan {
    let message = &call.message;
    let method = message.method().unwrap_or_default();
    let mut span = CallSpan::server(&call.trace, method, &call.endpoint.name);
    if method == "tools/call"
        && let Some(name) = message.param_str("name")
    {
        span.tool(&name);
    }
    note_request(&mut span, message, call.revision);
    if let Some(session) = session {
        note_session(&mut span, session);
    }
    span
}

/// What a span says of a request that a client sent.
pub(super) fn note_request(span: &mut CallSpan, message: &Message, revision: Revision) {
    span.request(
        message,
        || message.id().unwrap_or_default().into(),
        revision,
    );
    span.attribute(attribute::TRANSPORT, || "tcp");
}

/// What a span says of a client's session.
pub(super) fn note_session(span: &mut CallSpan, session: &Session) {
    span.attribute(attribute::SESSION, || format!("{:016x}", session.tag()));
}

/// The outcome as spans and durations tell it.
pub(super) fn ended(answer: &Result<Reply, Failure>) -> Outcome {
    match answer {
        Ok(reply) => match reply.error_code() {
            Some(code) => Outcome::Rpc(code),
            None if reply.is_tool_error() => Outcome::ToolError,
            None => Outcome::Ok,
        },
        Err(failure) => failed(failure),
    }
}

/// The same for what has no reply.
pub(super) fn failed(failure: &Failure) -> Outcome {
    Outcome::Failed(match failure {
        Failure::Denied(_) => error_type::DENIED,
        Failure::Fault(fault) => error_word(fault.kind),
    })
}

/// A fault as spans, metrics and access lines call it.
pub(super) fn error_word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Cancelled => error_type::CANCELLED,
        FaultKind::UpstreamTimeout => error_type::TIMEOUT,
        FaultKind::UpstreamUnavailable => error_type::UNAVAILABLE,
        FaultKind::UpstreamLost => error_type::LOST,
        FaultKind::UpstreamInvalid => error_type::INVALID,
        FaultKind::CallerBusy | FaultKind::GatewayBusy => error_type::BUSY,
        FaultKind::UnknownSession | FaultKind::MissingSession => error_type::SESSION,
        FaultKind::Internal => error_type::INTERNAL,
        _ => error_type::BAD_REQUEST,
    }
}

/// A fault is logged once, here, with its whole chain.
pub(super) fn log_fault(fault: &Fault) {
    let mut chain = String::new();
    let mut source = std::error::Error::source(fault);
    while let Some(error) = source {
        chain.push_str(": ");
        chain.push_str(&error.to_string());
        source = error.source();
    }
    if fault.kind == FaultKind::Internal {
        tracing::error!(kind = ?fault.kind, side = ?fault.side, "{fault}{chain}");
    } else {
        tracing::debug!(kind = ?fault.kind, side = ?fault.side, "{fault}{chain}");
    }
}
