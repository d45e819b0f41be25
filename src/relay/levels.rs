//! `LogLevels`: the log levels of upstreams. Spec: SPEC C-21, G-03; BRIDGING §3.1, §3.5.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::call::{Call, LogLevel, Reply, ServerDeclaration, UpstreamLink};
use crate::cause::chain;
use crate::outbound::{AuditedPolicy, EMPTY, EditDepth, SessionLinks, outcome};
use crate::protocol::{Era, json, rpc};
use crate::session::Session;
use crate::telemetry::metrics::LABELED;

/// Sets the log levels of upstreams.
#[derive(Debug)]
pub(crate) struct LogLevels {
    pub(super) links: Arc<SessionLinks>,
    pub(super) policy: Arc<AuditedPolicy>,
    pub(super) edits: EditDepth,
}

impl LogLevels {
    /// Raises the log level of a legacy upstream before a call. The upstream has one level per session, so it gets
    /// the most verbose level of any call, and each call is filtered to its own. If `logging/setLevel` failed, or
    /// the upstream was not open when a legacy client set its level, the next call sends the level.
    /// Spec: BRIDGING §3.5.
    pub(super) async fn raise(&self, call: &Call, session: &Arc<Session>, link: &dyn UpstreamLink) {
        let Some(level) = call.link.level() else {
            return;
        };
        let (levels, upstream) = (session.levels(), link.upstream());
        if call.message.method() == Some("logging/setLevel") {
            return levels.tell(upstream, level);
        }
        // A modern upstream gets the level with each call; it may turn out to be legacy later.
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
    pub(crate) fn raise_of_parked(
        self: &Arc<Self>,
        call: Call,
        session: Arc<Session>,
        at: &Arc<str>,
    ) {
        let Some(link) = session
            .links()
            .get(at)
            .filter(|_| call.link.level().is_some())
        else {
            return;
        };
        let levels = Arc::clone(self);
        self.links.spawner.spawn_service(async move {
            levels.raise(&call, &session, &*link).await;
        });
    }

    /// Whether `logging/setLevel` was sent or is unnecessary: an upstream that refuses is not asked again. `false` for
    /// a modern upstream, since a restart may make it a legacy one.
    async fn tell_level(&self, call: &Call, link: &dyn UpstreamLink, level: LogLevel) -> bool {
        let declared = match link.declared() {
            Some(declared) => Some(declared),
            None => link.open().await.ok(),
        };
        let is_legacy = |declared: &Arc<ServerDeclaration>| declared.revision.era() == Era::Legacy;
        let Some(declared) = declared.filter(is_legacy) else {
            return false;
        };
        if !declared.logs() {
            return true;
        }
        let params = json::object([("level", json::quote(level.as_str()))]);
        let request = rpc::request(0, "logging/setLevel", Some(&params));
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

    /// Sends the session's level to each of its open upstreams; the gateway answers itself. An upstream that is opened
    /// later, or does not answer within the time of merged lists, gets the level before its next call.
    /// Spec: SPEC G-03, C-21.
    pub(super) async fn tell_all(&self, call: &Call, session: &Arc<Session>) -> Reply {
        let (links, level) = (session.links().all(), session.levels().wanted());
        let wait = self.links.connect_wait;
        let told = links.iter().map(|link| async {
            let logs = link.declared().is_some_and(|declared| declared.logs());
            let upstream = link.upstream();
            let method = call.message.method().unwrap_or_default();
            if !logs || self.policy.decide_part(call, upstream, method).is_err() {
                return;
            }
            let audited = self.policy.audit_part(call, upstream);
            let asked = link.call(&call.message, call);
            let Ok(reply) = tokio::time::timeout(wait, asked).await else {
                LABELED.upstream_skipped.add(upstream, 1);
                session.levels().unknown(upstream);
                return;
            };
            audited.end(outcome(&reply));
            match reply {
                Ok(reply) => {
                    if reply.error().is_some() {
                        tracing::debug!(%upstream, "upstream rejected logging/setLevel");
                    }
                    if let Some(level) = level {
                        session.levels().tell(upstream, level);
                    }
                }
                Err(fault) => tracing::debug!(%upstream, error = chain(&fault), "level not set"),
            }
        });
        join_all(told).await;
        Reply::Result(EMPTY)
    }
}
