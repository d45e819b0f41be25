//! The implicit sessions of modern clients, as requests find or open them, also while this replica hands them over.

use std::sync::Arc;

use super::{NewSession, SessionRefused, SessionRegistry};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::session::{ImplicitHome, ImplicitSession, ImplicitSessionKey, Session, SessionUse};
use crate::store::events::SessionKey;
use crate::store::quotas::QuotaClaim;

/// Whether this replica has the implicit session with a record.
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
    /// The implicit session of a modern client, found by binding, endpoint and the capabilities it `declares` (JSON
    /// text), or a new one. An implicit session has no id, is capped like a session, and expires when idle. With `home` it
    /// is the only one of all replicas; without, the one with a record is joined where it lives here. `claim` is the
    /// caller's for a new one, and is released where it is not needed.
    ///
    /// # Errors
    /// [`SessionRefused`] when there is no room for a new one.
    pub fn implicit_session(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
        home: Option<ImplicitHome>,
        (new, claim): (impl FnOnce() -> NewSession, Option<&QuotaClaim>),
    ) -> Result<Arc<Session>, SessionRefused> {
        let found = self.found_implicit(principal, endpoint, declares, home);
        if let Some(found) = found {
            if let Some(claim) = claim {
                claim.release();
            }
            return Ok(found);
        }
        let sessions = &self.implicit_sessions;
        let key = sessions.key(principal, endpoint, declares, home.is_some());
        let made = self.open_as(new(), Some(ImplicitSession::new(key, home)), claim)?;
        let implicit_session = sessions.enter(&made);
        if !Arc::ptr_eq(&implicit_session, &made) {
            // Another request of the same client has opened one first.
            self.close(&made);
        }
        Ok(implicit_session)
    }

    /// The live implicit session that a request joins. A session that is over, or over age, is removed for a new one.
    fn found_implicit(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
        home: Option<ImplicitHome>,
    ) -> Option<Arc<Session>> {
        if home.is_none()
            && self.records.get().is_some()
            && let Some(recorded) = self.recorded(&self.implicit_key(principal, endpoint, declares))
        {
            recorded.touch();
            return Some(recorded);
        }
        let sessions = &self.implicit_sessions;
        let key = sessions.key(principal, endpoint, declares, home.is_some());
        let implicit_session = sessions.get(&key)?;
        let age = implicit_session.age();
        if !implicit_session.closed().is_cancelled() && !self.is_expired(&implicit_session, age) {
            if !self.is_over_age(age) {
                implicit_session.touch_at(age);
                return Some(implicit_session);
            }
            sessions.remove(&implicit_session);
        } else {
            // The record is left to the next session. If the reaper was faster, waits until it has told the writer.
            sessions.remove(&implicit_session);
            self.close(&implicit_session);
        }
        None
    }

    /// The key of the implicit session with a record, of a client that declares `declares` (JSON text).
    #[must_use]
    pub fn implicit_key(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
    ) -> ImplicitSessionKey {
        let sessions = &self.implicit_sessions;
        sessions.key(principal, endpoint, declares, true)
    }

    /// The record of the implicit session with this `key`, if it lives here.
    #[must_use]
    pub fn home(&self, key: &ImplicitSessionKey) -> Option<ImplicitHome> {
        self.recorded(key)?.implicit.as_ref()?.home
    }

    /// The ownership in the record of an implicit session that lives here.
    #[must_use]
    pub fn owner_of_record(&self, record: SessionKey) -> Option<Ownership> {
        let session = self.implicit_sessions.of_record(record)?;
        let home = session.implicit.as_ref()?.home?;
        self.is_joinable(&session).then_some(home.by)
    }

    /// Leaves the implicit session with a record to its running calls, and removes the record: the next request may begin
    /// another one at any replica.
    pub fn release(&self, record: SessionKey) {
        if let Some(session) = self.implicit_sessions.of_record(record) {
            if let Some(recorder) = &session.recorder {
                recorder.end(session.key());
            }
            self.implicit_sessions.remove(&session);
        }
    }

    /// Whether further requests may join an implicit session.
    fn is_joinable(&self, session: &Session) -> bool {
        let age = session.age();
        !session.closed().is_cancelled()
            && !session.may_be_given_up()
            && !self.is_expired(session, age)
            && !self.is_over_age(age)
    }

    fn recorded(&self, key: &ImplicitSessionKey) -> Option<Arc<Session>> {
        let session = self.implicit_sessions.get(key)?;
        self.is_joinable(&session).then_some(session)
    }

    /// Whether the implicit session with a record lives here.
    #[must_use]
    pub fn live_home(&self, record: SessionKey) -> LiveHome {
        let found = self.implicit_sessions.of_record(record);
        if found.is_some_and(|session| session.may_be_given_up()) {
            return LiveHome::Leaving;
        }
        let by = self.owner_of_record(record);
        by.map_or(LiveHome::Absent, LiveHome::Joinable)
    }

    /// Claims a place for the implicit session of a caller, until it is opened, as `SessionOwners::claim_place` does.
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
        if !self.owners.are_shared() {
            return None;
        }
        let recorded = self.implicit_key(principal, endpoint, declares);
        let sessions = &self.implicit_sessions;
        let own = (!has_home).then(|| sessions.key(principal, endpoint, declares, false));
        let mut keys = std::iter::once(recorded).chain(own);
        if keys.any(|key| self.recorded(&key).is_some()) {
            return None;
        }
        self.owners.claim_place(principal.owner()).await
    }

    /// The record of the implicit session with this `key`, for a request, which is counted until the guard is dropped. `None`
    /// if the session does not live here, or is being handed over. A request that `listens` is not admitted while sessions
    /// are handed over: it would keep its session here.
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

    /// The live implicit session that a handle of ours names by `owner` and `key`. Counts as a use by its client.
    #[must_use]
    pub fn live_implicit_session(&self, owner: Ownership, key: SessionKey) -> Option<Arc<Session>> {
        if owner != self.ownership() {
            return None;
        }
        let found = self.live.get(&key).map(|session| Arc::clone(&session));
        let implicit_session = found.filter(|session| {
            session.implicit_session().is_some() && !self.is_expired(session, session.age())
        });
        implicit_session.inspect(|implicit_session| implicit_session.touch())
    }
}
