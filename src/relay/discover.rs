//! `server/discover`: what an endpoint can do for a modern client, whether or not its upstreams are
//! there. Spec: SPEC M-50…M-53; BRIDGING §5.1 to §5.3, §5.7.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Relay, merge};
use crate::call::Declared;
use crate::session::Session;
use crate::telemetry::metrics::LABELED;

impl Relay {
    /// JSON text of the result of `server/discover`. Never fails: an upstream that is not known
    /// within `mcp.connect_wait` contributes nothing, and the answer is believed for a second only.
    pub async fn discover(&self, session: &Arc<Session>) -> Bytes {
        let known = self.known(session).await;
        if self.is_pure(&session.endpoint) {
            let declared = known.first().and_then(|(_, declared)| declared.as_deref());
            return merge::discover_pure(session.revision, declared, &self.ourselves);
        }
        merge::discover_merged(session.revision, &known, &self.ourselves)
    }

    /// JSON text of `serverInfo` in results that we write for a modern client.
    #[must_use]
    pub fn server_info(&self, session: &Session) -> Bytes {
        let known = session.endpoint.upstreams.first().and_then(|upstream| {
            let key = self.knowledge_key(session, upstream);
            self.knowledge.get(&key)
        });
        match known {
            Some(known) if self.is_pure(&session.endpoint) => known.server_info.clone(),
            _ => Bytes::copy_from_slice(self.ourselves.info.as_bytes()),
        }
    }

    pub(super) async fn known(
        &self,
        session: &Arc<Session>,
    ) -> Vec<(Arc<str>, Option<Arc<Declared>>)> {
        let wait = self.parts.settings.mcp.connect_wait;
        let all = session
            .endpoint
            .upstreams
            .iter()
            .map(|upstream| async move {
                let declared = self.learn(session, upstream, Some(wait)).await;
                if let Err(fault) = &declared {
                    LABELED.upstream_skipped.add(upstream, 1);
                    tracing::warn!(upstream = %upstream, error = %fault, "left out of a discovery");
                }
                (Arc::clone(upstream), declared.ok())
            });
        join_all(all).await
    }
}
