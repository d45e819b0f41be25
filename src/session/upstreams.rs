//! The upstreams of a session: its links to them.

use std::sync::Arc;

use super::{Session, lock};
use crate::call::UpstreamLink;

/// A link, and the number of the connected account that it was made for; `0` where sessions have none.
#[derive(Debug)]
pub(super) struct SessionLink {
    connection: i64,
    pub(super) link: Arc<dyn UpstreamLink>,
}

impl Session {
    /// The session's link to `upstream`, if open.
    #[must_use]
    pub fn link(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.links)
            .get(upstream)
            .map(|it| Arc::clone(&it.link))
    }

    /// The session's link to `upstream`, made by `make` for the account of `connection` if absent; `None` after the
    /// session's end.
    pub fn link_or(
        &self,
        upstream: &Arc<str>,
        connection: i64,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        if self.closed.is_cancelled() {
            return None;
        }
        let entry = || SessionLink {
            connection,
            link: make(),
        };
        let it = links.entry(Arc::clone(upstream)).or_insert_with(entry);
        Some(Arc::clone(&it.link))
    }

    /// Takes the session's link to `upstream` if it was made for another account than that of `connection`; the next
    /// call makes another.
    #[must_use]
    pub fn take_link_of_another(
        &self,
        upstream: &str,
        connection: i64,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        let is_of_another = links.get(upstream)?.connection != connection;
        let taken = is_of_another.then(|| links.remove(upstream)).flatten();
        taken.map(|it| it.link)
    }

    /// Every upstream link of this session.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = lock(&self.links);
        links.values().map(|it| Arc::clone(&it.link)).collect()
    }
}
