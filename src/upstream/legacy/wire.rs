//! The carrier under a legacy connection: one child, or one HTTP session.

use std::sync::Arc;

use bytes::Bytes;

use crate::upstream::error::LinkError;
use crate::upstream::http::client::HttpClient;
use crate::upstream::http::wire::{Bounds, HttpWire};
use crate::upstream::stdio::{OpenError, StdioConnection, StdioRuntime};

/// How connections of an upstream are made.
#[derive(Debug, Clone)]
pub(crate) enum Carrier {
    /// Child processes.
    Stdio(Arc<StdioRuntime>),
    /// Streamable HTTP.
    Http(Box<HttpClient>, Bounds),
}

/// An open carrier.
#[derive(Debug)]
pub(super) enum Wire {
    Stdio(StdioConnection),
    Http(Arc<HttpWire>),
}

impl Wire {
    /// Sends a notification or a response.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        match self {
            Self::Stdio(child) => child.send(message).await.map_err(|_| LinkError::Lost {
                last_words: child.last_words(),
            }),
            Self::Http(http) => http.send(message).await,
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Stdio(child) => child.close().await,
            Self::Http(http) => http.close().await,
        }
    }
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
