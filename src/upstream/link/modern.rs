//! `ModernServerLink`: a link to an upstream of the modern era. Every request is self-contained: it has an id of the
//! gateway and all the metadata that the upstream needs, and opens its connection on demand. Legacy requests without a
//! modern counterpart (levels, subscriptions) are answered here. Spec: MCP 2026-07-28; SPEC §2b…2f, §3, §4; BRIDGING
//! §3.2…§3.5, §3.7.

pub(super) mod discover;
mod envelope;
mod inbound;
mod listen;
mod outgoing_call;
mod pipe;
mod question;
mod room;
mod rounds;
mod running_request;
mod schemas;
mod send;
mod unmarked;
mod url_elicitations;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::discover::DiscoverVerdict;
use self::listen::wanted::LinkListening;
use self::outgoing_call::OutgoingCall;
use self::pipe::{ChildPipe, OpenPipe};
use self::running_request::{ReplyOwner, RunningRequest};
pub(in crate::upstream) use self::schemas::ToolSchemas;
use super::session_state::SessionState;
use crate::call::{Call, ClientCapabilities, LogLevel, Reply, ServerDeclaration};
use crate::cause::chain;
use crate::protocol::{Message, extensions, json};
use crate::sync::shared_failure::SharedFailure;
use crate::upstream::carrier::http::http_session::HttpSession;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// What is wrong with a reply without a request.
const ANSWERS_UNASKED: &str = "it answered a request that we did not make";

/// A link of the modern era.
#[derive(Debug)]
pub(super) struct ModernServerLink {
    settings: Arc<LinkSettings>,
    schemas: Arc<ToolSchemas>,
    /// The tools of `schemas` that this link used last.
    tools: schemas::SeenTools,
    wire: ModernWire,
    /// The upstream's declaration; until `is_asked`, the declaration received by another link.
    declared: Mutex<Option<Arc<ServerDeclaration>>>,
    /// Whether this link has received `declared` itself.
    is_asked: AtomicBool,
    asking: SharedFailure<LinkError>,
    next_id: AtomicU64,
    /// Subscriptions and log level, kept for a link of the other era that may replace this one.
    state: SessionState,
    listening: LinkListening,
    closed: CancellationToken,
}

/// The connection to the upstream.
#[derive(Debug)]
enum ModernWire {
    Http(Box<HttpSession>),
    Pipe(Box<ChildPipe>),
}

impl ModernServerLink {
    /// A link that keeps `state`; `known` is the declaration that another link received, `started` a child that was
    /// started for the probe.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        schemas: Arc<ToolSchemas>,
        state: SessionState,
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
            schemas,
            tools: schemas::SeenTools::default(),
            wire,
            declared: Mutex::new(known),
            is_asked: AtomicBool::new(false),
            asking: SharedFailure::default(),
            next_id: AtomicU64::new(2),
            state,
            listening: LinkListening::default(),
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
    pub(super) async fn open_inner(self: &Arc<Self>) -> Result<Arc<ServerDeclaration>, LinkError> {
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
            let flight = RunningRequest::new(
                self.next_id(),
                ReplyOwner::Nobody,
                Arc::new(CallActivity::new()),
            );
            let bytes = discover::request(flight.id, &self.settings);
            let reply = self
                .exchange_again(bytes, || Ok(discover::headers()), &flight)
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
        let what = "it refuses the revision that it offers";
        Err(LinkError::Handshake(what.to_owned()))
    }

