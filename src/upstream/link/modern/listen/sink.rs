//! `ListenSink`: receives the messages of one `subscriptions/listen`. Spec: SPEC M-70 to M-72.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::unmarked::unmarked;
use super::filter::{ListenFilter, honoured};
use crate::call::{Notice, NoticeArrival, NoticeIntake, NoticeKind};
use crate::protocol::Message;
use crate::upstream::lock;

/// Receives the messages of one stream.
#[derive(Debug)]
pub(in super::super) struct ListenSink {
    pub(super) upstream: Arc<str>,
    pub(super) intake: Arc<dyn NoticeIntake>,
    pub(super) acknowledged: Mutex<Option<oneshot::Sender<ListenFilter>>>,
    pub(super) ended: CancellationToken,
    /// Evicts the cached tools when the list of tools changes.
    pub(super) forget_tools: ForgetTools,
    /// Whether the stream counts as use of a child. A stream for resources alone does not: it prevents the idle stop,
    /// but the child can be evicted for another.
    pub(in super::super) keeps_busy: bool,
}

/// Evicts the cached tools.
pub(super) struct ForgetTools(pub(super) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for ForgetTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForgetTools")
    }
}

impl ListenSink {
    /// Takes a notification with this stream's subscription id.
    pub(in super::super) fn take(&self, method: &str, kind: NoticeKind, message: &Message) {
        if method == "notifications/subscriptions/acknowledged" {
            if let Some(acknowledged) = lock(&self.acknowledged).take() {
                drop(acknowledged.send(honoured(message)));
            }
            return;
        }
        let arrival = NoticeArrival::now(None);
        match kind {
            NoticeKind::ListChanged { what } => {
                if what == "tools" {
                    (self.forget_tools.0)();
                }
                self.intake.list_changed(&self.upstream, what);
            }
            NoticeKind::ResourceUpdated { .. } => {}
            // Other notifications were not requested (SPEC M-71).
            _ => return,
        }
        let bytes = unmarked(message);
        let notice = Notice { kind, bytes };
        self.intake.notice(&self.upstream, notice, arrival);
    }

    /// The upstream has cancelled the stream.
    pub(in super::super) fn end(&self) {
        self.ended.cancel();
    }
}
