//! A session at an upstream, as another process could continue it.

use std::sync::Arc;

use super::ServerDeclaration;
use crate::secret::Secret;

/// A session at an HTTP upstream.
#[derive(Debug, Clone)]
pub struct UpstreamContinuation {
    /// The configured name.
    pub upstream: String,
    /// What the upstream declared in it.
    pub declared: Arc<ServerDeclaration>,
    /// Its `Mcp-Session-Id`.
    pub id: Secret,
    /// The number of the connected account that the session is of; `0` where callers have none. With another account the
    /// session is not continued.
    pub connection: i64,
}

impl PartialEq for UpstreamContinuation {
    fn eq(&self, other: &Self) -> bool {
        self.upstream == other.upstream
            && self.declared == other.declared
            && self.id.expose() == other.id.expose()
            && self.connection == other.connection
    }
}
