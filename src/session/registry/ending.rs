//! The end of sessions: wanted, by age, for others of the same principal, with the gateway, or at another replica that goes
//! on with them (`docs/adr/0028`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::MissedTickBehavior;

use super::{SessionRegistry, counted};
use crate::call::{Principal, UpstreamLink};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::session::{RequestedSession, Session, SessionId, SessionUse};
use crate::store::events::SessionKey;
use crate::telemetry::metrics::server_session_ended;

/// How long the links of an ended session stay open for its last messages to upstreams.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Closes the links of a session that is over, after `wait` at the latest.
async fn part(session: &Session, links: &[Arc<dyn UpstreamLink>], wait: Duration) {
    session.last_words.close();
    drop(tokio::time::timeout(wait, session.last_words.wait()).await);
    join_all(links.iter().map(|link| link.close())).await;
}

impl SessionRegistry {
    /// Ends a session; its upstream links are closed in the background.
    pub fn close(&self, session: &Arc<Session>) {
        let links = self.remove(session).unwrap_or_default();
        if !links.is_empty() {
            let session = Arc::clone(session);
            self.tasks
                .spawn(async move { part(&session, &links, LAST_WORDS).await });
        }
    }

    /// Ends a session that this replica owned as `by` and another one owns, and leaves what the shared store has of it. An
    /// implicit session is named by the key of its record. One that was adopted again in a later epoch stays.
    pub fn give_up(&self, session: SessionKey, by: Ownership) {
        let live = self.live.get(&session).map(|session| Arc::clone(&session));
        if let Some(session) = live.or_else(|| self.implicit_sessions.of_record(session))
            && let Some(recorder) = &session.recorder
            && recorder.ownership() == by
        {
            self.give_up_session(&session);
        }
    }

    /// The same for this very session: it may have been given up before, and adopted again under the same key.
    pub fn give_up_session(&self, session: &Arc<Session>) {
        if let Some(recorder) = &session.recorder {
            recorder.leave(session.key());
        }
        for link in session.links().all() {
            link.disown();
        }
        self.close(session);
    }

    /// Removes a session and returns its links; `None` if it was removed already.
    fn remove(&self, session: &Arc<Session>) -> Option<Vec<Arc<dyn UpstreamLink>>> {
        // A session that was given up may have been adopted since, under the same key.
        self.live
            .remove_if(&session.key(), |_, live| Arc::ptr_eq(live, session))?;
        if let Some(recorder) = &session.recorder {
            recorder.end(session.key());
        }
        self.known.forget(session);
        self.count.fetch_sub(1, Ordering::Relaxed);
        counted(session).open.add(-1);
        self.implicit_sessions.remove(session);
        if session.implicit.is_none() {
            server_session_ended(session.revision.as_str(), session.age());
        }
        self.owners.remove(session.owner(), session.key());
        Some(session.end())
    }

    /// Ends every session, for a shutdown, and waits up to `grace` for its upstream links, and for the shared store, where
    /// there is one, to say of all sessions that have ended that they are over. The store is told at once: while the lease
    /// of this replica lasts, no other one adopts its sessions.
    pub async fn close_all(&self, grace: Duration) {
        let all = self.all();
        // Sessions that may have been given up to other replicas.
        for session in all.iter().filter(|session| session.may_be_given_up()) {
            self.give_up_session(session);
        }
        let ended: Vec<_> = all
            .iter()
            .filter_map(|session| Some((session, self.remove(session)?)))
            .collect();
        // The other half is for the links to close.
        let wait = LAST_WORDS.min(grace / 2);
        let closing = ended
            .iter()
            .map(|(session, links)| part(session, links, wait));
        let closed = tokio::time::timeout(grace, join_all(closing));
        let told = async {
            if let Some(records) = self.records.get() {
                records.flush(grace).await;
            }
        };
        drop(tokio::join!(told, closed));
    }

