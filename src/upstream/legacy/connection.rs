//! One physical connection of a legacy link: handshake done, our ids, our progress tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::in_flight::InFlight;
use super::inbound::OPEN_QUESTIONS;
use super::wire::Wire;
use super::{Settings, handshake};
use crate::call::{Call, Declared, DownstreamLink, Reply};
use crate::config;
use crate::protocol::{Message, RequestId, Revision};
use crate::telemetry::metrics::{LABELED, UpstreamSession};
use crate::telemetry::names::attribute;
use crate::telemetry::trace::{CallSpan, Outcome, TRACEPARENT, TRACESTATE, TraceContext};
use crate::upstream::activity::Activity;
use crate::upstream::carrier::{Carrier, Older, Started};
use crate::upstream::duplex::Messages;
use crate::upstream::error::LinkError;
use crate::upstream::http::client::HttpClient;
use crate::upstream::http::wire::{Bounds, HttpWire, next_stretch};
use crate::upstream::lock;
use crate::upstream::stdio::HoldGuard;

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) settings: Arc<Settings>,
    pub(super) wire: Wire,
    declared: Arc<Declared>,
    next_id: AtomicU64,
    pub(super) pending: Mutex<HashMap<u64, Arc<Pending>>>,
    /// Open questions of the upstream, by its id, with what withdraws them.
    pub(super) asking: Mutex<HashMap<RequestId, CancellationToken>>,
    /// Places for answers on their way that needed nobody to be asked.
    pub(super) answers: Arc<Semaphore>,
    forgotten: AtomicBool,
    closed: CancellationToken,
    listener: Mutex<Option<CancellationToken>>,
    /// The stretch of hearing of a pipe, which lasts as long as the connection.
    stretch: u64,
    /// Keeps a child from being stopped for being idle.
    held: Mutex<Option<HoldGuard>>,
    _counted: UpstreamSession,
}

/// A request of ours without its reply.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    /// The client's link; none for our own requests.
    pub(super) link: Option<Arc<dyn DownstreamLink>>,
    /// JSON text of the client's progress token.
    pub(super) progress: Option<Arc<str>>,
    /// The task whose result is asked for: its questions are this call's.
    pub(super) task: Option<String>,
    pub(super) activity: Arc<Activity>,
    /// Cancelled when the request is over: its questions are withdrawn.
    pub(super) over: CancellationToken,
    reply: Mutex<Option<oneshot::Sender<Result<Message, LinkError>>>>,
}

/// Where the reply to a request of ours comes, if it does.
type Landing = oneshot::Receiver<Result<Message, LinkError>>;

impl Connection {
    /// Opens the carrier, unless it is given, and shakes hands.
    pub(super) async fn open(
        settings: &Arc<Settings>,
        started: Option<Started>,
    ) -> Result<Arc<Self>, LinkError> {
        match &settings.carrier {
            Carrier::Http(client, bounds, None) => Self::open_http(settings, client, *bounds).await,
            Carrier::Http(client, bounds, Some(older)) => {
                Self::open_either(settings, client, *bounds, older).await
            }
            Carrier::Duplex(source) => {
                let started = match started {
                    Some(started) => started,
                    None => Started::new(source, settings).await?,
                };
                Self::greet(settings, started).await
            }
        }
    }

    async fn open_http(
        settings: &Arc<Settings>,
        client: &HttpClient,
        bounds: Bounds,
    ) -> Result<Arc<Self>, LinkError> {
        let wire = HttpWire::new(settings.name.clone(), client.clone(), bounds);
        let first = Self::first(settings);
        let take = &mut |message: Message| (message.id() == Some("1")).then_some(message);
        let reply = wire.request(first, None, take).await;
        let declared = handshake::read(&reply?)?;
        wire.set_version(declared.revision.as_str());
        let connection = Self::new(settings, Wire::Http(Arc::new(wire)), declared);
        connection.wire.send(INITIALIZED).await?;
        Ok(connection)
    }

