//! Why bytes are no message.

use super::json::{self, JsonFlaw};

/// Why a message is refused that has more values than `limits.json_values`.
pub(super) const TOO_MANY_VALUES: &str =
    "more values in the message than `limits.json_values` allows";

/// Why a message is refused that has more members to read than are kept.
pub(super) const TOO_MANY_MEMBERS: &str =
    "more than 1024 members in the message, \"params\" and \"_meta\"";

/// Why bytes are no JSON-RPC message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// Not exactly one JSON value.
    #[error("not valid JSON at byte {offset}")]
    NotJson {
        /// Where the first flaw is, in bytes.
        offset: usize,
    },
    /// A repeated member in an object that the gateway reads, or two spellings on which parsers differ.
    #[error("ambiguous member {:?}", json::shown(.member))]
    Ambiguous {
        /// The member.
        member: String,
        /// JSON text of the id to answer under, when the message has one `id` and is a request.
        id: Option<String>,
    },
    /// Nested deeper than allowed.
    #[error("nested too deeply")]
    TooDeep {
        /// JSON text of the id to answer under, when the message has one `id` and is a request.
        id: Option<String>,
    },
    /// JSON, but no JSON-RPC message.
    #[error("invalid message: {reason}")]
    InvalidRequest {
        /// What is wrong, for the sender.
        reason: &'static str,
        /// JSON text of the id to answer under, when one was readable.
        id: Option<String>,
    },
    /// More messages in one array than allowed.
    #[error("too many messages in one array")]
    TooMany,
}

impl DecodeError {
    /// Whether the answer is a parse error (-32700) and not an invalid request (-32600).
    /// Spec: SPEC T-06.
    #[must_use]
    pub fn is_parse_error(&self) -> bool {
        match self {
            Self::NotUtf8
            | Self::NotJson { .. }
            | Self::Ambiguous { .. }
            | Self::TooDeep { .. } => true,
            Self::InvalidRequest { .. } | Self::TooMany => false,
        }
    }

    /// JSON text of the id to answer under, when one was readable.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { id, .. } | Self::Ambiguous { id, .. } | Self::TooDeep { id } => {
                id.as_deref()
            }
            Self::NotUtf8 | Self::NotJson { .. } | Self::TooMany => None,
        }
    }

    /// Whether one message is refused for a bound of ours alone: it may be right in itself.
    #[must_use]
    pub fn is_over_bound(&self) -> bool {
        match self {
            Self::TooDeep { .. } => true,
            Self::InvalidRequest { reason, .. } => {
                [TOO_MANY_VALUES, TOO_MANY_MEMBERS].contains(reason)
            }
            Self::NotUtf8 | Self::NotJson { .. } | Self::Ambiguous { .. } | Self::TooMany => false,
        }
    }

    pub(super) fn from_flaw(flaw: JsonFlaw, offset: usize) -> Self {
        match flaw {
            JsonFlaw::Syntax => Self::NotJson { offset },
            JsonFlaw::TooDeep => Self::TooDeep { id: None },
            JsonFlaw::TooMany => Self::invalid(TOO_MANY_VALUES),
        }
    }

    pub(super) fn invalid(reason: &'static str) -> Self {
        Self::InvalidRequest { reason, id: None }
    }
}
