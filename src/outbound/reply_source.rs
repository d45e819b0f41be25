//! `ReplySource`: the origin of a reply, as the client sees it.

use std::sync::Arc;
use std::time::Duration;

use super::view::EndpointView;
use crate::call::{Call, Reply, ServerDeclaration};
use crate::protocol::{content, methods};
use crate::translate::project::{CacheHints, ResultOrigin, RevisionProjection};

/// The origin of a reply.
#[derive(Debug)]
pub(crate) struct ReplySource {
    pub(crate) projection: RevisionProjection,
    /// JSON text of our own `Implementation`.
    ourselves: Arc<str>,
    declared: Option<Arc<ServerDeclaration>>,
    is_merged: bool,
    /// Cache hints for a result without hints of its own.
    hints: CacheHints,
    /// Whether the called tool's output schema is shown wrapped.
    pub(crate) wraps: bool,
}

/// The part of every [`ReplySource`] that describes the gateway itself.
#[derive(Debug, Clone)]
pub(crate) struct ReplySources {
    /// JSON text of our own `Implementation`.
    ourselves: Arc<str>,
    /// `lists.ttl`, for lists without cache hints.
    list_ttl: Duration,
}

impl ReplySources {
    pub(crate) fn new(ourselves: Arc<str>, list_ttl: Duration) -> Self {
        Self {
            ourselves,
            list_ttl,
        }
    }

    /// The source of replies to `call` from an upstream that declared `declared`.
    pub(crate) fn of(
        &self,
        call: &Call,
        declared: Option<Arc<ServerDeclaration>>,
        view: &EndpointView,
    ) -> ReplySource {
        let known = methods::lookup(call.message.method().unwrap_or_default());
        let is_list = known.is_some_and(|known| known.list.is_some());
        let from = declared.as_ref().map(|declared| declared.revision);
        let hosts_tasks = declared.as_ref().is_some_and(|d| d.hosts_tasks());
        let ttl = if is_list {
            self.list_ttl
        } else {
            Duration::ZERO
        };
        ReplySource {
            projection: RevisionProjection::of(from, call.revision).hosting_tasks(hosts_tasks),
            ourselves: Arc::clone(&self.ourselves),
            declared,
            is_merged: matches!(view, EndpointView::Merged(_)),
            hints: CacheHints::private(ttl),
            wraps: false,
        }
    }
}

impl ReplySource {
    /// The declaration of the upstream, once its link is open.
    pub(crate) fn declared(&self) -> Option<&ServerDeclaration> {
        self.declared.as_deref()
    }

    /// The origin of a result, as its client sees it.
    pub(crate) fn origin<'a>(&'a self, call: &'a Call) -> ResultOrigin<'a> {
        let declared = self.declared.as_ref();
        let own = declared.map(|declared| &*declared.server_info);
        ResultOrigin {
            method: call.message.method().unwrap_or_default(),
            name: "",
            server: own.filter(|_| !self.is_merged).unwrap_or(&self.ourselves),
            is_merged: self.is_merged,
            upstream: own,
            hints: self.hints,
            wraps: self.wraps,
            extended: false,
            missing: None,
        }
    }
}

/// A tool's failure in our words, for a model to act on.
pub(crate) fn tool_failure(call: &Call, source: &ReplySource, text: &str) -> Reply {
    let result = content::tool_error(text);
    let result = source.projection.authored(result, &source.origin(call));
    Reply::Result(result.into())
}
