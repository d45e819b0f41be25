//! Sessions that are handed over to other replicas while this one drains. Spec: DESIGN §8; `docs/adr/0028`.

use std::sync::Arc;

use super::SessionRegistry;
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::session::{Session, SessionId, SessionUse};

/// Where a request of a session is served.
#[derive(Debug)]
pub enum RequestedSession {
    /// Here, and the session stays while this is kept.
    Here(SessionUse),
    /// The session does not live here, or is being handed over.
    Absent(SessionId),
    /// The id is forged, foreign or over age.
    Unknown,
}

impl SessionRegistry {
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

    /// From now on a session with a record is closed for requests as soon as it is at rest.
    pub fn begin_hand_over(&self) {
        self.leaving.begin();
    }

    /// From now on a session with a record that is not at rest admits requests only to answer its questions.
    pub fn hold_requests(&self) {
        self.leaving.hold_requests();
    }

    /// Sessions that were closed for requests since the last call, to be handed over.
    #[must_use]
    pub fn take_ready(&self) -> Vec<Arc<Session>> {
        let ready = self.leaving.take_ready().into_iter();
        let live = ready.filter_map(|key| self.live.get(&key).map(|session| Arc::clone(&session)));
        live.collect()
    }

    /// Waits until there may be more of them.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn more_ready(&self) {
        self.leaving.more().await;
    }

    /// Closes all sessions with a record for requests that are at rest, or all `anyway`; those that this call closed.
    #[must_use]
    pub fn close_for_requests(&self, anyway: bool) -> Vec<Arc<Session>> {
        let all: Vec<_> = { self.live.iter() }
            .map(|entry| Arc::clone(entry.value()))
            .collect();
        let close =
            |session: &Arc<Session>| session.close_at_rest() || anyway && session.close_anyway();
        all.into_iter().filter(close).collect()
    }
}
