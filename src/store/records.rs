//! Session records in the shared store: state for adoption by another replica, and ownership.
//!
//! A record is a head in clear, which scripts compare, and a sealed body. The head has the same layout in every
//! version: version of the head, ownership, highest stream with an event, state.

mod format;
mod record_task;
mod shared;
mod writer;

use std::time::Duration;

use bytes::Bytes;

pub use shared::{Adoption, RecordState, SharedRecords};
pub use writer::{RecordSource, RecordWriter};

use crate::call::{BindingKey, ClientCapabilities, LogLevel, OwnerKey, UpstreamContinuation};
use crate::protocol::Revision;

/// What another replica needs to adopt a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    /// The binding that may use it.
    pub binding: BindingKey,
    /// The owner whose quota it counts against.
    pub owner: OwnerKey,
    /// Part of every event id.
    pub tag: u64,
    /// When it was opened, since the Unix epoch.
    pub opened: Duration,
    /// The client's last use, since the Unix epoch, as of this record.
    pub used: Duration,
    /// Whether the client has sent `notifications/initialized`.
    pub is_initialized: bool,
    /// Name of its endpoint.
    pub endpoint: String,
    /// The negotiated revision.
    pub revision: Revision,
    /// The client's log level, if set.
    pub level: Option<LogLevel>,
    /// What the client can be asked.
    pub capabilities: RecordedCapabilities,
    /// JSON text of `clientInfo`.
    pub client_info: Bytes,
    /// Followed resources: upstream, slash, the upstream's URI.
    pub subscriptions: Vec<String>,
    /// Sessions at upstreams that another replica can continue.
    pub upstreams: Vec<UpstreamContinuation>,
}

/// What [`ClientCapabilities`] are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCapabilities {
    /// JSON text of what the client's revision can express.
    pub own: Bytes,
    /// The larger declaration, for upstreams of one revision.
    pub beyond: Option<(Revision, Bytes)>,
    /// Whether sampling includes the client's context.
    pub with_context: bool,
}

impl From<&ClientCapabilities> for RecordedCapabilities {
    fn from(capabilities: &ClientCapabilities) -> Self {
        let (own, beyond, with_context) = capabilities.parts();
        let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Self {
            own: text(own),
            beyond: beyond.map(|(revision, declared)| (revision, text(declared))),
            with_context,
        }
    }
}

impl From<&RecordedCapabilities> for ClientCapabilities {
    fn from(recorded: &RecordedCapabilities) -> Self {
        let mut capabilities = Self::read(recorded.own.clone());
        if let Some((revision, declared)) = &recorded.beyond {
            capabilities = capabilities.with_beyond(*revision, declared.clone());
        }
        if recorded.with_context {
            capabilities = capabilities.with_context();
        }
        capabilities
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;
    use crate::secret::Secret;

    /// A record with a value in each field.
    pub(super) fn record() -> SessionRecord {
        let principal = Principal::new("https://issuer", "alice", "client", Vec::new(), None);
        SessionRecord {
            binding: principal.binding(),
            owner: principal.owner(),
            tag: 0xdead_beef,
            opened: Duration::from_millis(1_790_000_000_123),
            used: Duration::from_millis(1_790_000_100_456),
            is_initialized: true,
            endpoint: "mcp".to_owned(),
            revision: Revision::V2025_11_25,
            level: Some(LogLevel::Warning),
            capabilities: RecordedCapabilities {
                own: Bytes::from_static(br#"{"roots":{}}"#),
                beyond: Some((
                    Revision::V2025_06_18,
                    Bytes::from_static(br#"{"roots":{},"sampling":{}}"#),
                )),
                with_context: true,
            },
            client_info: Bytes::from_static(br#"{"name":"test","version":"1"}"#),
            subscriptions: vec!["files/file:///a".to_owned(), "files/file:///b".to_owned()],
            upstreams: vec![UpstreamContinuation {
                upstream: "files".to_owned(),
                revision: Revision::V2025_03_26,
                id: Secret::new("upstream-session"),
            }],
        }
    }

    #[test]
    fn capabilities_are_rebuilt_from_their_record() {
        for recorded in [
            record().capabilities,
            RecordedCapabilities {
                own: Bytes::from_static(b"{}"),
                beyond: None,
                with_context: false,
            },
        ] {
            let rebuilt = ClientCapabilities::from(&recorded);
            assert_eq!(RecordedCapabilities::from(&rebuilt), recorded);
            let again = ClientCapabilities::from(&RecordedCapabilities::from(&rebuilt));
            assert_eq!(again.fingerprint(), rebuilt.fingerprint());
        }
    }

    #[test]
    fn record_shows_no_upstream_session() {
        assert!(!format!("{:?}", record()).contains("upstream-session"));
    }
}
