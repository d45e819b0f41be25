//! `SetupError`: why upstreams cannot be made ready.

use crate::grants::AccountSetupError;
use crate::upstream::carrier::http::client_error::ClientError;

/// Why upstreams cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An HTTP client cannot be made.
    #[error("upstream {upstream:?}: {source}")]
    Client {
        /// Which upstream.
        upstream: String,
        /// Why.
        source: ClientError,
    },
    /// An account cannot be set up.
    #[error("upstream {upstream:?}: auth")]
    Account {
        /// Which upstream.
        upstream: String,
        /// Why.
        source: AccountSetupError,
    },
    /// The helper processes for children cannot be started.
    #[error("helper processes for stdio upstreams cannot be started")]
    Stdio(#[from] std::io::Error),
}
