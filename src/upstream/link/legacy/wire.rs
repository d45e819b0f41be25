//! The carrier under a legacy connection: one child, or one HTTP session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::timeout;

use crate::config;
use crate::upstream::carrier::duplex::DuplexSender;
use crate::upstream::carrier::http::http_session::HttpSession;
use crate::upstream::error::LinkError;

/// An open carrier.
#[derive(Debug)]
pub(super) enum LegacyWire {
    Duplex(DuplexSender),
    Http(Arc<HttpSession>),
}

impl LegacyWire {
    /// Sends a notification or a response, within the `total_timeout` of the upstream: a child that does not read while
    /// it works reads again when the call is over. Over HTTP, where each message is a request of its own, within the
    /// `connect_timeout`.
    ///
    /// # Errors
    /// [`LinkError::Timeout`] when it was not taken by then, and those of sending.
    ///
    /// # Cancel safety
    /// A dropped send to a child has sent nothing or the whole message.
    pub(super) async fn send(
        &self,
        message: Bytes,
        upstream: &config::UpstreamConfig,
    ) -> Result<(), LinkError> {
        let (sent, limit) = match self {
            Self::Duplex(duplex) => (duplex.tell(message).left_future(), upstream.total_timeout),
            Self::Http(http) => (http.send(message).right_future(), upstream.connect_timeout),
        };
        timeout(limit, sent)
            .await
            .unwrap_or(Err(LinkError::Timeout))
    }

    /// Ready when the pipe is closed; never over HTTP.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn until_closed(&self) {
        match self {
            Self::Duplex(duplex) => duplex.closed().cancelled().await,
            Self::Http(_) => std::future::pending().await,
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