    /// Streamable HTTP, or where that is refused the transport before it; what was found is tried
    /// first the next time. Spec: SPEC U-05.
    async fn open_either(
        settings: &Arc<Settings>,
        client: &HttpClient,
        bounds: Bounds,
        older: &Older,
    ) -> Result<Arc<Self>, LinkError> {
        let open_older = async || {
            let opened = Started::over_events(client, bounds, settings).await?;
            Self::greet(settings, opened).await
        };
        if older.is_spoken() {
            match open_older().await {
                // It may have learnt something newer.
                Err(LinkError::Status(_) | LinkError::Invalid(_)) => older.note(false),
                other => return other,
            }
        }
        let refused = match Self::open_http(settings, client, bounds).await {
            Err(error @ LinkError::Status(400 | 404 | 405)) => error,
            other => return other.map_err(handshake::refused),
        };
        match open_older().await {
            Ok(connection) => {
                tracing::info!(upstream = %settings.name, "upstream speaks HTTP+SSE of 2024-11-05");
                older.note(true);
                Ok(connection)
            }
            Err(error @ LinkError::Invalid(_)) => Err(error),
            Err(_) => Err(handshake::refused(refused)),
        }
    }

    /// Shakes hands on a connection that is open, unless it was done already.
    async fn greet(settings: &Arc<Settings>, started: Started) -> Result<Arc<Self>, LinkError> {
        let Started {
            child,
            mut lines,
            greeted,
            answer,
        } = started;
        if !greeted {
            child.send(Self::first(settings)).await?;
        }
        let declared = loop {
            if let Some(answer) = &answer {
                break handshake::read(answer)?;
            }
            let line = lines.next().await.ok_or_else(|| child.lost())?;
            let message = Message::parse(line, settings.message_depth);
            match message {
                Ok(message) if message.id() == Some("1") && message.method().is_none() => {
                    break handshake::read(&message)?;
                }
                _ => tracing::debug!(upstream = %settings.name, "line before handshake"),
            }
        };
        let connection = Self::new(settings, Wire::Duplex(child), declared);
        connection.wire.send(INITIALIZED).await?;
        settings.tasks.spawn_service(read_lines(
            Arc::downgrade(&connection),
            settings.message_depth,
            lines,
        ));
        Ok(connection)
    }

    fn first(settings: &Settings) -> Bytes {
        let capabilities = settings.capabilities.raw();
        // A modern revision is never negotiated by a handshake (SPEC L-01).
        let offer = settings.offer.min(Revision::LATEST_LEGACY);
        handshake::request(1, offer, capabilities, &settings.client_info)
    }

    fn new(settings: &Arc<Settings>, wire: Wire, declared: Arc<Declared>) -> Arc<Self> {
        Arc::new(Self {
            settings: Arc::clone(settings),
            wire,
            declared,
            next_id: AtomicU64::new(2),
            pending: Mutex::default(),
            asking: Mutex::default(),
            answers: Arc::new(Semaphore::new(OPEN_QUESTIONS)),
            forgotten: AtomicBool::new(false),
            closed: CancellationToken::new(),
            listener: Mutex::default(),
            stretch: next_stretch(),
            held: Mutex::default(),
            _counted: UpstreamSession::begin(&settings.name),
        })
    }

    pub(super) fn declared(&self) -> &Arc<Declared> {
        &self.declared
    }

