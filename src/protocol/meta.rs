//! What `params._meta` carries for us: progress token, trace context, modern envelope.

use std::borrow::Cow;

use super::id::RequestId;
use super::message::Message;

/// The token under which progress is reported.
pub const PROGRESS_TOKEN: &str = "progressToken";
/// W3C trace context, parent. Spec: SPEC C-98.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace context, vendor state.
pub const TRACESTATE: &str = "tracestate";
/// W3C baggage; never crosses a trust border.
pub const BAGGAGE: &str = "baggage";
/// Modern: the revision of this request. Its presence makes a request modern.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Modern: who calls.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Modern: what the client can be asked.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Modern: the least severe log message wanted.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Modern: who answered.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// Prefix of names that the specification reserves.
pub const RESERVED: &str = "io.modelcontextprotocol/";
/// Ours: the gateway that a modern request came through, an `Implementation`.
pub const GATEWAY: &str = "dev.drawbridge/gateway";
/// Ours: the upstream that a result of a merged endpoint comes from, an `Implementation`.
pub const UPSTREAM: &str = "dev.drawbridge/upstream";
/// Ours: in results about several upstreams: those that are missing, and why.
pub const MISSING: &str = "dev.drawbridge/missing";
/// 2025-11-25: the task that a message belongs to.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Modern: the subscription that a notice belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// JSON text of the progress token, a string or an integer. Spec: SPEC C-01.
#[must_use]
pub fn progress_token(message: &Message) -> Option<&str> {
    message
        .meta(PROGRESS_TOKEN)
        .filter(|token| RequestId::parse(token).is_some())
}

/// `traceparent` as it came; whether it is valid is for the trace context to say.
#[must_use]
pub fn traceparent(message: &Message) -> Option<Cow<'_, str>> {
    message.meta(TRACEPARENT).and_then(super::json::string)
}

/// `tracestate` as it came.
#[must_use]
pub fn tracestate(message: &Message) -> Option<Cow<'_, str>> {
    message.meta(TRACESTATE).and_then(super::json::string)
}

/// JSON text of the caller's description: of this request (modern) or of the session that
/// `initialize` opens (legacy).
#[must_use]
pub fn client_info(message: &Message) -> Option<&str> {
    let legacy = || {
        message
            .param("clientInfo")
            .filter(|_| message.method() == Some("initialize"))
    };
    message
        .meta(CLIENT_INFO)
        .or_else(legacy)
        .filter(|info| info.starts_with('{'))
}

/// Whether the message is a modern request by its body. Spec: SPEC M-19.
#[must_use]
pub fn is_modern(message: &Message) -> bool {
    message.meta(PROTOCOL_VERSION).is_some()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn request(params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
        Message::parse(Bytes::from(text), 128).unwrap()
    }

    #[test]
    fn tokens_of_other_kinds_count_as_none() {
        let token = |json: &str| {
            let message = request(&format!(r#"{{"_meta":{{"progressToken":{json}}}}}"#));
            progress_token(&message).map(ToOwned::to_owned)
        };
        assert_eq!(token("1").as_deref(), Some("1"));
        assert_eq!(token("\"1\"").as_deref(), Some("\"1\""));
        assert_eq!(token("1.5"), None);
        assert_eq!(token("null"), None);
    }

    #[test]
    fn trace_context_and_client_are_read_from_where_each_era_puts_them() {
        let message = request(
            r#"{"clientInfo":{"name":"l"},"_meta":{"traceparent":"00-a","tracestate":"k=v"}}"#,
        );
        assert_eq!(traceparent(&message).as_deref(), Some("00-a"));
        assert_eq!(tracestate(&message).as_deref(), Some("k=v"));
        assert_eq!(client_info(&message), Some(r#"{"name":"l"}"#));
        assert!(!is_modern(&message));
        let message = request(
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"m"}}}"#,
        );
        assert_eq!(client_info(&message), Some(r#"{"name":"m"}"#));
        assert!(is_modern(&message));
    }
}
