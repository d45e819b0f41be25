//! Implicit sessions with a record, as requests find them while this replica has them and while it hands them over.

use super::SessionRegistry;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::session::{ImplicitHome, ImplicitSessionKey, SessionUse};
use crate::store::events::SessionKey;
use crate::store::quotas::QuotaClaim;

/// What this replica has of the implicit session with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveHome {
    /// Nothing that a request may join.
    Absent,
    /// The session, whose record is kept with this ownership.
    Joinable(Ownership),
    /// The session, which is being handed over: another replica may own it by now.
    Leaving,
}

impl SessionRegistry {
    /// What lives here of the implicit session with a record.
    #[must_use]
    pub fn live_home(&self, record: SessionKey) -> LiveHome {
        let found = self.implicit_sessions.of_record(record);
        if found.is_some_and(|session| session.may_be_given_up()) {
            return LiveHome::Leaving;
        }
        let by = self.owner_of_record(record);
        by.map_or(LiveHome::Absent, LiveHome::Joinable)
    }

    /// Claims a place for the implicit session of a caller, until it is opened, as [`claim_place`](Self::claim_place) does.
    /// `None` also where the session lives here.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim_implicit(
        &self,
        (principal, endpoint): (&Principal, &Endpoint),
        declares: &str,
        has_home: bool,
    ) -> Option<QuotaClaim> {
        self.in_sum.get()?;
        let recorded = self.implicit_key(principal, endpoint, declares);
        let sessions = &self.implicit_sessions;
        let own = (!has_home).then(|| sessions.key(principal, endpoint, declares, false));
        let mut keys = std::iter::once(recorded).chain(own);
        if keys.any(|key| self.recorded(&key).is_some()) {
            return None;
        }
        self.claim_place(principal.owner()).await
    }

    /// The record of the implicit session that is found by `key`, for a request, which is counted until the guard is
    /// dropped. `None` where the session does not live here, or is being handed over. What `listens` is not admitted either
    /// once sessions are handed over: it would keep its session here.
    #[must_use]
    pub fn enter_home(
        &self,
        key: &ImplicitSessionKey,
        listens: bool,
    ) -> Option<(ImplicitHome, SessionUse)> {
        let session = self.recorded(key)?;
        let home = session.implicit.as_ref()?.home?;
        if listens && self.leaving.has_begun() {
            return None;
        }
        let used = session.enter_request()?;
        session.touch();
        Some((home, used))
    }
}
