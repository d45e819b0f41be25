//! `MetadataCache`: the metadata of one issuer, cached for an hour.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::server_metadata::ServerMetadata;

/// How long metadata is cached.
const BELIEVED: Duration = Duration::from_hours(1);
/// How long a failure to fetch it is cached.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Metadata younger than this is kept when the issuer fails.
const JUST_FOUND: Duration = Duration::from_mins(1);

/// The metadata, or why there is none.
pub(super) type FoundServer<E> = Result<Arc<ServerMetadata>, E>;

/// The metadata of one issuer, cached.
#[derive(Debug)]
pub(super) struct MetadataCache<E> {
    /// What was fetched last, and when. The lock is held during a fetch, so that parallel requests share one.
    found: Mutex<Option<(FoundServer<E>, Instant)>>,
}

impl<E> Default for MetadataCache<E> {
    fn default() -> Self {
        Self {
            found: Mutex::default(),
        }
    }
}

impl<E: Clone> MetadataCache<E> {
    /// A cache with metadata that has just been fetched.
    #[cfg(test)]
    pub(super) fn knowing(server: ServerMetadata) -> Self {
        let found = (Ok(Arc::new(server)), Instant::now());
        Self {
            found: Mutex::new(Some(found)),
        }
    }

    /// The metadata: that of `fetch` at most once an hour, or once in five seconds while that fails.
    ///
    /// # Errors
    /// The error of the last fetch.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the fetch under way; the next caller that waits fetches.
    pub(super) async fn get(
        &self,
        fetch: impl Future<Output = Result<ServerMetadata, E>>,
    ) -> FoundServer<E> {
        let mut found = self.found.lock().await;
        if let Some((known, at)) = &*found {
            let lasts = if known.is_ok() {
                BELIEVED
            } else {
                AFTER_FAILURE
            };
            if at.elapsed() < lasts {
                return known.clone();
            }
        }
        let fetched = fetch.await.map(Arc::new);
        *found = Some((fetched.clone(), Instant::now()));
        fetched
    }

    /// The metadata that was found in the last hour. Does not wait: `None` also while a search is under way.
    pub(super) fn known(&self) -> Option<Arc<ServerMetadata>> {
        let found = self.found.try_lock().ok()?;
        let (known, at) = (*found).as_ref()?;
        let known = known.as_ref().ok()?;
        (at.elapsed() < BELIEVED).then(|| Arc::clone(known))
    }

    /// A search under way, until the result is dropped.
    #[cfg(test)]
    pub(super) async fn searching(&self) -> impl Sized {
        self.found.lock().await
    }

    /// Drops the metadata, which may have changed, unless it is younger than a minute.
    pub(super) async fn forget_old(&self) {
        let mut found = self.found.lock().await;
        *found = found.take().filter(|(_, at)| at.elapsed() < JUST_FOUND);
    }
}
