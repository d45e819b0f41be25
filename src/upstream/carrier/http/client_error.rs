//! Why a configuration gives no HTTP client.

use std::io;

/// Why no client can be made for an upstream.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("the url cannot be used: {0}")]
    Url(#[from] http::uri::InvalidUri),
    /// A configured header cannot be sent.
    #[error("header {0:?} cannot be sent")]
    Header(String),
    /// The URL names no host.
    #[error("the url names no host")]
    Host,
    /// The trust anchors cannot be read.
    #[error("ca_file cannot be read: {0}")]
    TrustAnchors(String),
    /// No TLS configuration can be made.
    #[error("tls: {0}")]
    Tls(#[from] io::Error),
}
