//! A request of ours that has no reply yet, and what ends it early.

use std::sync::{Arc, OnceLock};

use crate::call::{Call, DownstreamLink, Level};
use crate::protocol::{Message, meta};
use crate::upstream::activity::Activity;

use super::listen::Sink;

/// Who gets what comes with a reply.
#[derive(Debug)]
pub(super) enum For {
    /// A client's call.
    Call {
        link: Arc<dyn DownstreamLink>,
        /// JSON text of the client's progress token.
        progress: Option<Arc<str>>,
        /// What the client wants to hear of.
        level: Option<Level>,
    },
    /// A stream of change notices.
    Listen(Arc<Sink>),
    /// Ourselves.
    Nobody,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) whose: For,
    pub(super) activity: Arc<Activity>,
    /// Why it ends before its reply.
    reason: OnceLock<String>,
}

impl Flight {
    pub(super) fn new(id: u64, whose: For, activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            id,
            whose,
            activity,
            reason: OnceLock::new(),
        })
    }

    /// What a call needs of its replies.
    pub(super) fn of_call(request: &Message, call: &Call) -> For {
        For::Call {
            link: Arc::clone(&call.link),
            progress: meta::progress_token(request).map(Arc::from),
            level: call.link.level(),
        }
    }

    /// Says why it will be dropped.
    pub(super) fn abort(&self, reason: &str) {
        self.reason.get_or_init(|| reason.to_owned());
    }

    /// Whether a child counts as used, and not only as one that is better left alive.
    pub(super) fn keeps_busy(&self) -> bool {
        match &self.whose {
            For::Listen(sink) => sink.keeps_busy,
            For::Call { .. } | For::Nobody => true,
        }
    }

    pub(super) fn reason(&self) -> &str {
        self.reason
            .get()
            .map_or("the caller has gone", String::as_str)
    }
}
