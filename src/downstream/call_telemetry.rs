//! Spans, durations, access lines and log words of calls.

use super::reply;
use crate::call::{Call, Reply};
use crate::fault::{Fault, FaultKind};
use crate::protocol::{Message, Revision};
use crate::relay::RelayFailure;
use crate::session::Session;
use crate::telemetry::names::{attribute, error_type};
use crate::telemetry::trace::{CallSpan, SpanOutcome};

/// The span of a call, with the attributes known before the call runs; `session` is `None` for clients without one.
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

/// Sets the attributes of a client's request on the span.
pub(super) fn note_request(span: &mut CallSpan, message: &Message, revision: Revision) {
    span.request(
        message,
        || message.id().unwrap_or_default().into(),
        revision,
    );
    span.attribute(attribute::TRANSPORT, || "tcp");
}

/// Sets the attributes of a client's session on the span.
pub(super) fn note_session(span: &mut CallSpan, session: &Session) {
    span.attribute(attribute::SESSION, || format!("{:016x}", session.tag()));
}

/// The JSON-RPC code of a fault, in the era of the caller.
type CodeOf = fn(FaultKind) -> i64;

/// The outcome as spans and durations tell it.
pub(super) fn ended(
    answer: &Result<Reply, RelayFailure>,
    is_tool_call: bool,
    code_of: CodeOf,
) -> SpanOutcome {
    match answer {
        Ok(reply) => match reply.error_code() {
            Some(code) => SpanOutcome::Rpc(code),
            None if reply.is_tool_error() => SpanOutcome::ToolError,
            None => SpanOutcome::Ok,
        },
        Err(failure) => failed(failure, is_tool_call, code_of),
    }
}

/// Outcome of a call that the gateway answered itself. A missing scope is answered by HTTP alone, a cancelled call not
/// at all, and a fault that a model can act on as a tool result.
fn failed(failure: &RelayFailure, is_tool_call: bool, code_of: CodeOf) -> SpanOutcome {
    match failure {
        RelayFailure::Denied(denial) if denial.missing_scopes.is_empty() => {
            SpanOutcome::Refused(error_type::DENIED, code_of(FaultKind::InvalidParams))
        }
        RelayFailure::Denied(_) => SpanOutcome::Failed(error_type::DENIED),
        RelayFailure::Fault(fault)
            if fault.kind == FaultKind::Cancelled
                || (is_tool_call && reply::is_tool_error(fault.kind)) =>
        {
            SpanOutcome::Failed(error_word(fault.kind))
        }
        RelayFailure::Fault(fault) => refused(fault, code_of),
    }
}

/// The access-line word of a failed call.
pub(super) fn failure_word(failure: &RelayFailure) -> &'static str {
    match failure {
        RelayFailure::Denied(_) => error_type::DENIED,
        RelayFailure::Fault(fault) => error_word(fault.kind),
    }
}

/// A fault that is answered with a JSON-RPC error.
pub(super) fn refused(fault: &Fault, code_of: CodeOf) -> SpanOutcome {
    SpanOutcome::Refused(error_word(fault.kind), code_of(fault.kind))
}

/// A fault as spans, metrics and access lines call it.
pub(super) fn error_word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Cancelled => error_type::CANCELLED,
        FaultKind::UpstreamTimeout => error_type::TIMEOUT,
        FaultKind::UpstreamUnavailable => error_type::UNAVAILABLE,
        FaultKind::UpstreamLost => error_type::LOST,
        FaultKind::UpstreamInvalid => error_type::INVALID,
        FaultKind::CallerBusy | FaultKind::GatewayBusy | FaultKind::ReplyDropped => {
            error_type::BUSY
        }
        FaultKind::UnknownSession | FaultKind::MissingSession => error_type::SESSION,
        FaultKind::Internal => error_type::INTERNAL,
        _ => error_type::BAD_REQUEST,
    }
}

/// A fault is logged once, here, with its whole chain.
pub(super) fn log_fault(fault: &Fault) {
    let error: &(dyn std::error::Error + 'static) = fault;
    let kind = error_word(fault.kind);
    if fault.kind == FaultKind::Internal {
        tracing::error!(kind, error, "request failed");
    } else {
        tracing::debug!(kind, error, "request failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::reply::legacy_code;

    // SPEC C-99, E-05.
    #[test]
    fn an_error_that_we_answer_has_its_code_and_what_is_no_error_has_none() {
        let told = |kind, is_tool_call| {
            let failure = RelayFailure::Fault(Fault::upstream(kind, "it failed"));
            ended(&Err(failure), is_tool_call, legacy_code)
        };
        let lost = FaultKind::UpstreamLost;
        assert_eq!(
            told(lost, false),
            SpanOutcome::Refused(error_type::LOST, -32603)
        );
        assert_eq!(told(lost, true), SpanOutcome::Failed(error_type::LOST));
        assert_eq!(
            told(FaultKind::InvalidParams, true),
            SpanOutcome::Refused(error_type::BAD_REQUEST, -32602)
        );
        assert_eq!(
            told(FaultKind::Cancelled, false),
            SpanOutcome::Failed(error_type::CANCELLED)
        );
    }
}
