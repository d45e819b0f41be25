//! What a call of a modern client may do toward it: the downstream link of the modern era.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::http::StatusCode;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::envelope::Envelope;
use super::outlet::Outlet;
use crate::auth;
use crate::call::{
    Asked, ClientCapabilities, DownstreamLink, Level, Notice, NoticeKind, Reply, Round,
};
use crate::protocol::{Message, json};
use crate::telemetry::metrics::COUNTERS;

/// What came of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A reply, and the status it has when no stream has begun.
    Reply(StatusCode, Reply),
    /// Refused by policy, with its challenge, before anything was sent upstream.
    Denied(auth::Denied, Reply),
    /// Nobody is owed an answer.
    Cancelled,
}

/// A running call.
#[derive(Debug)]
pub(super) struct ModernLink {
    /// What the client can be asked by this call.
    capabilities: ClientCapabilities,
    upstream: OnceLock<Arc<str>>,
    cancel: CancellationToken,
    /// JSON text of the progress token that the upstream's was made from.
    first_progress: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The exchange that waits for the call now.
    outlet: Arc<Outlet<Outcome>>,
    /// What that exchange asked for.
    level: Option<Level>,
    progress: Option<String>,
}

impl ModernLink {
    /// A call whose client can be asked for what `capabilities` says.
    pub(super) fn new(
        capabilities: ClientCapabilities,
        envelope: &Envelope,
        outlet: Arc<Outlet<Outcome>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            capabilities,
            upstream: OnceLock::new(),
            cancel: CancellationToken::new(),
            first_progress: envelope.progress.clone(),
            state: Mutex::new(State {
                outlet,
                level: envelope.level,
                progress: envelope.progress.clone(),
            }),
        })
    }

    /// Cancelled when the client has gone.
    pub(super) fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The upstream that has the call, once that is known.
    pub(super) fn upstream(&self) -> Option<&Arc<str>> {
        self.upstream.get()
    }

    /// The call is over.
    pub(super) fn finish(&self, outcome: Outcome) {
        self.lock().outlet.end(outcome);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A notice as the exchange that waits now wants it: nothing when it does not.
    fn wanted(&self, notice: Notice, first_progress: Option<&str>) -> Option<Notice> {
        match &notice.kind {
            // Spec: SPEC C-21, M-42.
            NoticeKind::Log => {
                let wanted = self.level?;
                let loud = notice.level().is_none_or(|level| level >= wanted);
                loud.then_some(notice)
            }
            NoticeKind::Progress { .. } => {
                let token = self.progress.as_deref()?;
                if Some(token) == first_progress {
                    return Some(notice);
                }
                let message = Message::parse(notice.bytes, json::MAX_DEPTH).ok()?;
                Some(Notice {
                    bytes: message.edit().param("progressToken", token).finish(),
                    kind: NoticeKind::Progress {
                        token: token.to_owned(),
                    },
                })
            }
            // They belong to subscriptions, or to nothing that this revision knows.
            NoticeKind::ListChanged { .. }
            | NoticeKind::ResourceUpdated { .. }
            | NoticeKind::ElicitationComplete
            | NoticeKind::Other => None,
        }
    }
}

impl DownstreamLink for ModernLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn notify(&self, notice: Notice) {
        let state = self.lock();
        if let Some(notice) = state.wanted(notice, self.first_progress.as_deref()) {
            state.outlet.notify(notice);
        }
    }

    fn ask(&self, _round: Round) -> BoxFuture<'_, Asked> {
        COUNTERS.questions_refused.add(1);
        Box::pin(std::future::ready(Asked::CannotAsk(
            "a client of this revision cannot be asked yet".to_owned(),
        )))
    }

    fn level(&self) -> Option<Level> {
        self.lock().level
    }

    fn routed(&self, upstream: &Arc<str>) {
        self.upstream.get_or_init(|| Arc::clone(upstream));
    }
}
