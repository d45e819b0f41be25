//! Spans and durations of requests to upstreams. SPEC C-99.

use crate::call::Call;
use crate::config;
use crate::protocol::{Message, Revision};
use crate::telemetry::names::attribute;
use crate::telemetry::trace::{CallSpan, SpanOutcome};
use crate::upstream::carrier::LinkSettings;
use crate::upstream::error::LinkError;

/// The span of a request that leaves under our `id`, on behalf of `call`.
pub(super) fn client_span(
    settings: &LinkSettings,
    request: &Message,
    call: &Call,
    id: u64,
    revision: Revision,
) -> CallSpan {
    let method = request.method().unwrap_or_default();
    let mut span = CallSpan::client(&call.trace, method, &settings.load);
    span.request(request, || id.to_string().into(), revision);
    span.attribute(attribute::TRANSPORT, || match settings.upstream.carrier {
        config::CarrierConfig::Stdio(_) => "pipe",
        config::CarrierConfig::Http(_) => "tcp",
    });
    span
}

/// The outcome of such a request.
pub(super) fn outcome(reply: &Result<Message, LinkError>) -> SpanOutcome {
    match reply {
        Ok(reply) => match reply.error_code() {
            Some(code) => SpanOutcome::Rpc(code),
            None if reply.is_tool_error() => SpanOutcome::ToolError,
            None => SpanOutcome::Ok,
        },
        Err(error) => SpanOutcome::Failed(error.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC C-99.
    #[test]
    fn a_tool_that_fails_is_a_failure_of_its_upstream_too() {
        let read = |rest: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{rest}}}"#);
            outcome(&Ok(Message::parse(text.into(), 128).unwrap()))
        };
        assert_eq!(
            read(r#""result":{"isError":true,"content":[]}"#),
            SpanOutcome::ToolError
        );
        assert_eq!(read(r#""result":{"content":[]}"#), SpanOutcome::Ok);
        assert_eq!(
            read(r#""error":{"code":-32602,"message":""}"#),
            SpanOutcome::Rpc(-32602)
        );
        let timeout = outcome(&Err(LinkError::Timeout));
        assert_eq!(timeout.error_type(), Some("timeout"));
    }
}
