//! The downstream link of the modern era: the operations that a call may perform toward its client.
//!
//! A modern client is asked by ending the exchange with `input_required`; the answers arrive with a retry. State of a
//! modern upstream is sealed into `requestState` and not kept here; a call waiting at a legacy upstream is parked until
//! the retry takes the call over (module `round`).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::answers;
use super::envelope::RequestEnvelope;
use super::parking::{ParkedCalls, SharedConnection};
use super::request_state::{LIFE, RequestBinding, RequestState};
use super::response_queue::ResponseQueue;
use super::round::{InputRounds, RoundStage};
use crate::auth;
use crate::budget::{KeptLeases, ReplyRoom, ReplyShare};
use crate::call::{
    CarriedState, ClientCapabilities, DownstreamLink, InputOutcome, InputRequest, InputRequests,
    LogLevel, Notice, NoticeKind, OwnerKey, Reply,
};
use crate::downstream::access_log::AccessRecord;
use crate::lock::lock;
use crate::protocol::{Message, json};
use crate::relay::Relay;
use crate::seal::SealPurpose;
use crate::session::Session;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::trace::TraceContext;

/// How an exchange ends.
#[derive(Debug)]
pub(super) enum ExchangeOutcome {
    /// A reply, and the status it has when no stream has begun.
    Reply(StatusCode, Reply),
    /// Refused by policy, with its challenge, before anything was sent upstream.
    Denied(auth::DeniedResponse, Reply),
    /// The call waits for answers: JSON text of the `input_required` result.
    Parked(Bytes),
    /// The call was cancelled: no answer is owed.
    Cancelled,
}

/// Preferences of the exchange that waits for a call: capabilities, log level, progress token.
#[derive(Debug, Clone)]
pub(super) struct ExchangePreferences {
    /// Capabilities of the client, for questions.
    pub(super) capabilities: ClientCapabilities,
    level: Option<LogLevel>,
    /// JSON text of the progress token.
    progress: Option<String>,
}

impl ExchangePreferences {
    pub(super) fn new(capabilities: ClientCapabilities, envelope: &RequestEnvelope) -> Self {
        Self {
            capabilities,
            level: envelope.level,
            progress: envelope.progress.clone(),
        }
    }
}

/// Dependencies of a call's questions.
pub(super) struct InputContext {
    pub(super) parking: Arc<ParkedModernCalls>,
    pub(super) relay: Arc<Relay>,
    pub(super) session: Arc<Session>,
    /// Binding, endpoint and request that a retry must match.
    pub(super) request_binding: RequestBinding,
    pub(super) owner: OwnerKey,
    /// The connection of the first exchange.
    pub(super) connection: SharedConnection,
    /// The caller's share of the reply budget.
    pub(super) share: Option<ReplyShare>,
}

/// Calls of modern clients that wait for a retry.
pub(in crate::downstream) type ParkedModernCalls = ParkedCalls<ModernClientLink>;

/// A running call.
pub(in crate::downstream) struct ModernClientLink {
    pub(super) me: Weak<Self>,
    pub(super) context: InputContext,
    upstream: OnceLock<Arc<str>>,
    trace: OnceLock<TraceContext>,
    cancel: CancellationToken,
    /// JSON text of the progress token that the upstream's was made from.
    first_progress: Option<String>,
    /// Leases of the call's replies on the reply budget.
    leases: KeptLeases,
    /// Held by the question that waits for the call's place among the parked ones.
    pub(super) placing: tokio::sync::Mutex<()>,
    state: Mutex<TakeoverState>,
}

/// State replaced when a retry takes the call over.
pub(super) struct TakeoverState {
    pub(super) stage: RoundStage,
    pub(super) wants: ExchangePreferences,
    /// The newest progress while no response waits for it.
    pub(super) kept: Option<Notice>,
    pub(super) rounds: InputRounds,
    /// Record of the waiting request, which notes how the call ends.
    pub(super) record: AccessRecord,
}

