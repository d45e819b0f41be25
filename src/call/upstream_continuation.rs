//! A session at an upstream, as another process could continue it.

use crate::protocol::Revision;
use crate::secret::Secret;

/// A session at an HTTP upstream.
#[derive(Debug, Clone)]
pub struct UpstreamContinuation {
    /// The configured name.
    pub upstream: String,
    /// The revision negotiated with it.
    pub revision: Revision,
    /// Its `Mcp-Session-Id`.
    pub id: Secret,
}

impl PartialEq for UpstreamContinuation {
    fn eq(&self, other: &Self) -> bool {
        self.upstream == other.upstream
            && self.revision == other.revision
            && self.id.expose() == other.id.expose()
    }
}
