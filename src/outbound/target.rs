//! `UpstreamTarget`: one upstream and the rewritten request; the last step of the spine sends it.

use std::sync::Arc;

use super::edit_depth::EditDepth;
use super::view::EndpointView;
use crate::call::{Call, Reply, UpstreamLink};
use crate::fault::Fault;
use crate::policy::Permit;
use crate::protocol::Message;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::translate::project::{self, RevisionProjection};

/// One upstream, and the request rewritten for that upstream.
#[derive(Debug)]
pub(crate) struct UpstreamTarget {
    pub(crate) upstream: Arc<str>,
    /// Tool, prompt or URI as the upstream spells it.
    pub(crate) name: Option<String>,
    /// The client's spelling of `name`, if different.
    pub(crate) shown: Option<String>,
    /// The requested page, if the request is a plain list request.
    pub(crate) page: Option<(ListKind, Option<String>)>,
    /// The request, where it differs from the client's.
    pub(crate) request: Option<Message>,
    pub(crate) view: EndpointView,
    /// The implicit session of the task of 2025-11-25 that the request is about, if any.
    pub(crate) home: Option<Arc<Session>>,
}

impl UpstreamTarget {
    /// The target of a request about one tool, prompt, resource or task: `shown` to the client, `name` in `request`.
    pub(crate) fn naming(
        upstream: Arc<str>,
        view: EndpointView,
        (shown, name): (String, String),
        request: Message,
    ) -> Self {
        Self {
            upstream,
            name: Some(name),
            shown: Some(shown),
            page: None,
            request: Some(request),
            view,
            home: None,
        }
    }

    /// Sends the request in its upstream's revision.
    ///
    /// # Errors
    /// The upstream did not answer.
    pub(crate) async fn send(
        &self,
        permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        edits: EditDepth,
    ) -> Result<Reply, Fault> {
        let request = self.request_for(link, call, edits)?;
        self.transmit(permit, link, call, &request).await
    }

    /// The request in its upstream's revision.
    ///
    /// # Errors
    /// The revision cannot express the request.
    pub(crate) fn request_for(
        &self,
        link: &dyn UpstreamLink,
        call: &Call,
        edits: EditDepth,
    ) -> Result<Message, Fault> {
        let revision = link.declared().map(|declared| declared.revision);
        let request = self.request.as_ref().unwrap_or(&call.message);
        match project::request(call.revision, revision, request) {
            Some(bytes) => edits.parse(bytes),
            None => Ok(request.clone()),
        }
    }

    /// Sends a request that is in its upstream's revision already. Messages beside the reply reach the
    /// client in the client's revision.
    ///
    /// # Errors
    /// The upstream did not answer.
    pub(crate) async fn transmit(
        &self,
        _permit: &Permit,
        link: &dyn UpstreamLink,
        call: &Call,
        request: &Message,
    ) -> Result<Reply, Fault> {
        let declared = link.declared();
        let revision = declared.as_ref().map(|declared| declared.revision);
        let projection = RevisionProjection::of(revision, call.revision);
        match self.view.link(call, projection, declared) {
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