    /// The session that a request names, counted as used where it lives here.
    #[must_use]
    pub fn enter_request(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> RequestedSession {
        let known = self.known(id, principal, endpoint);
        if let Some(used) = known.and_then(|session| session.enter_request()) {
            return RequestedSession::Here(used);
        }
        let Some(handle) = self.read_id(id, principal, endpoint) else {
            return RequestedSession::Unknown;
        };
        let live = self
            .live(handle)
            .filter(|session| self.is_named(session, handle.owner));
        match live.and_then(|session| session.enter_request()) {
            Some(used) => RequestedSession::Here(used),
            None => RequestedSession::Absent(handle),
        }
    }

    /// Whether the session of a handle is being handed over.
    #[must_use]
    pub fn is_leaving(&self, handle: SessionId) -> bool {
        self.live(handle)
            .is_some_and(|session| session.is_leaving())
    }

    /// `begins`: from now on a session with a record is closed for requests as soon as it is at rest. `holds_requests`: before
    /// that it admits only answers to its questions.
    pub fn hand_over(&self, begins: bool, holds_requests: bool) {
        self.leaving.set(begins, holds_requests);
    }

    /// Whether the session of a handle lives here and waits until it is at rest, so that it can be handed over.
    #[must_use]
    pub fn is_held(&self, handle: SessionId) -> bool {
        self.live(handle)
            .is_some_and(|session| session.waits_to_rest())
    }

    /// The session of a handle, counted as used, where it lives here and only waits until it is at rest: for a request that
    /// begins no work.
    #[must_use]
    pub fn enter_held(&self, handle: SessionId) -> Option<SessionUse> {
        let live = self.live(handle);
        live.filter(|session| self.is_named(session, handle.owner))?
            .enter_held()
    }

    /// Ends the running calls of sessions that are not handed over. Their clients get the error that the outcome is unknown;
    /// waits `within` at most until it is read.
    ///
    /// # Cancel safety
    /// The calls end in any case.
    pub async fn cut_calls_off(&self, within: Duration) {
        let mut all = self.all();
        all.retain(|session| !session.is_handed_over() && session.has_calls());
        join_all(all.iter().map(|session| session.cut_calls_off(within))).await;
    }

    /// Sessions that were closed for requests since the last call, to be handed over.
    #[must_use]
    pub fn take_ready(&self) -> Vec<Arc<Session>> {
        let ready = self.leaving.take_ready().into_iter();
        let live = ready.filter_map(|key| self.live.get(&key).map(|session| Arc::clone(&session)));
        live.collect()
    }

    /// Waits until more sessions may be at rest.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn more_ready(&self) {
        self.leaving.more().await;
    }

    /// Closes the sessions with a record for requests, those at rest or all `anyway`. Returns those that this call closed.
    #[must_use]
    pub fn close_for_requests(&self, anyway: bool) -> Vec<Arc<Session>> {
        let mut closed = self.all();
        closed.retain(|session| session.close_at_rest() || anyway && session.close_anyway());
        closed
    }

    fn all(&self) -> Vec<Arc<Session>> {
        let live = self.live.iter();
        live.map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Ends idle and over-age sessions and sweeps the event log, for ever.
    pub async fn reap(self: Arc<Self>) {
        let period =
            (self.settings.idle / 20).clamp(Duration::from_millis(100), Duration::from_secs(15));
        let mut tick = tokio::time::interval(period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.reap_once();
        }
    }

    pub(super) fn reap_once(&self) {
        let expired: Vec<_> = self
            .live
            .iter()
            .filter(|entry| self.is_expired(entry.value(), entry.value().age()))
            .map(|entry| Arc::clone(entry.value()))
            .collect();
        for session in expired {
            counted(&session).expired.add(1);
            self.close(&session);
        }
        self.owners.sweep();
        self.events.sweep();
    }

    pub(super) fn is_expired(&self, session: &Session, age: Duration) -> bool {
        session.outlived(age, self.settings.idle, self.settings.absolute)
    }

    pub(super) fn is_over_age(&self, age: Duration) -> bool {
        age > self.settings.absolute
    }
}