    /// Answers a call, or sends it and waits for its reply within the upstream's deadlines.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub(super) async fn call_inner(
        self: &Arc<Self>,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        if self.closed.is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        match request.method() {
            // Modern requests carry their level, and connections need no ping.
            Some("ping") => return Ok(empty()),
            Some("logging/setLevel") => {
                let level = request.param_str("level");
                if let Some(level) = level.and_then(|word| LogLevel::parse(&word)) {
                    self.state.set_level(level);
                }
                return Ok(empty());
            }
            Some("resources/subscribe") => return self.subscribe(request).await,
            Some("resources/unsubscribe") => {
                if let Some(uri) = request.param_str("uri") {
                    self.unsubscribe(&uri);
                }
                return Ok(empty());
            }
            _ => {}
        }
        let trip = OutgoingCall::new(request, call, Arc::new(CallActivity::new()));
        let upstream = &self.settings.upstream;
        // Pinned outside `select!`: `abort` sets the reason before the running request is dropped.
        let mut work = std::pin::pin!(self.rounds(&trip));
        tokio::select! {
            // A reply that is ready takes precedence over a deadline or a cancellation.
            biased;
            reply = &mut work => reply,
            () = trip.activity.expired(upstream.idle_timeout, upstream.total_timeout) => {
                trip.abort("timeout");
                Err(if trip.activity.awaits_room() {
                    LinkError::no_room()
                } else {
                    let request = lock(&trip.flight).clone();
                    self.timed_out(trip.activity.started(), request.as_deref())
                })
            }
            () = call.cancel.cancelled() => {
                trip.abort(call.link.cancel_reason().unwrap_or("cancelled by the client"));
                Err(LinkError::Cancelled)
            }
        }
    }

    fn timed_out(&self, since: Instant, request: Option<&RunningRequest>) -> LinkError {
        let pipe = self.pipe();
        pipe.map_or(LinkError::Timeout, |pipe| {
            pipe.timed_out(since, request, &self.settings)
        })
    }

    /// Sets whether list changes are wanted.
    pub(super) fn listen(self: &Arc<Self>, wanted: bool) {
        self.want_lists(wanted);
    }

    /// See [`crate::call::UpstreamLink::notice_feed`].
    pub(super) fn notice_feed(&self) -> Option<u64> {
        self.listening.notice_feed().epoch()
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`].
    pub(super) async fn wait_until_live(&self) -> bool {
        tokio::select! {
            begun = self.listening.notice_feed().begun() => begun,
            () = self.closed.cancelled() => false,
        }
    }

    /// Closes the link and its child permanently.
    ///
    /// # Cancel safety
    /// Closes both in any case, in a task of its own.
    pub(super) fn close(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        self.closed.cancel();
        let link = Arc::clone(self);
        let closing = self.pipe().is_some().then(|| {
            let limit = self.settings.closing_limit();
            self.settings.tasks.finish(limit, async move {
                if let Some(pipe) = link.pipe() {
                    pipe.close().await;
                }
            })
        });
        OptionFuture::from(closing).map(drop)
    }

    /// Whether upstream and client both declare an extension that the gateway does not know.
    fn shares_extension(&self, client: &ClientCapabilities) -> bool {
        let Some(declared) = self.declared() else {
            return false;
        };
        let declared = std::str::from_utf8(&declared.capabilities).unwrap_or("{}");
        extensions::share_foreign(client.text(), declared)
    }

    /// The id of the gateway's next request, also used as its progress token.
    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a request of this link had the id, which is also its progress token.
    fn has_used(&self, id: u64) -> bool {
        id < self.next_id.load(Ordering::Relaxed)
    }

    fn pipe(&self) -> Option<&ChildPipe> {
        match &self.wire {
            ModernWire::Pipe(pipe) => Some(pipe),
            ModernWire::Http(_) => None,
        }
    }

    /// The request with this id that runs on the child `from`.
    fn flight(&self, id: u64, from: Option<&OpenPipe>) -> Option<Arc<RunningRequest>> {
        self.pipe()?.flight(id, from?)
    }

    /// The call that a message of the child `from` without an id is about.
    fn only_call(&self, from: &OpenPipe) -> Option<Arc<RunningRequest>> {
        self.pipe()?.only_call(from, self.settings.exclusive)
    }

    /// Delivers a reply of the child `from` to its request. Late replies are ignored (SPEC C-10); if one begins a task,
    /// the task is cancelled.
    fn deliver(&self, id: u64, message: Message, from: Option<&OpenPipe>) {
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

fn empty() -> Reply {
    Reply::Result(Bytes::from_static(b"{}"))
}

/// Parses a request of the gateway's own.
fn own(text: String) -> Result<Message, LinkError> {
    Message::parse(text.into(), json::MAX_DEPTH)
        .map_err(|error| LinkError::Invalid(error.to_string()))
}
