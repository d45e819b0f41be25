//! The hidden session behind a modern client's requests, and whether one of them may run at all.
//! Spec: BRIDGING §1.2, §1.3; SPEC M-52, M-63.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Relay;
use super::route::RequestRoute;
use crate::call::{
    Call, ClientCapabilities, LogLevel, MAX_DECLARED, Principal, ServerDeclaration, UpstreamLink,
};
use crate::cause::chain;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::outbound::{RelayFailure, refused};
use crate::protocol::{Era, Message, Revision, json, meta};
use crate::session::{DeliveryMode, NewSession, Session};
use crate::translate::effective_capabilities;
use crate::upstream::OWN_INFO;

impl Relay {
    /// The implicit session that a request of a modern client belongs to; `capabilities` is the JSON text of
    /// what the request declares. Several programs of one user may share an implicit session. Legacy upstreams of
    /// the implicit session are told the `clientInfo` of the request that began it.
    ///
    /// # Errors
    /// When there is no room for another session.
    pub fn implicit_session(
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

    /// How long an upstream waits for an answer of its client.
    #[must_use]
    pub fn ask_timeout(&self, upstream: &str) -> Option<Duration> {
        let settings = self.links.upstreams.settings(upstream)?;
        Some(settings.ask_timeout)
    }

    /// How long a question of an upstream waits behind others until it may be put to its client.
    #[must_use]
    pub fn ask_wait(&self, upstream: &str) -> Option<Duration> {
        let settings = self.links.upstreams.settings(upstream)?;
        Some(settings.ask_wait)
    }

    /// What a modern client that declares `declared` can be asked through an endpoint.
    #[must_use]
    pub fn effective(&self, declared: &str, endpoint: &Endpoint) -> ClientCapabilities {
        effective_capabilities::capabilities(
            declared,
            Revision::V2026_07_28,
            self.links.views.is_pure(endpoint),
        )
    }

    /// Authorizes a request as [`Relay::handle`] does, without sending it: for a retry that resumes a call already
    /// at its upstream. Touches the session, since a resumed call skips the session look-up that normally does.
    ///
    /// # Errors
    /// [`RelayFailure`] when it must not go on.
    pub async fn authorize(&self, call: &Call, session: &Arc<Session>) -> Result<(), RelayFailure> {
        session.touch();
        if let RequestRoute::One(target) = self.route(call, session).await? {
            self.policy.decide(call, &target)?;
            self.catalog
                .tools
                .check_param_headers(call, session, &target)
                .await?;
        }
        Ok(())
    }

    /// Raises the log level of a legacy upstream before a call. The upstream has one level per session, so it gets
    /// the most verbose level of any call, and each call is filtered to its own. If `logging/setLevel` failed, or
    /// the upstream was not open when a legacy client set its level, the next call sends the level.
    /// Spec: BRIDGING §3.5.
    pub(super) async fn raise_level(
        &self,
        call: &Call,
        session: &Arc<Session>,
        link: &dyn UpstreamLink,
    ) {
        let Some(level) = call.link.level() else {
            return;
        };
        let (levels, upstream) = (session.levels(), link.upstream());
        if call.message.method() == Some("logging/setLevel") {
            return levels.tell(upstream, level);
        }
        // A modern one is told with each call; it may turn out to be a legacy one later.
        let is_modern = |declared: Arc<ServerDeclaration>| declared.revision.era() == Era::Modern;
        if link.declared().is_some_and(is_modern) {
            return;
        }
        if levels.raise(upstream, level) && !Box::pin(self.tell_level(call, link, level)).await {
            levels.forget(upstream, level);
        }
    }

    /// Raises the log level of a parked call's upstream to the level of the retry that resumes the call. Runs in the
    /// background: an upstream that waits for an answer may read nothing else, and the answer comes with the retry.
    /// Spec: BRIDGING §3.1 step 7.
    pub fn raise_level_of_parked(
        self: &Arc<Self>,
        call: Call,
        session: Arc<Session>,
        at: &Arc<str>,
    ) {
        let Some(link) = session.link(at).filter(|_| call.link.level().is_some()) else {
            return;
        };
        let relay = Arc::clone(self);
        self.links.spawner.spawn_service(async move {
            relay.raise_level(&call, &session, &*link).await;
        });
    }

    /// Whether `logging/setLevel` was sent or is unnecessary: an upstream that refuses is not asked again. `false` for
    /// a modern upstream, since a restart may make it a legacy one.
    async fn tell_level(&self, call: &Call, link: &dyn UpstreamLink, level: LogLevel) -> bool {
        let legacy = |declared: &ServerDeclaration| declared.revision.era() == Era::Legacy;
        let declared = match link.declared() {
            Some(declared) => Some(declared),
            None => link.open().await.ok(),
        };
        let Some(declared) = declared else {
            return false;
        };
        if !legacy(&declared) {
            return false;
        }
        if !declared.logs() {
            return true;
        }
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"logging/setLevel","params":{{"level":"{}"}}}}"#,
            level.as_str()
        );
        let Ok(request) = self.edits.parse(request.into()) else {
            return false;
        };
        let wait = self.links.connect_wait;
        match tokio::time::timeout(wait, link.call(&request, call)).await {
            Ok(Ok(reply)) => {
                if reply.error().is_some() {
                    tracing::debug!(upstream = %link.upstream(), "upstream rejected logging/setLevel");
                }
                true
            }
            Ok(Err(fault)) => {
                tracing::debug!(upstream = %link.upstream(), error = chain(&fault), "level not set");
                false
            }
            // The request was sent; an upstream that never replies must not delay every call.
            Err(_) => true,
        }
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
