//! `server/discover`: what an endpoint can do for a modern client, whether or not its upstreams are
//! there. Spec: SPEC M-50…M-53; BRIDGING §5.1 to §5.3, §5.7.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

use super::initialize::SessionOpener;
use crate::session::Session;
use crate::translate::merge;

impl SessionOpener {
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
    pub(crate) async fn discover(&self, session: &Arc<Session>) -> Bytes {
        let (links, revision) = (&self.links, session.revision);
        if let [upstream] = session.endpoint.upstreams.as_slice()
            && links.views.is_pure(&session.endpoint)
        {
            let declared = links.learn_alone(session, upstream).await;
            if let Some(declared) = links.or_left_out(upstream, declared) {
                return merge::discover_pure(revision, &declared);
            }
            let key = links.knowledge_key(session, upstream);
            let last = links.declarations.last(&key);
            let tells = links.tells_changes(upstream);
            return merge::discover_absent(revision, last.as_deref(), &self.ourselves, tells);
        }
        let wait = |upstream: &Arc<str>| links.hello_wait(session, upstream);
        let known = links.members(session, wait).await;
        merge::discover_merged(revision, &known, &self.ourselves)
    }

    /// JSON text of `serverInfo` in results that we write for a modern client.
    pub(crate) fn server_info(&self, session: &Session) -> ByteString {
        let known = session
            .endpoint
            .upstreams
            .first()
            .and_then(|upstream| self.links.known(session, upstream));
        match known {
            Some(known) if self.links.views.is_pure(&session.endpoint) => known.server_info.clone(),
            _ => ByteString::from(&*self.ourselves.info),
        }
    }
}
