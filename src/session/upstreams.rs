//! The upstreams of a session: its links to them.

use std::sync::Arc;

use super::{Session, lock};
use crate::call::UpstreamLink;

impl Session {
    /// The session's link to `upstream`, if open.
    #[must_use]
    pub fn link(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.links).get(upstream).map(Arc::clone)
    }

    /// The session's link to `upstream`, made by `make` if absent; `None` after the session's end.
    pub fn link_or(
        &self,
        upstream: &Arc<str>,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        if self.closed.is_cancelled() {
            return None;
        }
        Some(Arc::clone(
            links.entry(Arc::clone(upstream)).or_insert_with(make),
        ))
    }

    /// Every upstream link of this session.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<dyn UpstreamLink>> {
        lock(&self.links).values().map(Arc::clone).collect()
    }
}
