//! `RunningRequest`: a request of the gateway without a reply yet, and the reason if it ends early.

use std::sync::{Arc, Mutex, OnceLock};

use crate::budget::{ReplyLease, ReplyRoom};
use crate::call::{Call, DownstreamLink, LogLevel};
use crate::protocol::{Message, meta, methods};
use crate::upstream::deadlines::CallActivity;
use crate::upstream::lock;

use super::listen::sink::ListenSink;

/// The receiver of a reply and of the messages before it.
#[derive(Debug)]
pub(super) enum ReplyOwner {
    /// A client's call.
    Call {
        link: Arc<dyn DownstreamLink>,
        progress: Option<ProgressSink>,
        /// The minimum level of log messages for the client.
        level: Option<LogLevel>,
        /// Whether the reply may be shared with other callers.
        is_list: bool,
    },
    /// A stream of change notices.
    Listen(Arc<ListenSink>),
    /// The gateway itself.
    Nobody,
}

/// The client's progress, seen from one request of its call.
#[derive(Debug)]
pub(super) struct ProgressSink {
    /// JSON text of the client's progress token.
    pub(super) token: Arc<str>,
    /// Highest progress reported by earlier requests of the call.
    before: f64,
    told: Arc<HighestProgress>,
}

impl ProgressSink {
    fn new(token: &str, told: &Arc<HighestProgress>) -> Self {
        Self {
            token: token.into(),
            before: *lock(&told.0),
            told: Arc::clone(told),
        }
    }

    /// Whether progress is passed on to the client; `progress` is JSON text of a number. A repeated request counts from
    /// zero again, but the progress under a client's token must only grow (SPEC C-01).
    pub(super) fn is_further(&self, progress: Option<&str>) -> bool {
        let Some(progress) = progress.and_then(|text| text.parse().ok()) else {
            return true;
        };
        self.told.raise(progress);
        progress > self.before
    }
}

/// Highest progress reported by any request of the call.
#[derive(Debug)]
pub(super) struct HighestProgress(Mutex<f64>);

impl Default for HighestProgress {
    fn default() -> Self {
        Self(Mutex::new(f64::NEG_INFINITY))
    }
}

impl HighestProgress {
    fn raise(&self, progress: f64) {
        let mut told = lock(&self.0);
        *told = told.max(progress);
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct RunningRequest {
    pub(super) id: u64,
    pub(super) whose: ReplyOwner,
    pub(super) activity: Arc<CallActivity>,
    /// Why the request ended before its reply.
    reason: OnceLock<String>,
}

impl RunningRequest {
    pub(super) fn new(id: u64, whose: ReplyOwner, activity: Arc<CallActivity>) -> Arc<Self> {
        Arc::new(Self {
            id,
            whose,
            activity,
            reason: OnceLock::new(),
        })
    }

    /// The receiver of a call; `told` holds the progress of the call's earlier requests.
    pub(super) fn of_call(
        request: &Message,
        call: &Call,
        told: &OnceLock<Arc<HighestProgress>>,
    ) -> ReplyOwner {
        let toward = |token: &str| ProgressSink::new(token, told.get_or_init(Arc::default));
        ReplyOwner::Call {
            link: Arc::clone(&call.link),
            progress: meta::progress_token(request).map(toward),
            level: call.link.level(),
            is_list: request.method().is_some_and(methods::is_list),
        }
    }

    /// The share that the reply is charged to; `None` for a list, which other callers may share.
    pub(super) fn reply_room(&self) -> Option<ReplyRoom<'_>> {
        match &self.whose {
            ReplyOwner::Call { is_list: true, .. } | ReplyOwner::Listen(_) | ReplyOwner::Nobody => {
                None
            }
            ReplyOwner::Call { link, .. } => link.reply_room(),
        }
    }

    /// Keeps the reply's lease until the call is answered.
    pub(super) fn keep(&self, lease: ReplyLease) {
        if let Some(room) = self.reply_room() {
            room.kept.keep(lease);
        }
    }

    /// Sets the reason why the request is about to be dropped.
    pub(super) fn abort(&self, reason: &str) {
        self.reason.get_or_init(|| reason.to_owned());
    }

    /// Whether the request counts as use of the child, so that the child is not evicted for another.
    pub(super) fn keeps_busy(&self) -> bool {
        match &self.whose {
            ReplyOwner::Listen(sink) => sink.keeps_busy,
            ReplyOwner::Call { .. } | ReplyOwner::Nobody => true,
        }
    }

    /// Whether the request is a stream of change notices, which has no end of its own.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.whose, ReplyOwner::Listen(_))
    }

    pub(super) fn reason(&self) -> &str {
        self.reason
            .get()
            .map_or("the caller has gone", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPEC C-01.
    #[test]
    fn a_request_that_follows_tells_only_what_is_further() {
        let told = Arc::new(HighestProgress::default());
        let first = ProgressSink::new("7", &told);
        for progress in [Some("0"), Some("2.5"), Some("2.5"), Some("\"x\""), None] {
            assert!(first.is_further(progress), "{progress:?}");
        }
        let second = ProgressSink::new("7", &told);
        let told: Vec<_> = ["1", "2.5", "3", "2.6"]
            .into_iter()
            .filter(|progress| second.is_further(Some(progress)))
            .collect();
        assert_eq!(told, ["3", "2.6"]);
    }
}
