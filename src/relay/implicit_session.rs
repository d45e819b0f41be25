//! The hidden session behind a modern client's requests. Spec: BRIDGING §1.2, §1.3; SPEC M-52, M-63.

use std::sync::Arc;

use bytes::Bytes;

use super::initialize::SessionOpener;
use crate::call::{ClientCapabilities, MAX_DECLARED, OwnerKey, Principal};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::outbound::refused;
use crate::protocol::methods::{self, UpstreamParam};
use crate::protocol::{Message, Revision, json, meta, without_nulls};
use crate::session::{DeliveryMode, ImplicitHome, NewSession, Session};
use crate::store::quotas::QuotaClaim;
use crate::translate::effective_capabilities;
use crate::translate::rewrite::CompletionRef;
use crate::upstream::OWN_INFO;

impl SessionOpener {
    /// The implicit session that a request of a modern client belongs to; `capabilities` is the JSON text of
    /// what the request declares. Several programs of one user may share an implicit session. Legacy upstreams of
    /// the implicit session are told the `clientInfo` of the request that began it. `home` makes it the only one of all
    /// replicas. `claim` is the caller's for a new session; nothing is claimed afterwards.
    ///
    /// # Errors
    /// When there is no room for another session.
    pub(crate) fn implicit_session(
        &self,
        principal: &Arc<Principal>,
        endpoint: &Arc<Endpoint>,
        (capabilities, home): (&str, Option<ImplicitHome>),
        request: &Message,
        claim: Option<&QuotaClaim>,
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
        let implicit_session =
            sessions.implicit_session(principal, endpoint, capabilities, home, (new, claim));
        implicit_session.map_err(refused)
    }

    /// The upstreams that a request of a modern client may reach: the one that its name or URI belongs to, else all of the
    /// endpoint.
    pub(crate) fn reached<'e>(&self, endpoint: &'e Endpoint, request: &Message) -> &'e [Arc<str>] {
        let all = endpoint.upstreams.as_slice();
        if all.len() < 2 {
            return all;
        }
        let named = self.named_upstream(request);
        let at = named.and_then(|named| all.iter().position(|one| *one == named));
        at.and_then(|at| all.get(at..=at)).unwrap_or(all)
    }

    /// The upstream whose prefix is in the name or URI of a request to a merged endpoint.
    fn named_upstream(&self, request: &Message) -> Option<Arc<str>> {
        let target = methods::lookup(request.method()?)?.target?;
        let prefixes = &self.links.views.prefixes;
        let of_name = |name: &str| prefixes.resolve_name(name).upstream();
        let of_uri = |uri: &str| prefixes.resolve_uri(uri).upstream();
        match target {
            UpstreamParam::Tool | UpstreamParam::Prompt => {
                of_name(&request.param_str(target.param())?)
            }
            UpstreamParam::Resource | UpstreamParam::Skill => {
                of_uri(&request.param_str(target.param())?)
            }
            UpstreamParam::Reference => match CompletionRef::read(request.param("ref")?)? {
                CompletionRef::Prompt(name) => of_name(&name),
                CompletionRef::Resource(uri) => of_uri(&uri),
            },
            UpstreamParam::Task => None,
        }
    }

    /// Whether calls of a modern client share a session at an upstream. See
    /// [`Upstreams::has_sessions_of_modern_clients`](crate::upstream::Upstreams::has_sessions_of_modern_clients).
    pub(crate) fn has_sessions(&self, upstream: &str, owner: OwnerKey) -> Option<bool> {
        let upstreams = &self.links.upstreams;
        upstreams.has_sessions_of_modern_clients(upstream, owner)
    }

    /// The effective capabilities of a modern client that declares `declared`, through an endpoint.
    pub(crate) fn effective(&self, declared: &str, endpoint: &Endpoint) -> ClientCapabilities {
        effective_capabilities::capabilities(
            declared,
            Revision::V2026_07_28,
            self.links.views.is_pure(endpoint),
        )
    }
}

/// The `clientInfo` of a request for legacy upstreams, or the gateway's own: legacy revisions require
/// name and version (SPEC L-01), which are optional in the modern one (SPEC M-06).
fn client_info(request: &Message) -> Bytes {
    let is_text = |info, name| json::member(info, name).and_then(json::string).is_some();
    let said = meta::client_info(request)
        .filter(|info| info.len() <= MAX_DECLARED)
        .filter(|info| is_text(info, "name") && is_text(info, "version"));
    said.map_or(OWN_INFO, |info| {
        Bytes::copy_from_slice(without_nulls(info).as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole(r#"{"name":"c","version":"1"}"#, Some(r#"{"name":"c","version":"1"}"#))]
    #[case::null(
        r#"{"name":"c","version":"1","title":null}"#,
        Some(r#"{"name":"c","version":"1"}"#)
    )]
    #[case::without_version(r#"{"name":"c","version":null}"#, None)]
    fn client_is_described_as_legacy_revisions_want_it(
        #[case] said: &str,
        #[case] told: Option<&str>,
    ) {
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{"{}":{said}}}}}}}"#,
            meta::CLIENT_INFO
        );
        let request = Message::parse(request.into(), json::MAX_DEPTH).unwrap();
        assert_eq!(
            client_info(&request),
            told.map_or(OWN_INFO, |told| Bytes::from(told.to_owned()))
        );
    }
}
