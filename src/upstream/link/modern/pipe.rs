//! `ChildPipe`: the child of a modern link. All requests share its lines, and replies are matched by our ids.
//! Spec: SPEC D-06, D-10, D-11, D-12.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::ModernServerLink;
use super::running_request::{ReplyOwner, RunningRequest};
use crate::budget::EXEMPT_BYTES;
use crate::cause::chain;
use crate::process::WaitPolicy;
use crate::protocol::{Message, extensions, json, meta};
use crate::telemetry::metrics::{LABELED, UpstreamSession};
use crate::upstream::carrier::duplex::{DepartureFlag, DuplexReceiver, DuplexSender, DuplexSource};
use crate::upstream::carrier::{LinkSettings, StartedConnection};
use crate::upstream::deadlines::{PipeClocks, StoppedClocks};
use crate::upstream::error::LinkError;
use crate::upstream::link::abandoned_calls::GivenUp;
use crate::upstream::link::cancellation;
use crate::upstream::lock;
use crate::upstream::room::ArrivingMessage;

/// The connection to a child, started on demand and restarted once it is gone.
#[derive(Debug)]
pub(super) struct ChildPipe {
    source: DuplexSource,
    /// The child started by the era probe, until first used.
    started: Mutex<Option<StartedConnection>>,
    current: Mutex<Option<Arc<OpenPipe>>>,
    opening: tokio::sync::Mutex<()>,
    waiting: Mutex<HashMap<u64, PipeWaiter>>,
    serial: AtomicU64,
    /// Calls dropped before their reply, with the requests that cancel their tasks.
    given_up: GivenUp<Message>,
}

/// A running child.
#[derive(Debug)]
struct OpenPipe {
    child: DuplexSender,
    serial: u64,
    /// Whether it has answered anything.
    answered: AtomicBool,
    /// The idle clocks of its requests.
    clocks: Arc<PipeClocks>,
    /// Permits for answers being written to the child.
    answers: Arc<Semaphore>,
    _counted: UpstreamSession,
}

/// A request without its reply.
#[derive(Debug)]
struct PipeWaiter {
    flight: Arc<RunningRequest>,
    /// The `serial` of the child that got the request.
    serial: u64,
    reply: Option<PipeReply>,
}

/// The sender that resolves a request.
pub(super) type PipeReply = oneshot::Sender<Result<Message, LinkError>>;

impl ChildPipe {
    pub(super) fn new(source: DuplexSource, started: Option<StartedConnection>) -> Self {
        Self {
            source,
            started: Mutex::new(started),
            current: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            serial: AtomicU64::new(0),
            given_up: GivenUp::default(),
        }
    }

    fn open(&self) -> Option<Arc<OpenPipe>> {
        lock(&self.current)
            .as_ref()
            .filter(|open| !open.child.closed().is_cancelled())
            .map(Arc::clone)
    }

    /// Keeps a line that failed to parse for the error of a call that times out.
    pub(super) fn keep_stray(&self, line: &[u8]) {
        if let Some(open) = self.open() {
            open.child.keep_stray(line);
        }
    }

    /// The error of a call that began at `since` and was not answered in time.
    pub(super) fn timed_out(&self, since: Instant, settings: &LinkSettings) -> LinkError {
        let open = self.open();
        open.map_or(LinkError::Timeout, |open| {
            open.child.timed_out(since, settings)
        })
    }

