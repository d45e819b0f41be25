//! `SessionIndex`: the names in the lists of one session.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;

use crate::protocol::methods::ListKind;
use crate::store::events::SessionKey;
use crate::store::lists::ContentDigest;
use crate::sync::event_number::EventNumber;
use crate::translate::naming::NameIndex;

/// Indexes of names kept at most.
const INDEXES: u64 = 1024;
/// How long an index is believed.
const INDEX_LIFE: Duration = Duration::from_secs(30);

/// The index of names from the lists of one session.
#[derive(Debug, Clone)]
pub(super) struct SessionIndex {
    pub(super) made: Instant,
    /// The last change that the session knew of before its lists were read; see
    /// [`ListValidity::last_recorded`](crate::session::ListValidity::last_recorded).
    pub(super) changes: Option<EventNumber>,
    /// Whether no upstream was missing.
    pub(super) is_whole: bool,
    pub(super) index: Arc<NameIndex>,
}

/// The last index of each session. Clones share one cache.
pub(super) type SessionIndexes = Cache<(SessionKey, ListKind), SessionIndex>;

/// An empty cache of them.
pub(super) fn session_indexes() -> SessionIndexes {
    Cache::builder()
        .max_capacity(INDEXES)
        .time_to_live(INDEX_LIFE)
        .build()
}

/// An empty cache of indexes by the digest of their lists.
pub(super) fn list_indexes() -> Cache<ContentDigest, Arc<NameIndex>> {
    Cache::builder().max_capacity(INDEXES).build()
}