impl ModernClientLink {
    /// A call that `response_queue` waits for, on behalf of the request that `record` is about.
    pub(super) fn new(
        context: InputContext,
        wants: ExchangePreferences,
        response_queue: Arc<ResponseQueue<ExchangeOutcome>>,
        record: AccessRecord,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            context,
            upstream: OnceLock::new(),
            trace: OnceLock::new(),
            cancel: CancellationToken::new(),
            first_progress: wants.progress.clone(),
            leases: KeptLeases::default(),
            placing: tokio::sync::Mutex::default(),
            state: Mutex::new(TakeoverState {
                stage: RoundStage::Awaited(response_queue),
                wants,
                kept: None,
                rounds: InputRounds::default(),
                record,
            }),
        })
    }

    /// Attaches the budget leases of the upstream replies to the answer made of them.
    pub(super) fn hold(&self, answer: Bytes) -> Bytes {
        self.leases.hold(answer)
    }

    /// Cancelled when the client has gone.
    pub(super) fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The upstream of the call, once known.
    pub(super) fn upstream(&self) -> Option<&Arc<str>> {
        self.upstream.get()
    }

    /// Told where the call stands in its trace.
    pub(super) fn traced(&self, trace: &TraceContext) {
        self.trace.get_or_init(|| trace.clone());
    }

    /// Trace context of the call; empty until known.
    pub(super) fn trace(&self) -> TraceContext {
        self.trace.get().cloned().unwrap_or_default()
    }

    /// Access record of the exchange that waits now.
    pub(super) fn record(&self) -> AccessRecord {
        self.lock().record.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TakeoverState> {
        lock(&self.state)
    }

    /// The notice in the form that `wants` asks for; `None` if unwanted.
    pub(super) fn wanted(&self, wants: &ExchangePreferences, notice: Notice) -> Option<Notice> {
        match &notice.kind {
            // Spec: SPEC C-21, M-42.
            NoticeKind::Log => {
                let wanted = wants.level?;
                let loud = notice.level().is_none_or(|level| level >= wanted);
                loud.then_some(notice)
            }
            NoticeKind::Progress { .. } => {
                let token = wants.progress.as_deref()?;
                if Some(token) == self.first_progress.as_deref() {
                    return Some(notice);
                }
                let message = Message::parse(notice.bytes, json::MAX_DEPTH).ok()?;
                Some(Notice {
                    bytes: message.edit().param("progressToken", token).finish(),
                    kind: NoticeKind::Progress {
                        token: token.into(),
                    },
                })
            }
            // From an extension that client and upstream share.
            NoticeKind::Other => Some(notice),
            // Sent on subscriptions, or unknown to this revision.
            NoticeKind::ListChanged { .. }
            | NoticeKind::ResourceUpdated { .. }
            | NoticeKind::ElicitationComplete => None,
        }
    }

    /// A state of this call as the client carries it, good for `life`.
    pub(super) fn sealed(&self, state: &RequestState, life: Duration) -> String {
        let (binding, parking) = (&self.context.request_binding, &self.context.parking);
        binding.seal(&parking.sealer, state, parking.clock.now() + life)
    }

    /// Seals the upstream's state into `requestState`; the gateway keeps none of it. Spec: BRIDGING §3.3.
    fn suspend(&self, entries: &[(String, InputRequest)], carry: CarriedState) -> InputOutcome {
        let sealed = self.sealed(&RequestState::Carried(carry), LIFE);
        if sealed.len() > SealPurpose::RequestState.max_len() {
            return InputOutcome::CannotAsk("the upstream's state is too large".to_owned());
        }
        COUNTERS.questions_asked.add(entries.len() as u64);
        let server = self.context.relay.opener.server_info(&self.context.session);
        let shown = entries
            .iter()
            .map(|(key, question)| (key.clone(), question));
        InputOutcome::Suspended(answers::input_required(shown, &sealed, &server))
    }
}

impl std::fmt::Debug for ModernClientLink {
    /// Shows no state: sessions and calls know each other.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModernClientLink")
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

impl DownstreamLink for ModernClientLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.context.session.capabilities
    }

    fn notify(&self, notice: Notice) {
        let mut state = self.lock();
        match &state.stage {
            RoundStage::Awaited(response_queue) => {
                if let Some(notice) = self.wanted(&state.wants, notice) {
                    response_queue.notify(notice);
                }
            }
            RoundStage::Waiting if matches!(notice.kind, NoticeKind::Progress { .. }) => {
                state.kept = Some(notice);
            }
            RoundStage::Waiting | RoundStage::Finished(_) | RoundStage::Over => {}
        }
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(async move {
            let missing = {
                let state = self.lock();
                let capabilities = &state.wants.capabilities;
                let mut entries = round.entries.iter();
                entries.find_map(|(_, question)| {
                    capabilities.missing(&question.method, question.params_text())
                })
            };
            if let Some(missing) = missing {
                COUNTERS.questions_refused.add(1);
                return InputOutcome::CannotAsk(missing);
            }
            match round.carry {
                Some(carry) => self.suspend(&round.entries, carry),
                None => self.park(round.entries).await,
            }
        })
    }

    fn level(&self) -> Option<LogLevel> {
        self.lock().wants.level
    }

    fn reply_room(&self) -> Option<ReplyRoom<'_>> {
        Some(ReplyRoom {
            share: self.context.share.as_ref()?,
            kept: &self.leases,
        })
    }

    /// Each round has a deadline of its own (module `round`).
    fn keeps_time(&self) -> bool {
        true
    }

    fn routed(&self, upstream: &Arc<str>) {
        self.upstream.get_or_init(|| Arc::clone(upstream));
    }
}
