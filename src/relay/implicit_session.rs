//! The hidden session behind a modern client's requests. Spec: BRIDGING §1.2, §1.3; SPEC M-52, M-63.

use std::sync::Arc;

use bytes::Bytes;

use super::initialize::SessionOpener;
use crate::call::{ClientCapabilities, MAX_DECLARED, Principal};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::outbound::refused;
use crate::protocol::{Message, Revision, json, meta};
use crate::session::{DeliveryMode, NewSession, Session};
use crate::translate::effective_capabilities;
use crate::upstream::OWN_INFO;

impl SessionOpener {
    /// The implicit session that a request of a modern client belongs to; `capabilities` is the JSON text of
    /// what the request declares. Several programs of one user may share an implicit session. Legacy upstreams of
    /// the implicit session are told the `clientInfo` of the request that began it.
    ///
    /// # Errors
    /// When there is no room for another session.
    pub(crate) fn implicit_session(
        &self,
        principal: &Arc<Principal>,
        endpoint: &Arc<Endpoint>,
        capabilities: &str,
        request: &Message,
    ) -> Result<Arc<Session>, Fault> {
        let new = || NewSession {
            delivery: DeliveryMode::Streams,
            principal: Arc::clone(principal),
            endpoint: Arc::clone(endpoint),
            revision: Revision::V2026_07_28,
            capabilities: self.effective(capabilities, endpoint),
            client_info: client_info(request),
        };
        let sessions = &self.sessions;
        let implicit_session = sessions.implicit_session(principal, endpoint, capabilities, new);
        implicit_session.map_err(refused)
    }

    /// What a modern client that declares `declared` can be asked through an endpoint.
    pub(crate) fn effective(&self, declared: &str, endpoint: &Endpoint) -> ClientCapabilities {
        effective_capabilities::capabilities(
            declared,
            Revision::V2026_07_28,
            self.links.views.is_pure(endpoint),
        )
    }
}

/// The `clientInfo` of a request as legacy upstreams may be told it, else the gateway's own: there name
/// and version must be set (SPEC L-01), in the modern revision all of it is optional (SPEC M-06).
fn client_info(request: &Message) -> Bytes {
    let is_text = |info, name| json::member(info, name).and_then(json::string).is_some();
    let said = meta::client_info(request)
        .filter(|info| info.len() <= MAX_DECLARED)
        .filter(|info| is_text(info, "name") && is_text(info, "version"));
    said.map_or(OWN_INFO, |info| Bytes::copy_from_slice(info.as_bytes()))
}
