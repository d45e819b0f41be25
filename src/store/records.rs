//! Session records in the shared store: state for adoption by another replica, and ownership.
//!
//! A record is a head in clear, which scripts compare, and a sealed body. The head has the same layout in every
//! version: version of the head, ownership, highest stream with an event, state.

mod format;
mod record_head;
mod record_task;
mod shared;
mod writer;

use std::time::Duration;

use bytes::Bytes;

pub use shared::{Adoption, RecordState, SharedRecords};
pub use writer::{RecordSource, RecordWriter};

use crate::call::{BindingKey, ClientCapabilities, LogLevel, OwnerKey, UpstreamContinuation};
use crate::protocol::Revision;

/// The state that another replica needs to adopt a session.
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
    /// The effective capabilities of the client.
    pub capabilities: RecordedCapabilities,
    /// JSON text of `clientInfo`.
    pub client_info: Bytes,
    /// Followed resources: upstream, slash, the upstream's URI.
    pub subscriptions: Vec<String>,
    /// Sessions at upstreams that another replica can continue.
    pub upstreams: Vec<UpstreamContinuation>,
    /// Upstreams with an open connection that no other replica can continue.
    pub unshared: Vec<String>,
    /// Tasks of the client, the oldest first.
    pub tasks: Vec<RecordedTask>,
}

/// A task of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedTask {
    /// The `taskId` shown to the client.
    pub handle: String,
    /// The upstream whose tool the task runs.
    pub upstream: String,
    /// The side that runs it.
    pub site: RecordedSite,
}

/// The side that runs a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedSite {
    /// By its upstream, under this `taskId`.
    Upstream(String),
    /// By the owner of the session, whose memory has its outcome.
    Gateway {
        /// Since the Unix epoch.
        created: Duration,
        /// The lifetime of the task, from its creation.
        ttl: Duration,
    },
}

/// The parts of [`ClientCapabilities`].
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
    use std::sync::Arc;

    use super::*;
    use crate::call::{Principal, ServerDeclaration};
    use crate::secret::Secret;

    /// A declaration with a value in each field that is recorded.
    pub(super) fn declaration() -> ServerDeclaration {
        let object = |text: &'static str| Bytes::from_static(text.as_bytes());
        let (capabilities, info) = (r#"{"tools":{"listChanged":true}}"#, r#"{"name":"files"}"#);
        let instructions = Some("Read before you write.".to_owned());
        let revision = Revision::V2025_03_26;
        ServerDeclaration::new(revision, object(capabilities), object(info), instructions)
    }

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
                declared: Arc::new(declaration()),
                id: Secret::new("upstream-session"),
                connection: 3,
            }],
            unshared: vec!["shell".to_owned()],
            tasks: vec![
                RecordedTask {
                    handle: "t-1".to_owned(),
                    upstream: "files".to_owned(),
                    site: RecordedSite::Upstream("17".to_owned()),
                },
                RecordedTask {
                    handle: "t-2".to_owned(),
                    upstream: "files".to_owned(),
                    site: RecordedSite::Gateway {
                        created: Duration::from_millis(1_700_000_000_001),
                        ttl: Duration::from_mins(1),
                    },
                },
            ],
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
