//! The terminal answer of a call.

use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::{Message, json};

/// A reply, before it carries the client's request id.
#[derive(Debug, Clone)]
pub enum Reply {
    /// As the upstream sent it; only the id will be replaced.
    Relayed(Message),
    /// JSON text of a result that we wrote.
    Result(Bytes),
    /// JSON text of an error object that we wrote.
    Error(Bytes),
}

impl Reply {
    /// JSON text of `result`, unless the reply is an error.
    #[must_use]
    pub fn result(&self) -> Option<&str> {
        match self {
            Self::Relayed(message) => message.result(),
            Self::Result(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Error(_) => None,
        }
    }

    /// JSON text of `error`, unless the reply is a result.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Relayed(message) => message.error(),
            Self::Error(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Result(_) => None,
        }
    }

    /// `error.code`, when it is an error.
    #[must_use]
    pub fn error_code(&self) -> Option<i64> {
        match self {
            Self::Relayed(message) => message.error_code(),
            Self::Error(_) => {
                let members = json::members(self.error()?).ok()?;
                let (_, code) = members.iter().find(|(name, _)| name == "code")?;
                code.parse().ok()
            }
            Self::Result(_) => None,
        }
    }

    /// Whether it is a tool result that says `isError`.
    #[must_use]
    pub fn is_tool_error(&self) -> bool {
        match self {
            Self::Relayed(message) => message.is_tool_error(),
            Self::Result(_) | Self::Error(_) => false,
        }
    }

    /// The whole JSON-RPC response under the client's `id` (JSON text).
    #[must_use]
    pub fn into_response(self, id: &str) -> Bytes {
        let (name, body) = match self {
            Self::Relayed(message) => return message.with_id(id),
            Self::Result(body) => ("result", body),
            Self::Error(body) => ("error", body),
        };
        let mut out = BytesMut::with_capacity(body.len() + id.len() + 40);
        out.put_slice(br#"{"jsonrpc":"2.0","id":"#);
        out.put_slice(id.as_bytes());
        out.put_slice(b",\"");
        out.put_slice(name.as_bytes());
        out.put_slice(b"\":");
        out.put_slice(&body);
        out.put_u8(b'}');
        out.freeze()
    }
}
