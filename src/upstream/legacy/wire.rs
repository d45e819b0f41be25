//! The carrier under a legacy connection: one child, or one HTTP session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::upstream::duplex::Duplex;
use crate::upstream::error::LinkError;
use crate::upstream::http::wire::HttpWire;

/// An open carrier.
#[derive(Debug)]
pub(super) enum Wire {
    Duplex(Duplex),
    Http(Arc<HttpWire>),
}

impl Wire {
    /// Sends a notification or a response; over HTTP, where it is a request of its own, within `limit`.
    pub(super) async fn send(&self, message: Bytes, limit: Duration) -> Result<(), LinkError> {
        match self {
            Self::Duplex(duplex) => duplex.tell(message).await,
            Self::Http(http) => timeout(limit, http.send(message))
                .await
                .unwrap_or(Err(LinkError::Timeout)),
        }
    }

    /// Ends it; an upstream that does not take leave within `limit` is left without.
    pub(super) async fn close(&self, limit: Duration) {
        match self {
            Self::Duplex(duplex) => duplex.close().await,
            Self::Http(http) => drop(timeout(limit, http.close()).await),
        }
    }
}
