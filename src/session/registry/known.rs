//! Ids that were opened before: an id with the same text is not opened again.

use std::hash::BuildHasher;

use crate::session::{Session, SessionId};
use crate::sync::fast_maps::{FastDashMap, FastState};

/// The contents of the ids of live sessions, by the digest of their text; at most one entry for
/// each live session. An entry proves nothing: text, binding and endpoint are still compared with
/// those of the session.
#[derive(Debug, Default)]
pub(super) struct KnownIds {
    read: FastDashMap<u64, SessionId>,
    digest: FastState,
}

impl KnownIds {
    /// The cached `SessionId` for a hash of `id`; the caller must compare the id itself.
    pub(super) fn get(&self, id: &str) -> Option<SessionId> {
        self.read.get(&self.digest.hash_one(id)).map(|read| *read)
    }

    /// Caches the `SessionId` read from the session's id.
    pub(super) fn keep(&self, session: &Session, read: SessionId) {
        self.read.insert(self.digest.hash_one(session.id()), read);
    }

    /// Forgets the session's id.
    pub(super) fn forget(&self, session: &Session) {
        let digest = self.digest.hash_one(session.id());
        self.read
            .remove_if(&digest, |_, read| read.key == session.key());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.read.len()
    }
}
