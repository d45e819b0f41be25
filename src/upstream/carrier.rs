//! What links are made over, and what they are made with, in either era.

use std::sync::Arc;

use bytes::Bytes;

use super::error::LinkError;
use super::http::client::HttpClient;
use super::http::wire::Bounds;
use super::stdio::{Lines, OpenError, StdioConnection, StdioRuntime};
use crate::call::{ClientCapabilities, Intake, OwnerKey};
use crate::config;
use crate::lifecycle::Tasks;
use crate::protocol::Revision;

/// How connections of an upstream are made.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// Child processes.
    Stdio(Arc<StdioRuntime>),
    /// Streamable HTTP.
    Http(Box<HttpClient>, Bounds),
}

/// What a link is made with.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) upstream: Arc<config::Upstream>,
    pub(super) name: Arc<str>,
    pub(super) carrier: Carrier,
    pub(super) owner: OwnerKey,
    pub(super) capabilities: ClientCapabilities,
    pub(super) client_info: Bytes,
    /// The legacy revision offered in a handshake.
    pub(super) offer: Revision,
    pub(super) intake: Arc<dyn Intake>,
    pub(super) exclusive: bool,
    pub(super) tasks: Tasks,
    pub(super) message_depth: usize,
}

/// A child that was started to find out what it speaks.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: StdioConnection,
    pub(super) lines: Lines,
    /// Whether it was sent `initialize` already, under id 1.
    pub(super) greeted: bool,
    /// Its answer to that, if it came already.
    pub(super) answer: Option<crate::protocol::Message>,
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::AtCapacity { retry_after } => Self::AtCapacity { retry_after },
            OpenError::Backoff {
                last_words: Some(words),
                ..
            } => Self::Unreachable(format!(
                "its process keeps crashing; its last words: {words}"
            )),
            other => Self::Unreachable(other.to_string()),
        }
    }
}

impl Started {
    /// Starts a child and says nothing to it.
    pub(super) async fn new(
        runtime: &Arc<StdioRuntime>,
        settings: &Settings,
    ) -> Result<Self, LinkError> {
        let (child, lines) = runtime.open(settings.owner, &settings.upstream).await?;
        Ok(Self {
            child,
            lines,
            greeted: false,
            answer: None,
        })
    }
}
