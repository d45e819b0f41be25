//! A session at an upstream, as another process could continue it.

use std::sync::Arc;

use super::{LogLevel, ServerDeclaration};
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

/// What the link of an adopted session begins with.
#[derive(Debug, Clone)]
pub struct AdoptedLink {
    /// The session at the upstream, where it can be continued.
    pub continuation: Option<UpstreamContinuation>,
    /// Where ids of requests begin, so that none is given out twice in the upstream's session.
    pub first_id: u64,
    /// Resources that the client follows, as the upstream spells them.
    pub followed: Vec<String>,
    /// The log level of the client, if it has set one.
    pub level: Option<LogLevel>,
}

impl AdoptedLink {
    /// The same for the account with this number: what another account had is not continued.
    #[must_use]
    pub fn for_account(self, connection: i64) -> Self {
        let is_own = |one: &UpstreamContinuation| one.connection == connection;
        Self {
            continuation: self.continuation.filter(is_own),
            ..self
        }
    }
}
