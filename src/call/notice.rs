//! A notification on its way to the client.

use std::sync::Arc;

use bytes::Bytes;

use crate::protocol::{Message, json, rpc};
use crate::sync::event_number::EventNumber;

/// Severity of a log message, RFC 5424 order. Spec: MCP 2025-11-25, logging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// `debug`
    Debug,
    /// `info`
    Info,
    /// `notice`
    Notice,
    /// `warning`
    Warning,
    /// `error`
    Error,
    /// `critical`
    Critical,
    /// `alert`
    Alert,
    /// `emergency`
    Emergency,
}

impl LogLevel {
    /// Reads the wire word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "debug" => Self::Debug,
            "info" => Self::Info,
            "notice" => Self::Notice,
            "warning" => Self::Warning,
            "error" => Self::Error,
            "critical" => Self::Critical,
            "alert" => Self::Alert,
            "emergency" => Self::Emergency,
            _ => return None,
        })
    }

    /// The wire word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

/// The kind of a notice: equal kinds may be merged, and some kinds may be dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// `notifications/progress`; the newest per token is enough.
    Progress {
        /// JSON text of the client's token.
        token: Arc<str>,
    },
    /// `notifications/message`; dropped and counted when there is no room.
    Log,
    /// `notifications/<what>/list_changed`; one is as good as many.
    ListChanged {
        /// `tools`, `prompts` or `resources`.
        what: &'static str,
    },
    /// `notifications/resources/updated`; one per URI is enough.
    ResourceUpdated {
        /// As the client knows it.
        uri: String,
    },
    /// `notifications/elicitation/complete`; never merged.
    ElicitationComplete,
    /// Any other method.
    Other,
}

/// One notification: its kind, and the whole JSON-RPC message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// The message, one JSON object.
    pub bytes: Bytes,
}

/// How a notification reached the gateway.
#[derive(Debug, Clone, Copy)]
pub struct NoticeArrival {
    /// The number ([`DownstreamLink::number`](super::DownstreamLink::number)) of the call whose stream carried the
    /// notification, or which the notification names.
    pub call: Option<u64>,
    /// The same for every session that is told: a list requested after the notification is newer than what it tells of,
    /// however late a session is told.
    pub number: EventNumber,
}

impl NoticeArrival {
    /// A notification that arrives now; `call` as in [`NoticeArrival::call`].
    #[must_use]
    pub fn now(call: Option<u64>) -> Self {
        Self {
            call,
            number: EventNumber::next(),
        }
    }
}

impl Notice {
    /// The level of a log message; `None` for other notices and unknown levels.
    #[must_use]
    pub fn level(&self) -> Option<LogLevel> {
        if self.kind != NoticeKind::Log {
            return None;
        }
        let message = Message::parse(self.bytes.clone(), json::MAX_DEPTH).ok()?;
        LogLevel::parse(&json::string(message.param("level")?)?)
    }

    /// A change notice for `what`: `tools`, `prompts` or `resources`.
    #[must_use]
    pub fn list_changed(what: &'static str) -> Self {
        let bytes = match what {
            "tools" => {
                br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.as_slice()
            }
            "prompts" => br#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
            _ => br#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
        };
        Self {
            kind: NoticeKind::ListChanged { what },
            bytes: Bytes::from_static(bytes),
        }
    }

    /// A notice that the resource `uri` may have changed.
    #[must_use]
    pub fn resource_updated(uri: &str) -> Self {
        let params = json::object([("uri", json::quote(uri))]);
        let bytes = rpc::notification("notifications/resources/updated", &params);
        Self {
            kind: NoticeKind::ResourceUpdated {
                uri: uri.to_owned(),
            },
            bytes: bytes.into(),
        }
    }

    /// A notice that the URL elicitation `id` (JSON text) is over.
    #[must_use]
    pub fn elicitation_complete(id: &str) -> Self {
        let params = json::object([("elicitationId", id)]);
        let bytes = rpc::notification("notifications/elicitation/complete", &params);
        Self {
            kind: NoticeKind::ElicitationComplete,
            bytes: bytes.into(),
        }
    }
}
