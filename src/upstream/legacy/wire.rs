//! The carrier under a legacy connection: one child, or one HTTP session.

use std::sync::Arc;

use bytes::Bytes;

use crate::upstream::error::LinkError;
use crate::upstream::http::wire::HttpWire;
use crate::upstream::stdio::StdioConnection;

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
