//! `server/discover`: what an endpoint can do for a modern client, whether or not its upstreams are
//! there. Spec: SPEC M-50…M-53; BRIDGING §5.1 to §5.3, §5.7.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::Relay;
use super::missing_upstreams::left_out;
use crate::call::ServerDeclaration;
use crate::fault::Fault;
use crate::session::Session;
use crate::telemetry::metrics::LABELED;
use crate::translate::merge;
use crate::translate::merge::MergedMember;

impl Relay {
    /// JSON text of the result of `server/discover`. Never fails: on a merged endpoint a late upstream
    /// contributes nothing; on a pure endpoint an unreachable upstream is described by its last declaration,
    /// or as having every capability. Such an answer has a TTL of one second.
    ///
    /// A pure endpoint waits like `initialize` until the link opens or fails (`connect_timeout` each for probe
    /// and handshake; `stdio.spawn_wait` before for a child slot): otherwise it would show no tools, and clients
    /// do not ask again. A merged endpoint waits at most a second per upstream: the first list waits for it.
    ///
    /// # Cancel safety
    /// Handshakes go on in the background.
    pub async fn discover(&self, session: &Arc<Session>) -> Bytes {
        if let [upstream] = session.endpoint.upstreams.as_slice()
            && self.is_pure(&session.endpoint)
        {
            let declared = self.or_left_out(upstream, self.learn_alone(session, upstream).await);
            if let Some(declared) = declared {
                return merge::discover_pure(session.revision, &declared);
            }
            let last = self
                .declarations
                .last(&self.knowledge_key(session, upstream));
            let tells = self.tells_changes(upstream);
            return merge::discover_absent(
                session.revision,
                last.as_deref(),
                &self.ourselves,
                tells,
            );
        }
        let wait = |upstream: &Arc<str>| self.hello_wait(session, upstream);
        let known = self.known(session, wait).await;
        merge::discover_merged(session.revision, &known, &self.ourselves)
    }

    /// JSON text of `serverInfo` in results that we write for a modern client.
    #[must_use]
    pub fn server_info(&self, session: &Session) -> Bytes {
        let known = session.endpoint.upstreams.first().and_then(|upstream| {
            let key = self.knowledge_key(session, upstream);
            self.declarations.get(&key)
        });
        match known {
            Some(known) if self.is_pure(&session.endpoint) => known.server_info.as_bytes().clone(),
            _ => Bytes::copy_from_slice(self.ourselves.info.as_bytes()),
        }
    }

    pub(super) async fn known(
        &self,
        session: &Arc<Session>,
        wait: impl Fn(&Arc<str>) -> Duration,
    ) -> Vec<MergedMember> {
        let wait = &wait;
        let all = session
            .endpoint
            .upstreams
            .iter()
            .map(|upstream| async move {
                let declared = self.learn(session, upstream, Some(wait(upstream))).await;
                let missing = match &declared {
                    Ok(_) => self.why_doubtful(session, upstream),
                    Err(fault) => Some(self.why_missing(session, upstream, Some(fault))),
                };
                MergedMember {
                    upstream: Arc::clone(upstream),
                    declared: self.or_left_out(upstream, declared),
                    missing,
                }
            });
        join_all(all).await
    }

    /// Whether an upstream of the session declares what `has` looks for. None is waited for longer than
    /// `mcp.connect_wait`, and not at all where one that is known already does.
    pub(super) async fn any_declares(
        &self,
        session: &Arc<Session>,
        has: impl Fn(&ServerDeclaration) -> bool,
    ) -> bool {
        let is_known = |upstream: &Arc<str>| {
            let known = self
                .declarations
                .get(&self.knowledge_key(session, upstream));
            known.is_some_and(|declared| has(&declared))
        };
        if session.endpoint.upstreams.iter().any(is_known) {
            return true;
        }
        let wait = self.parts.settings.mcp.connect_wait;
        let known = self.known(session, |_| wait).await;
        let mut declared = known.iter().filter_map(|one| one.declared.as_deref());
        declared.any(has)
    }

    /// Declaration of the only upstream of an endpoint, without the shortcut for stuck upstreams: a merged
    /// answer that went out without the upstream is no reason to skip it here.
    async fn learn_alone(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
    ) -> Result<Arc<ServerDeclaration>, Fault> {
        let key = self.knowledge_key(session, upstream);
        if let Some(known) = self.declarations.get(&key) {
            return Ok(known);
        }
        let link = self.link(session, upstream)?;
        let declared = self.open_aside(link).await?;
        self.declarations.learn(key, &declared);
        Ok(declared)
    }
}

impl Relay {
    /// What is known of an upstream; notes why nothing is.
    fn or_left_out(
        &self,
        upstream: &Arc<str>,
        declared: Result<Arc<ServerDeclaration>, Fault>,
    ) -> Option<Arc<ServerDeclaration>> {
        if let Err(fault) = &declared {
            LABELED.upstream_skipped.add(upstream, 1);
            left_out(&self.parts.upstreams, upstream, "discovery", fault);
        }
        declared.ok()
    }
}
