//! `ModernConnection`: what a modern link sends over. It knows the upstream's declaration, sends one request at a time
//! over HTTP or to its child, and matches what comes back. Spec: SPEC M-44, U-05.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::discover::{self, DiscoverVerdict};
use super::pipe::{ChildPipe, OpenPipe};
use super::running_request::{ReplyOwner, RunningRequest};
use crate::budget::ReplyLease;
use crate::call::{ClientCapabilities, ServerDeclaration};
use crate::cause::chain;
use crate::protocol::json::JsonError;
use crate::protocol::{Message, extensions};
use crate::sync::shared_failure::SharedFailure;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::http::http_session::HttpSession;
use crate::upstream::carrier::http::message_headers::MessageHeaders;
use crate::upstream::carrier::http::sink::MessageSink;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;
use crate::upstream::room::GrowingReply;

/// What is wrong with a reply without a request.
pub(super) const ANSWERS_UNASKED: &str = "it answered a request that we did not make";

/// The connection of a modern link, opened on demand.
#[derive(Debug)]
pub(super) struct ModernConnection {
    pub(super) settings: Arc<LinkSettings>,
    wire: ModernWire,
    /// The upstream's declaration; until `is_asked`, the declaration received by another link.
    declared: Mutex<Option<Arc<ServerDeclaration>>>,
    /// Whether this link has received `declared` itself.
    is_asked: AtomicBool,
    asking: SharedFailure<LinkError>,
    next_id: AtomicU64,
    closed: CancellationToken,
}

/// The transport of a connection.
#[derive(Debug)]
enum ModernWire {
    Http(Box<HttpSession>),
    Pipe(Box<ChildPipe>),
}

