//! One upstream as one endpoint shows it: unchanged, or under mapped names and URIs.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::mapping;
use super::naming::Prefix;
use crate::call::{
    Asked, Call, ClientCapabilities, DownstreamLink, Level, Notice, Question, Round,
};

/// How an upstream's names and URIs look on an endpoint (BRIDGING §4).
#[derive(Debug, Clone)]
pub(super) enum View {
    /// Exactly as the upstream spells them.
    Pure,
    /// Mapped under the upstream's configured name.
    Merged(Arc<Prefix>),
}

impl View {
    /// A notification on its way to the client; nothing when it cannot be shown.
    pub(super) fn notice(&self, notice: Notice) -> Option<Notice> {
        match self {
            Self::Pure => Some(notice),
            Self::Merged(prefix) => mapping::notice(prefix, notice),
        }
    }

    /// A question on its way to the client.
    pub(super) fn question(&self, question: Question) -> Question {
        match self {
            Self::Pure => question,
            Self::Merged(prefix) => mapping::question(prefix, question),
        }
    }

    /// The call's link as this upstream may use it; nothing when it is the link itself.
    pub(super) fn link(&self, call: &Call) -> Option<Arc<dyn DownstreamLink>> {
        match self {
            Self::Pure => None,
            Self::Merged(_) => Some(Arc::new(MappedLink {
                inner: Arc::clone(&call.link),
                view: self.clone(),
            })),
        }
    }
}

/// A downstream link behind a view.
#[derive(Debug)]
struct MappedLink {
    inner: Arc<dyn DownstreamLink>,
    view: View,
}

impl DownstreamLink for MappedLink {
    fn capabilities(&self) -> &ClientCapabilities {
        self.inner.capabilities()
    }

    fn notify(&self, notice: Notice) {
        if let Some(notice) = self.view.notice(notice) {
            self.inner.notify(notice);
        }
    }

    fn ask(&self, round: Round) -> BoxFuture<'_, Asked> {
        let entries = round
            .entries
            .into_iter()
            .map(|(key, question)| (key, self.view.question(question)))
            .collect();
        self.inner.ask(Round {
            entries,
            carry: round.carry,
        })
    }

    fn cancel_reason(&self) -> Option<&str> {
        self.inner.cancel_reason()
    }

    fn level(&self) -> Option<Level> {
        self.inner.level()
    }
}