    /// The request under `id`.
    pub(super) fn flight(&self, id: u64) -> Option<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        Some(Arc::clone(&waiting.get(&id)?.flight))
    }

    /// The one call that runs, or the newest where all calls are one client's.
    pub(super) fn only_call(&self, exclusive: bool) -> Option<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        let mut calls: Vec<_> = waiting
            .values()
            .map(|waiting| &waiting.flight)
            .filter(|flight| matches!(flight.whose, ReplyOwner::Call { .. }))
            .collect();
        if calls.len() > 1 && !exclusive {
            return None;
        }
        calls.sort_unstable_by_key(|flight| flight.id);
        calls.last().map(|flight| Arc::clone(flight))
    }

    /// Resolves the request `id`; returns the message if no request waits for it.
    pub(super) fn deliver(
        &self,
        id: u64,
        message: Result<Message, LinkError>,
    ) -> Option<Result<Message, LinkError>> {
        let mut waiting = lock(&self.waiting);
        let reply = waiting
            .get_mut(&id)
            .and_then(|waiting| waiting.reply.take());
        drop(waiting);
        match reply {
            Some(reply) => reply.send(message).err(),
            None => Some(message),
        }
    }

    /// Cancels the task that the late reply to the call `id` begins, under another id. The reply to `tasks/cancel` is
    /// ignored.
    pub(super) fn cancel_begun(&self, id: u64, reply: &Message, next_id: impl FnOnce() -> u64) {
        let Some((cancel, open)) = self.given_up.take(id).zip(self.open()) else {
            return;
        };
        let begins = reply.result_member("resultType") == Some("\"task\"");
        let task = reply.result_member("taskId").filter(|_| begins);
        if let Some(task) = task {
            let cancel = cancel
                .edit()
                .id(next_id().to_string())
                .param("taskId", task);
            // `false` means that the child is ending anyway.
            let _ = open.child.try_send(cancel.finish());
        }
    }

    /// The requests that wait for replies.
    pub(super) fn flights(&self) -> Vec<Arc<RunningRequest>> {
        let waiting = lock(&self.waiting);
        let flights = waiting.values().map(|waiting| Arc::clone(&waiting.flight));
        flights.collect()
    }

    /// Stops the idle clocks of the running child's requests while it is not read; `None` where none runs.
    pub(super) fn stop_clocks(&self) -> Option<StoppedClocks> {
        let open = self.open()?;
        Some(open.clocks.stop(|| {
            let waiting = lock(&self.waiting);
            let own = waiting.values().filter(|one| one.serial == open.serial);
            let activities = own.map(|one| Arc::clone(&one.flight.activity));
            activities.collect::<Vec<_>>()
        }))
    }

    /// Resolves once the child that runs now has ended; at once where none runs.
    pub(super) async fn ended(&self) {
        if let Some(open) = self.open() {
            open.child.closed().cancelled().await;
        }
    }

    /// Takes the sender of the request `id`, with its flight.
    pub(super) fn take_reply(&self, id: u64) -> Option<(Arc<RunningRequest>, PipeReply)> {
        let mut waiting = lock(&self.waiting);
        let waiting = waiting.get_mut(&id)?;
        let reply = waiting.reply.take()?;
        Some((Arc::clone(&waiting.flight), reply))
    }

    /// Puts the sender back, if the request still waits.
    pub(super) fn give_back(&self, id: u64, reply: PipeReply) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&id) {
            waiting.reply = Some(reply);
        }
    }

    /// Fails the requests sent to a child that is gone.
    fn fail(&self, serial: u64) {
        for waiting in lock(&self.waiting).values_mut() {
            if waiting.serial == serial {
                drop(waiting.reply.take());
            }
        }
    }

    /// Ends the child.
    pub(super) async fn close(&self) {
        drop(lock(&self.started).take());
        let open = lock(&self.current).take();
        if let Some(open) = open {
            open.child.close().await;
            self.fail(open.serial);
        }
    }
}

impl ModernServerLink {
    /// Starts the child of a stdio upstream unless it runs already: the wait for a place does not count as connecting.
    pub(super) async fn start(self: &Arc<Self>) -> Result<(), LinkError> {
        match self.pipe().filter(|pipe| pipe.source.is_of_children()) {
            Some(pipe) => self.child(pipe).await.map(drop),
            None => Ok(()),
        }
    }

    /// The child, started if needed.
    async fn child(self: &Arc<Self>, pipe: &ChildPipe) -> Result<Arc<OpenPipe>, LinkError> {
        match pipe.open() {
            Some(open) => Ok(open),
            // Boxed: rare, and larger than the rest of the future.
            None => Box::pin(self.start_child(pipe)).await,
        }
    }

