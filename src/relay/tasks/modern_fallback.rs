//! The newer era of an upstream that speaks both, for a call which its older one refuses: it runs only
//! as a task of the extension, for which a legacy session has no word. Spec: `docs/adr/0008`.

use std::sync::Arc;

use crate::call::{NullIntake, UpstreamLink};
use crate::cause::chain;
use crate::protocol::{Era, Revision};
use crate::relay::Relay;
use crate::session::Session;
use crate::upstream::ClientContext;

impl Relay {
    /// A link of the newer era to the upstream of `link`, which is of the older one; nothing where it
    /// is not known to speak both, or cannot be reached. It ends when it is dropped.
    pub(crate) async fn newer_link(
        &self,
        link: &dyn UpstreamLink,
        session: &Arc<Session>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let upstream = link.upstream();
        let is_older = link.declared()?.revision.era() == Era::Legacy;
        if !is_older || !self.links.upstreams.speaks_modern(upstream) {
            return None;
        }
        let client = ClientContext {
            offer: Revision::V2026_07_28,
            // What belongs to no call the session hears in its own era.
            intake: Arc::new(NullIntake),
            ..self.links.client(session, upstream)
        };
        let newer = self.links.upstreams.link(upstream, client)?;
        match newer.open().await {
            Ok(declared) => (declared.revision.era() == Era::Modern).then_some(newer),
            Err(fault) => {
                tracing::debug!(%upstream, error = chain(&fault), "modern endpoint unreachable");
                None
            }
        }
    }
}
