//! The owner of an implicit session of a modern client: the first replica that asks for a session without one.

use std::sync::Arc;

use super::{NamedSession, SessionAdopter, SessionPlace};
use crate::cause::chain;
use crate::ownership::Ownership;
use crate::redis_client::RedisFailure;
use crate::session::LiveHome;
use crate::store::events::SessionKey;
use crate::store::records::RecordState;

impl SessionAdopter {
    /// Finds the replica that has an implicit session. Claims a session without owner, and adopts one whose owner is lost.
    pub(super) async fn look_home(&self, named: &NamedSession) -> SessionPlace {
        let key = named.handle.key;
        match self.sessions.live_home(key) {
            LiveHome::Joinable(by) if self.stores.fence.is_open() => return SessionPlace::Own(by),
            LiveHome::Joinable(_) | LiveHome::Absent => {}
            LiveHome::Leaving => return SessionPlace::Unknown,
        }
        // An adoption whose answer was lost is finished first: its record has the state of the session.
        if self.stores.fence.is_open()
            && !self.work.unfinished.contains_key(&key)
            && let Some(successor) = self.next_owner()
            && let Ok(state) = self.stores.records.read(key).await
        {
            return self.leave_to_others(key, &state, successor);
        }
        let owner = match self.owner_of_home(key).await {
            Ok(Some(owner)) => owner,
            Ok(None) => return SessionPlace::Unknown,
            Err(failure) => {
                tracing::debug!(error = chain(&failure), "implicit session not claimed");
                return SessionPlace::Unknown;
            }
        };
        if owner.is_given_up() {
            return match self.next_owner() {
                Some(node) => SessionPlace::At(Ownership { node, ..owner }),
                None if self.may_adopt() => self.adopt_given_up(named, owner).await,
                None => SessionPlace::Unknown,
            };
        }
        let is_own = owner.node == self.cluster.node();
        if !is_own && self.cluster.is_living(owner.node) {
            self.work.unfinished.invalidate(&key);
            return SessionPlace::At(owner);
        }
        // Nothing could be sent for the session here.
        if !self.may_adopt() {
            return SessionPlace::Unknown;
        }
        if !is_own {
            return if self.cluster.is_lost(owner.node).await {
                self.adopt(named, owner).await
            } else {
                SessionPlace::Unknown
            };
        }
        let Some(former) = self.work.unfinished.get(&key) else {
            return SessionPlace::Own(owner);
        };
        match self.stores.records.read(key).await {
            Ok(RecordState::Owned {
                by,
                highest_stream,
                record: Some(record),
            }) => {
                let found = (by, highest_stream, *record);
                self.finish(named, found, former).await
            }
            Ok(RecordState::Owned {
                by, record: None, ..
            }) if by.node == owner.node => {
                self.work.unfinished.invalidate(&key);
                SessionPlace::Own(by)
            }
            _ => SessionPlace::Unknown,
        }
    }

    /// While this replica drains, leaves an implicit session that is not open here to another replica: to its owner, or else
    /// to `successor`.
    fn leave_to_others(
        &self,
        key: SessionKey,
        state: &RecordState,
        successor: u32,
    ) -> SessionPlace {
        if self.sessions.live_home(key) != LiveHome::Absent {
            // The session was opened while the record was read.
            return SessionPlace::Unknown;
        }
        // A session over age may still be here, for its running calls alone.
        self.sessions.release(key);
        match state {
            RecordState::Owned { by, .. } if by.node == self.cluster.node() => {
                if self.work.claimed.contains_key(&key) {
                    return SessionPlace::Unknown;
                }
                // It was claimed, and never opened: nothing else would remove the claim.
                self.stores.writer.end_adopted(key, *by, false);
            }
            RecordState::Owned { by, .. } if self.cluster.is_living(by.node) => {
                return SessionPlace::At(*by);
            }
            _ => {}
        }
        // The successor adopts the session, or claims it once the record is gone.
        SessionPlace::At(Ownership {
            node: successor,
            epoch: 0,
        })
    }

    /// The owner of an implicit session; claims a session without owner. `None` if Redis may have lost the record of the
    /// owner, or if this replica cannot claim.
    async fn owner_of_home(&self, key: SessionKey) -> Result<Option<Ownership>, RedisFailure> {
        if self.may_adopt() && self.has_all_records() {
            let own = self.sessions.ownership();
            let owner = self.stores.records.claim(key, own).await?;
            if owner.node == own.node {
                self.work.claimed.insert(key, ());
            }
            return Ok(Some(owner));
        }
        Ok(match self.stores.records.read(key).await? {
            RecordState::Owned { by, .. } => Some(by),
            RecordState::Absent | RecordState::Over => None,
        })
    }

    /// Whether living owners have written their records again, if Redis has lost any since this replica began.
    fn has_all_records(&self) -> bool {
        if self.cluster.is_redis_settled() {
            return true;
        }
        self.note_first_run();
        let server = self.cluster.redis().server();
        let run = Arc::clone(&server.borrow().run_id);
        self.work.first_run.get() == Some(&run)
    }
}