    /// Answers a request of the child. Servers of this era send no requests, yet some check that their client is alive
    /// and exit when a request stays unanswered. Spec: SPEC D-09, L-07.
    pub(super) fn answer_request(&self, method: &str, id: &str) {
        let Some(open) = self.pipe().and_then(ChildPipe::open) else {
            return;
        };
        let Ok(place) = Arc::clone(&open.answers).try_acquire_owned() else {
            return self.suspect("it asks faster than it reads answers");
        };
        let answer = if method == "ping" {
            r#""result":{}"#
        } else {
            r#""error":{"code":-32601,"message":"a client of this revision takes no requests"}"#
        };
        let answer: Bytes = format!(r#"{{"jsonrpc":"2.0","id":{id},{answer}}}"#).into();
        let name = Arc::clone(&self.settings.name);
        self.settings.tasks.spawn_service(async move {
            if let Err(error) = open.child.tell(answer).await {
                tracing::debug!(upstream = %name, error = chain(&error), "answer not delivered");
            }
            drop(place);
        });
    }

    /// Starts the child, unless another caller did so first.
    async fn start_child(self: &Arc<Self>, pipe: &ChildPipe) -> Result<Arc<OpenPipe>, LinkError> {
        let _opening = pipe.opening.lock().await;
        if let Some(open) = pipe.open() {
            return Ok(open);
        }
        if self.closed.is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        let started = lock(&pipe.started).take();
        let started = match started.filter(|started| !started.child.closed().is_cancelled()) {
            Some(started) => started,
            None => StartedConnection::new(&pipe.source, &self.settings, WaitPolicy::SpawnWait)
                .await
                .inspect_err(|_| LABELED.upstream_failed.add(&self.settings.name, 1))?,
        };
        let serial = pipe.serial.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(OpenPipe {
            child: started.child,
            serial,
            answered: AtomicBool::new(false),
            clocks: Arc::default(),
            answers: Arc::new(Semaphore::new(self.settings.upstream.open_questions)),
            _counted: UpstreamSession::begin(&self.settings.load),
        });
        let previous = lock(&pipe.current).replace(Arc::clone(&open));
        drop(previous);
        // `close` ran in between and did not see this child: close it here.
        if self.closed.is_cancelled() {
            pipe.close().await;
            return Err(LinkError::Cancelled);
        }
        LABELED.upstream_opened.add(&self.settings.name, 1);
        let reader = read_lines(Arc::downgrade(self), serial, started.lines);
        self.settings.tasks.spawn_service(reader);
        Ok(open)
    }

    /// Sends a request as a line and waits for its reply. A request that did not leave, as the connection was over, is
    /// sent on a new connection.
    ///
    /// # Cancel safety
    /// Dropping the future tells the upstream that the request is cancelled (SPEC D-10).
    pub(super) async fn exchange_piped(
        self: &Arc<Self>,
        pipe: &ChildPipe,
        bytes: Bytes,
        flight: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        match self.exchange_once(pipe, bytes.clone(), flight).await {
            Err(LinkError::SessionGone) => self.exchange_once(pipe, bytes, flight).await,
            other => other,
        }
    }

    async fn exchange_once(
        self: &Arc<Self>,
        pipe: &ChildPipe,
        bytes: Bytes,
        flight: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        let open = self.child(pipe).await?;
        let keeps_busy = flight.keeps_busy();
        let _busy = keeps_busy.then(|| open.child.busy());
        let _held = (!keeps_busy).then(|| open.child.hold());
        let lost = || LinkError::Lost {
            last_words: open.child.last_words(),
        };
        let (reply, waiting) = oneshot::channel();
        let entry = PipeWaiter {
            flight: Arc::clone(flight),
            serial: open.serial,
            reply: Some(reply),
        };
        lock(&pipe.waiting).insert(flight.id, entry);
        open.clocks.begin(&flight.activity);
        let mut aloft = PipeCancellation {
            pipe,
            open: &open,
            flight,
            request: bytes.clone(),
            departure: DepartureFlag::default(),
            done: false,
        };
        let sent = open.child.send_request(bytes, &aloft.departure).await;
        if let Err(error) = sent {
            return Err(match error {
                LinkError::SessionGone if open.answered.load(Ordering::Relaxed) => error,
                _ => lost(),
            });
        }
        let reply = waiting.await;
        aloft.done = true;
        open.answered.fetch_or(reply.is_ok(), Ordering::Relaxed);
        reply.map_err(|_| {
            LABELED.upstream_lost.add(&self.settings.name, 1);
            lost()
        })?
    }
}

/// Cancels a request upstream on drop, unless it is done.
struct PipeCancellation<'a> {
    pipe: &'a ChildPipe,
    open: &'a OpenPipe,
    flight: &'a RunningRequest,
    request: Bytes,
    departure: DepartureFlag,
    done: bool,
}

impl Drop for PipeCancellation<'_> {
    fn drop(&mut self) {
        if !self.done && !self.open.child.withdraw(&self.departure) {
            if let Some(cancel) = cancelling(&self.request) {
                self.pipe.given_up.note(self.flight.id, cancel);
            }
            let cancelled = cancellation::of_request(self.flight.id, self.flight.reason());
            self.open.child.cancel(cancelled);
        }
        lock(&self.pipe.waiting).remove(&self.flight.id);
    }
}

/// The request that cancels the task of `request`, still without `taskId`; `None` where the request can begin no task.
fn cancelling(request: &Bytes) -> Option<Message> {
    let request = Message::parse(request.clone(), json::MAX_DEPTH).ok()?;
    let capabilities = request.meta(meta::CLIENT_CAPABILITIES)?;
    if request.method() != Some("tools/call")
        || !extensions::declares(capabilities, extensions::TASKS)
    {
        return None;
    }
    let params = format!(r#"{{"_meta":{}}}"#, request.param("_meta")?);
    let cancel = request.edit().method("tasks/cancel").params(params);
    let cancel = Message::parse(cancel.finish(), json::MAX_DEPTH).ok()?;
    let told = cancel.edit().remove_meta(meta::PROGRESS_TOKEN).finish();
    Message::parse(told, json::MAX_DEPTH).ok()
}

/// Reads a child until its output ends. Does not keep the link alive.
async fn read_lines(link: Weak<ModernServerLink>, serial: u64, mut lines: DuplexReceiver) {
    let mut room = ArrivingMessage::new(Weak::clone(&link));
    while let Some(line) = lines.next_in(&mut room).await {
        let Some(link) = link.upgrade() else { return };
        let lease = room.take(line.len());
        match Message::parse(line.clone(), link.settings.message_depth) {
            Ok(message) => {
                let is_large = line.len() > EXEMPT_BYTES;
                if !is_large || Box::pin(link.has_room(&message, lease)).await {
                    drop(link.on_message(message, None));
                }
            }
            Err(error) => link.not_read(&line, &error),
        }
    }
    if let Some(link) = link.upgrade()
        && let Some(pipe) = link.pipe()
    {
        pipe.fail(serial);
    }
}
