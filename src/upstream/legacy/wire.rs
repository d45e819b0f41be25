//! The carrier under a legacy connection: one child, or one HTTP session.

use std::sync::Arc;

use bytes::Bytes;

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
    /// Sends a notification or a response.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        match self {
            Self::Duplex(duplex) => duplex.send(message).await,
            Self::Http(http) => http.send(message).await,
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Duplex(duplex) => duplex.close().await,
            Self::Http(http) => http.close().await,
        }
    }
}