    /// Whether the upstream can tell this connection from others.
    pub(super) fn has_session(&self) -> bool {
        match &self.wire {
            Wire::Duplex(_) => true,
            Wire::Http(http) => http.has_session(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
            || match &self.wire {
                Wire::Duplex(duplex) => duplex.closed().is_cancelled(),
                Wire::Http(_) => false,
            }
    }

    /// See [`crate::call::UpstreamLink::hearing`].
    pub(super) fn hearing(&self) -> Option<u64> {
        match &self.wire {
            Wire::Duplex(_) => Some(self.stretch),
            Wire::Http(http) => http.hearing(),
        }
    }

    /// The upstream no longer knows this session.
    pub(super) fn forget(self: &Arc<Self>) {
        self.forgotten.store(true, Ordering::Relaxed);
        self.listen(false);
    }

    /// Sends a call and waits for its reply, within the upstream's deadlines.
    ///
    /// # Cancel safety
    /// Dropping the future tells the upstream that the request is cancelled.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let progress = request.meta("progressToken").map(Arc::from);
        let own = id.to_string();
        let mut edit = request.edit().id(own.as_str());
        if progress.is_some() {
            edit = edit.meta("progressToken", own.as_str());
        }
        let method = request.method().unwrap_or_default();
        let mut span = CallSpan::client(&call.trace, method, &self.settings.name);
        if span.is_recorded()
            && method == "tools/call"
            && let Some(tool) = request.param_str("name")
        {
            span.attribute(attribute::TOOL, || tool.into_owned());
        }
        let (parent, state) = self.stamp(request, span.context());
        if let Some(parent) = &parent {
            edit = edit.meta(TRACEPARENT, parent.as_str());
        }
        if let Some(state) = &state {
            edit = edit.meta(TRACESTATE, state.as_str());
        }
        let bytes = edit.finish();
        let activity = Arc::new(Activity::new());
        let link = Some(Arc::clone(&call.link));
        let task = (method == "tasks/result").then(|| request.param_str("taskId"));
        let task = task.flatten().map(std::borrow::Cow::into_owned);
        let (flight, reply) = self.take_off(id, link, progress, task, Arc::clone(&activity));
        let upstream = &self.settings.upstream;
        let outcome = tokio::select! {
            // Once the reply is there, nothing else is looked at.
            biased;
            reply = self.exchange(flight.pending(), bytes, Some(span.context()), reply) => {
                flight.landed();
                reply
            }
            () = activity.expired(upstream.idle_timeout, upstream.total_timeout) => {
                flight.abort("timeout");
                Err(LinkError::Timeout)
            }
            () = call.cancel.cancelled() => {
                flight.abort(call.link.cancel_reason().unwrap_or("cancelled by the client"));
                Err(LinkError::Cancelled)
            }
        };
        span.finish(match &outcome {
            Ok(reply) => reply.error_code().map_or(Outcome::Ok, Outcome::Rpc),
            Err(error) => Outcome::Failed(error.kind()),
        });
        outcome.map(Reply::Relayed)
    }

    /// Trace context for `_meta`, as JSON text: on a pipe there is no header, and what the client
    /// put there must not stay the parent (SPEC C-98).
    fn stamp(&self, request: &Message, trace: &TraceContext) -> (Option<String>, Option<String>) {
        let piped = matches!(self.wire, Wire::Duplex(_));
        if !piped && request.meta(TRACEPARENT).is_none() {
            return (None, None);
        }
        let quote = |text: &str| crate::protocol::json::quote(text);
        let parent = trace.traceparent().map(|parent| quote(parent.as_str()));
        (parent, trace.tracestate().map(quote))
    }

    /// Sends one of our own requests with a single parameter; that it fails is only logged.
    pub(super) async fn tell(self: &Arc<Self>, method: &str, name: &str, value: &str) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let bytes = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"{name}":{value}}}}}"#
        );
        let activity = Arc::new(Activity::new());
        let (flight, reply) = self.take_off(id, None, None, None, Arc::clone(&activity));
        let limit = self.settings.upstream.connect_timeout;
        let exchange = self.exchange(flight.pending(), bytes.into(), None, reply);
        match tokio::time::timeout(limit, exchange).await {
            Ok(Ok(reply)) if reply.error().is_none() => {}
            _ => tracing::warn!(upstream = %self.settings.name, method, "state not restored"),
        }
        flight.landed();
    }

    fn take_off(
        self: &Arc<Self>,
        id: u64,
        link: Option<Arc<dyn DownstreamLink>>,
        progress: Option<Arc<str>>,
        task: Option<String>,
        activity: Arc<Activity>,
    ) -> (InFlight, Landing) {
        let (sender, receiver) = oneshot::channel();
        let over = CancellationToken::new();
        let pending = Arc::new(Pending {
            id,
            link,
            progress,
            task,
            activity,
            over,
            reply: Mutex::new(Some(sender)),
        });
        lock(&self.pending).insert(id, Arc::clone(&pending));
        (InFlight::new(Arc::clone(self), pending), receiver)
    }

    async fn exchange(
        self: &Arc<Self>,
        pending: &Arc<Pending>,
        bytes: Bytes,
        trace: Option<&TraceContext>,
        reply: Landing,
    ) -> Result<Message, LinkError> {
        match &self.wire {
            Wire::Duplex(duplex) => {
                let _busy = duplex.busy();
                duplex.send(bytes).await?;
                reply.await.map_err(|_| duplex.lost())?
            }
            Wire::Http(http) => {
                let mut take = |message| self.on_message(message, Some(pending));
                tokio::select! {
                    biased;
                    direct = http.request(bytes, trace, &mut take) => direct,
                    Ok(elsewhere) = reply => elsewhere,
                }
            }
        }
    }

    /// Hands a reply that came on no call's own stream to whoever waits for it.
    pub(super) fn deliver(&self, id: u64, message: Message) {
        let pending = lock(&self.pending).get(&id).map(Arc::clone);
        match pending.and_then(|pending| lock(&pending.reply).take()) {
            Some(waiting) => drop(waiting.send(Ok(message))),
            None => self.suspect("it answered a request that we did not make"),
        }
    }

    /// Notes a breach of the protocol that does not end the connection (SPEC U-14).
    pub(super) fn suspect(&self, what: &str) {
        LABELED.upstream_garbage.add(&self.settings.name, 1);
        tracing::warn!(upstream = %self.settings.name, what, "upstream breaks the protocol");
    }

    /// Sends a notification or a response; a failure shows in the calls.
    pub(super) async fn send(&self, message: Bytes) {
        if let Err(error) = self.wire.send(message).await {
            tracing::debug!(upstream = %self.settings.name, error = %error, "not delivered");
        }
    }

    /// Opens or closes the GET stream of an HTTP session.
    pub(super) fn listen(self: &Arc<Self>, wanted: bool) {
        let Wire::Http(http) = &self.wire else { return };
        let mut listener = lock(&self.listener);
        match (&*listener, wanted && !self.is_closed() && self.can_push()) {
            (None, true) => {
                let stop = self.closed.child_token();
                *listener = Some(stop.clone());
                let (http, this) = (Arc::clone(http), Arc::downgrade(self));
                self.settings.tasks.spawn_service(async move {
                    let listen = http.listen(move |message| {
                        if let Some(this) = this.upgrade() {
                            this.on_message(message, None);
                        }
                    });
                    tokio::select! {
                        () = listen => {}
                        () = stop.cancelled() => {}
                    }
                });
            }
            (Some(stop), false) => {
                stop.cancel();
                *listener = None;
            }
            _ => {}
        }
    }

    /// Keeps a child alive, or lets it end, while nobody calls it.
    pub(super) fn hold(&self, wanted: bool) {
        let Wire::Duplex(duplex) = &self.wire else {
            return;
        };
        let mut held = lock(&self.held);
        if !wanted {
            *held = None;
        } else if held.is_none() {
            *held = duplex.hold();
        }
    }

    /// Whether anything can come over a GET stream (DESIGN §6).
    fn can_push(&self) -> bool {
        let text = String::from_utf8_lossy(&self.declared.capabilities);
        self.settings.capabilities.raw().as_ref() != b"{}"
            || ["\"listChanged\"", "\"subscribe\"", "\"logging\""]
                .iter()
                .any(|word| text.contains(word))
    }

    /// Ends the connection politely.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.wire.close().await;
        self.fail_all();
    }

    fn fail_all(&self) {
        let last_words = match &self.wire {
            Wire::Duplex(duplex) => duplex.last_words(),
            Wire::Http(_) => None,
        };
        let waiting: Vec<_> = lock(&self.pending)
            .values()
            .filter_map(|pending| lock(&pending.reply).take())
            .collect();
        for reply in waiting {
            drop(reply.send(Err(LinkError::Lost {
                last_words: last_words.clone(),
            })));
        }
        for (_, question) in lock(&self.asking).drain() {
            question.cancel();
        }
    }
}

/// The second half of the handshake.
const INITIALIZED: Bytes =
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);

/// Reads a child until it is gone. Does not keep the connection: one that nobody has any more
/// takes its child with it.
async fn read_lines(connection: Weak<Connection>, depth: usize, mut lines: Messages) {
    while let Some(line) = lines.next().await {
        let Some(connection) = connection.upgrade() else {
            return;
        };
        match Message::parse(line, depth) {
            Ok(message) => drop(connection.on_message(message, None)),
            Err(error) => {
                connection.suspect(&format!("a line is no JSON-RPC message: {error}"));
            }
        }
    }
    if let Some(connection) = connection.upgrade() {
        connection.fail_all();
    }
}

/// Whose questions may name no call.
pub(super) fn may_ask_unattributed(settings: &Settings) -> bool {
    settings.exclusive && settings.upstream.isolation == config::Isolation::Session
}
