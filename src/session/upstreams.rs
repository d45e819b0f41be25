//! `SessionLinks`: the links of a session to its upstreams.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::lock;
use crate::call::UpstreamLink;

/// A link, and the number of the connected account that it was made for; `0` where sessions have none.
#[derive(Debug)]
struct SessionLink {
    connection: i64,
    link: Arc<dyn UpstreamLink>,
}

/// Links by the names of upstreams. Ordered: most sessions have few, and a name is hashed no quicker than it is found.
#[derive(Debug, Default)]
pub struct SessionLinks(Mutex<BTreeMap<Arc<str>, SessionLink>>);

impl SessionLinks {
    /// The link to `upstream`, if open.
    #[must_use]
    pub fn get(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.0).get(upstream).map(|it| Arc::clone(&it.link))
    }

    /// The link to `upstream`, made by `make` for the account of `connection` if absent; `None` after the session was
    /// `closed`.
    pub fn get_or(
        &self,
        closed: &CancellationToken,
        upstream: &Arc<str>,
        connection: i64,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.0);
        // Closed before the links are taken out: none is made afterwards.
        if closed.is_cancelled() {
            return None;
        }
        let entry = || SessionLink {
            connection,
            link: make(),
        };
        let it = links.entry(Arc::clone(upstream)).or_insert_with(entry);
        Some(Arc::clone(&it.link))
    }

    /// Takes the link to `upstream` if it was made for another account than that of `connection`; the next call makes
    /// another.
    #[must_use]
    pub fn take_of_another(
        &self,
        upstream: &str,
        connection: i64,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.0);
        let is_of_another = links.get(upstream)?.connection != connection;
        let taken = is_of_another.then(|| links.remove(upstream)).flatten();
        taken.map(|it| it.link)
    }

    /// Every link.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = lock(&self.0);
        links.values().map(|it| Arc::clone(&it.link)).collect()
    }

    /// Takes every link out, at the end of the session.
    pub(super) fn take_all(&self) -> Vec<Arc<dyn UpstreamLink>> {
        let links = std::mem::take(&mut *lock(&self.0));
        links.into_values().map(|it| it.link).collect()
    }
}