impl ModernConnection {
    /// A connection; `known` is the declaration that another link received, `started` a child that was started for the
    /// probe.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        known: Option<Arc<ServerDeclaration>>,
        started: Option<StartedConnection>,
    ) -> Arc<Self> {
        let wire = match &settings.carrier {
            Carrier::Http(client, bounds, _) => ModernWire::Http(Box::new(HttpSession::new(
                Arc::clone(&settings.name),
                (**client).clone(),
                *bounds,
            ))),
            Carrier::Duplex(source) => {
                ModernWire::Pipe(Box::new(ChildPipe::new(source.clone(), started)))
            }
        };
        Arc::new(Self {
            settings,
            wire,
            declared: Mutex::new(known),
            is_asked: AtomicBool::new(false),
            asking: SharedFailure::default(),
            next_id: AtomicU64::new(2),
            closed: CancellationToken::new(),
        })
    }

    /// The upstream's declaration, if known.
    pub(super) fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        lock(&self.declared).clone()
    }

    /// Records the declaration that the era probe has just received.
    pub(super) fn told(&self, declared: &Arc<ServerDeclaration>) {
        self.note_declared(declared);
        self.settings.intake.opened(&self.settings.name, declared);
    }

    fn note_declared(&self, declared: &Arc<ServerDeclaration>) {
        *lock(&self.declared) = Some(Arc::clone(declared));
        self.is_asked.store(true, Ordering::Release);
    }

    /// Requests the upstream's declaration, unless this link has done so.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Arc<ServerDeclaration>, LinkError> {
        let known = || {
            let is_asked = self.is_asked.load(Ordering::Acquire);
            is_asked.then(|| self.declared()).flatten()
        };
        if let Some(declared) = known() {
            return Ok(declared);
        }
        let turn = self.asking.attempt().await;
        if let Some(declared) = known() {
            return Ok(declared);
        }
        if let Some(failed) = turn.spared() {
            return Err(failed);
        }
        if self.closed.is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        let limit = self.settings.upstream.connect_timeout;
        let discovered = async {
            self.start().await?;
            let since = Instant::now();
            let declared = tokio::time::timeout(limit, self.discover()).await;
            declared.unwrap_or_else(|_| Err(self.timed_out(since, None)))
        };
        match discovered.await {
            Ok(declared) => {
                self.note_declared(&declared);
                drop(turn);
                self.settings.intake.opened(&self.settings.name, &declared);
                Ok(declared)
            }
            Err(error) => {
                let error = error.of_opening();
                self.settings.count_unopened(&error);
                tracing::debug!(upstream = %self.settings.name, error = chain(&error), "upstream not opened");
                turn.share(error.clone());
                Err(error)
            }
        }
    }

    async fn discover(self: &Arc<Self>) -> Result<Arc<ServerDeclaration>, LinkError> {
        let piped = matches!(self.wire, ModernWire::Pipe(_));
        let mut lost = false;
        for _ in 0..3 {
            let running = RunningRequest::new(
                self.next_id(),
                ReplyOwner::Nobody,
                Arc::new(CallActivity::new()),
            );
            let bytes = discover::request(running.id, &self.settings);
            let reply = self
                .exchange_again(bytes, || Ok(discover::headers()), &running)
                .await;
            let reply = match reply {
                // Spec: SPEC M-44.
                Err(LinkError::Lost { .. }) if !(lost || piped) => {
                    lost = true;
                    continue;
                }
                reply => reply?,
            };
            match discover::judge(&reply, piped, &self.settings.upstream) {
                DiscoverVerdict::Modern(declared) => return Ok(declared),
                DiscoverVerdict::Again => {}
                DiscoverVerdict::Legacy => {
                    let what = "it does not know server/discover";
                    return Err(LinkError::Handshake(what.to_owned()));
                }
                DiscoverVerdict::Foreign(revisions) => {
                    return Err(LinkError::Handshake(format!("it speaks only {revisions}")));
                }
            }
        }
        Err(discover::refuses())
    }

    /// One exchange with the upstream over HTTP or the pipe. The headers are built only where they are used, since
    /// moving their large list is expensive.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        bytes: Bytes,
        headers: impl FnOnce() -> Result<MessageHeaders, JsonError> + Send,
        running: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        match &self.wire {
            ModernWire::Pipe(pipe) => self.exchange_piped(pipe, bytes, running).await,
            ModernWire::Http(http) => {
                let mut take = ModernPostStream(self, running);
                let unsendable = |error: JsonError| LinkError::Unsendable(error.to_string());
                // Two awaits: one future around both would be moved as a whole.
                let reply = match http.post(bytes, headers().map_err(unsendable)?).await {
                    Ok(response) => http.read(response, &mut take).await,
                    Err(error) => Err(error.into()),
                };
                if let Err(LinkError::Lost { .. }) = &reply {
                    LABELED.upstream_lost.add(&self.settings.name, 1);
                }
                reply
            }
        }
    }

    /// [`exchange`](Self::exchange) for the gateway's own requests: retried once if the upstream has not read the
    /// request.
    pub(super) async fn exchange_again(
        self: &Arc<Self>,
        bytes: Bytes,
        headers: impl Fn() -> Result<MessageHeaders, JsonError> + Send + Sync,
        running: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        let reply = self.exchange(bytes.clone(), &headers, running).await;
        let reply = match reply {
            Err(LinkError::Unread { .. }) => self.exchange(bytes, &headers, running).await,
            other => other,
        };
        reply.map_err(LinkError::of_last_try)
    }

    /// The error of a call that began at `since` and was not answered in time; `request` is the one that runs.
    pub(super) fn timed_out(&self, since: Instant, request: Option<&RunningRequest>) -> LinkError {
        let pipe = self.pipe();
        pipe.map_or(LinkError::Timeout, |pipe| {
            pipe.timed_out(since, request, &self.settings)
        })
    }

    /// Cancelled once the connection is closed.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Closes the connection and its child permanently.
    ///
    /// # Cancel safety
    /// Closes both in any case, in a task of its own.
    pub(super) fn close(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        self.closed.cancel();
        let this = Arc::clone(self);
        let closing = self.pipe().is_some().then(|| {
            let limit = self.settings.closing_limit();
            self.settings.tasks.finish(limit, async move {
                if let Some(pipe) = this.pipe() {
                    pipe.close().await;
                }
            })
        });
        OptionFuture::from(closing).map(drop)
    }

    /// Whether upstream and client both declare an extension that the gateway does not know.
    pub(super) fn shares_extension(&self, client: &ClientCapabilities) -> bool {
        let Some(declared) = self.declared() else {
            return false;
        };
        extensions::share_foreign(client.text(), &declared.capabilities)
    }

    /// The id of the gateway's next request, also used as its progress token.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a request of this link had the id, which is also its progress token.
    pub(super) fn has_used(&self, id: u64) -> bool {
        id < self.next_id.load(Ordering::Relaxed)
    }

    pub(super) fn pipe(&self) -> Option<&ChildPipe> {
        match &self.wire {
            ModernWire::Pipe(pipe) => Some(pipe),
            ModernWire::Http(_) => None,
        }
    }

    pub(super) fn running(&self, id: u64, from: Option<&OpenPipe>) -> Option<Arc<RunningRequest>> {
        self.pipe()?.running(id, from?)
    }

    /// The call that a message of the child `from` without an id is about.
    pub(super) fn only_call(&self, from: &OpenPipe) -> Option<Arc<RunningRequest>> {
        self.pipe()?.only_call(from, self.settings.exclusive)
    }

    /// Delivers a reply of the child `from` to its request. Late replies are ignored (SPEC C-10); if one begins a task,
    /// the task is cancelled.
    pub(super) fn deliver(&self, id: u64, message: Message, from: Option<&OpenPipe>) {
        let Some(pipe) = self.pipe() else { return };
        match pipe.deliver(id, Ok(message), from) {
            Some(_) if !self.has_used(id) => {
                self.suspect(ANSWERS_UNASKED);
            }
            Some(Ok(late)) => pipe.cancel_begun(id, &late, from, || self.next_id()),
            None | Some(Err(_)) => {}
        }
    }
}

/// Receives the messages of the stream that answers a request.
struct ModernPostStream<'a>(&'a ModernConnection, &'a Arc<RunningRequest>);

impl MessageSink for ModernPostStream<'_> {
    fn message(&mut self, message: Message) -> Option<Message> {
        self.0.on_message(message, self.1)
    }

    fn awaits(&self, id: u64) -> bool {
        self.1.id == id
    }

    fn growing(&self) -> Option<GrowingReply> {
        let Some(room) = self.1.reply_room() else {
            let settings = &self.0.settings;
            // Lists do not wait for the caller's share: a list whose copy exceeds the budget is refused.
            let share = match self.1.whose {
                ReplyOwner::Listen(_) => settings.arriving_share(),
                _ => settings.replies.clone(),
            };
            return Some(GrowingReply::outside_calls(&share));
        };
        Some(GrowingReply::of(room, &self.1.activity))
    }

    fn keep(&mut self, lease: ReplyLease) {
        self.1.keep(lease);
    }

    /// Comments count as activity too: each shows that the upstream is alive.
    fn taken(&mut self) {
        self.1.activity.touch();
    }
}
