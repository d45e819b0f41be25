//! Handles of connections that may become sessions. Spec: SPEC H-03, T-47.

use super::SessionRegistry;
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
        let place = connections_of(endpoint);
        let handle = self.ids.read(handle, &principal.binding(), &place)?;
        let age = self.clock.now().saturating_sub(handle.issued);
        let is_ours = handle.owner == self.ownership();
        (is_ours && age <= self.settings.absolute).then_some(handle.key)
    }
}

/// Keeps handles of connections apart from session ids: no endpoint has such a name.
fn connections_of(endpoint: &Endpoint) -> String {
    format!("{}/connection", endpoint.name)
}
