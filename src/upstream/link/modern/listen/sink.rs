//! Where the messages of one `subscriptions/listen` go. Spec: SPEC M-70 to M-72.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::inbound::unmarked;
use super::filter::{ListenFilter, honoured};
use crate::call::{Notice, NoticeIntake, NoticeKind};
use crate::protocol::Message;
use crate::upstream::lock;

/// Takes the messages of one stream.
#[derive(Debug)]
pub(in super::super) struct ListenSink {
    pub(super) upstream: Arc<str>,
    pub(super) intake: Arc<dyn NoticeIntake>,
    pub(super) acknowledged: Mutex<Option<oneshot::Sender<ListenFilter>>>,
    pub(super) ended: CancellationToken,
    /// Told when the tools changed.
    pub(super) forget_tools: ForgetTools,
    /// Whether a child counts as used by it. Where resources alone are followed it does not: it is
    /// not stopped for being idle, but gives its place up.
    pub(in super::super) keeps_busy: bool,
}

/// What is done when the tools changed.
pub(super) struct ForgetTools(pub(super) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for ForgetTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForgetTools")
    }
}

impl ListenSink {
    /// Takes a notification that carries our subscription.
    pub(in super::super) fn take(&self, method: &str, kind: NoticeKind, message: &Message) {
        if method == "notifications/subscriptions/acknowledged" {
            if let Some(acknowledged) = lock(&self.acknowledged).take() {
                drop(acknowledged.send(honoured(message)));
            }
            return;
        }
        match kind {
            NoticeKind::ListChanged { what: "tools" } => (self.forget_tools.0)(),
            NoticeKind::ListChanged { .. } | NoticeKind::ResourceUpdated { .. } => {}
            // Nothing else was asked for (SPEC M-71).
            _ => return,
        }
        let bytes = unmarked(message);
        let notice = Notice { kind, bytes };
        self.intake.notice(&self.upstream, notice, None);
    }

    /// The upstream ends the stream.
    pub(in super::super) fn end(&self) {
        self.ended.cancel();
    }
}
