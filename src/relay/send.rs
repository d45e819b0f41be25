//! The last step of the spine: sends a request to its upstream, projected to the upstream's revision.

use std::sync::Arc;

use super::Relay;
use super::catalog::ListPageKey;
use super::icons;
use super::route::UpstreamTarget;
use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::Fault;
use crate::policy::Permit;
use crate::protocol::Message;
use crate::session::Session;
use crate::store::lists::CachedPage;
use crate::translate::project::{self, RevisionProjection};

impl Relay {
    /// Requests a list page from an upstream and caches it; returns the reply, and the page on success.
    pub(super) async fn ask_for_page(
        &self,
        permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        session: &Arc<Session>,
        target: &UpstreamTarget,
        place: ListPageKey<'_>,
    ) -> (Result<Reply, Fault>, Option<(CachedPage, Message)>) {
        let fetch = match self.begin_fetch(link, place.kind).await {
            Ok(fetch) => fetch,
            Err(fault) => return (Err(fault), None),
        };
        let reply = self.send(permit, link, call, target).await;
        let reply = reply.map(|reply| icons::in_page(reply, place));
        let page = match &reply {
            Ok(Reply::Relayed(message)) => self
                .keep(session, link, place, fetch, message)
                .map(|held| (held, message.clone())),
            _ => None,
        };
        (reply, page)
    }

    /// Sends the request as its upstream may see it.
    pub(super) async fn send(
        &self,
        permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        target: &UpstreamTarget,
    ) -> Result<Reply, Fault> {
        let request = self.request_for(link, call, target)?;
        self.transmit(permit, link, call, target, &request).await
    }

    /// The request in the words of its upstream's revision.
    pub(super) fn request_for(
        &self,
        link: &dyn UpstreamLink,
        call: &Call,
        target: &UpstreamTarget,
    ) -> Result<Message, Fault> {
        let revision = link.declared().map(|declared| declared.revision);
        let request = target.request.as_ref().unwrap_or(&call.message);
        match project::request(call.revision, revision, request) {
            Some(bytes) => self.reparse(bytes),
            None => Ok(request.clone()),
        }
    }

    /// Sends a request that is in its upstream's words; what comes back beside the reply reaches
    /// the client in its own.
    pub(super) async fn transmit(
        &self,
        _permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        target: &UpstreamTarget,
        request: &Message,
    ) -> Result<Reply, Fault> {
        let declared = link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let projection = RevisionProjection::of(revision, call.revision);
        match target.view.link(call, projection, declared) {
            None => link.call(request, call).await,
            Some(shown) => {
                link.call(
                    request,
                    &Call {
                        link: shown,
                        ..call.clone()
                    },
                )
                .await
            }
        }
    }
}
