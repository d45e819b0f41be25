//! Handles of connections that may become sessions. Spec: SPEC H-03, T-47.

use super::{SessionId, SessionRegistry};
use crate::call::Principal;
use crate::endpoint::Endpoint;
use crate::store::events::SessionKey;

impl SessionRegistry {
    /// A handle for a connection that may become a session of this binding on this endpoint: its key
    /// and its text. It opens as nothing else.
    #[must_use]
    pub fn mint_connection(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> (SessionKey, String) {
        let place = connections_of(endpoint);
        self.ids
            .mint(&principal.binding(), &place, self.clock.now())
    }

    /// The key of a connection, from a handle that this binding was given on this endpoint.
    #[must_use]
    pub fn read_connection(
        &self,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionKey> {
        let handle = self.connection(handle, principal, endpoint)?;
        (handle.owner == self.ownership()).then_some(handle.key)
    }

    /// What a genuine handle of the caller says; `None` where the handle is forged, foreign or over age.
    #[must_use]
    pub fn connection(
        &self,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let place = connections_of(endpoint);
        let handle = self.ids.read(handle, &principal.binding(), &place)?;
        (!self.is_id_over_age(handle)).then_some(handle)
    }
}

/// Keeps handles of connections apart from session ids: no endpoint has such a name.
fn connections_of(endpoint: &Endpoint) -> String {
    format!("{}/connection", endpoint.name)
}
