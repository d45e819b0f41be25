//! Requests over a `ChildPipe`: the child is started on demand, and a request whose caller has gone is cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{ChildPipe, OpenPipe, PipeWaiter};
use crate::budget::EXEMPT_BYTES;
use crate::cause::chain;
use crate::process::WaitPolicy;
use crate::protocol::error_codes::METHOD_NOT_FOUND;
use crate::protocol::{Message, extensions, json, meta, rpc};
use crate::telemetry::metrics::{LABELED, UpstreamSession};
use crate::upstream::carrier::StartedConnection;
use crate::upstream::carrier::duplex::{DepartureFlag, DuplexReceiver};
use crate::upstream::error::LinkError;
use crate::upstream::link::cancellation;
use crate::upstream::link::modern::connection::ModernConnection;
use crate::upstream::link::modern::room::ChildCalls;
use crate::upstream::link::modern::running_request::RunningRequest;
use crate::upstream::lock;
use crate::upstream::room::ArrivingMessage;

impl ModernConnection {
    /// Starts the child of a stdio upstream unless it runs. The wait for a permit does not count as connecting.
    pub(in super::super) async fn start(self: &Arc<Self>) -> Result<(), LinkError> {
        match self.pipe().filter(|pipe| pipe.source.is_of_children()) {
            Some(pipe) => self.child(pipe).await.map(drop),
            None => Ok(()),
        }
    }

    /// The child, started if needed.
    async fn child(self: &Arc<Self>, pipe: &ChildPipe) -> Result<Arc<OpenPipe>, LinkError> {
        match pipe.usable() {
            Some(open) => Ok(open),
            // Boxed, since it is rare and larger than the rest of the future.
            None => Box::pin(self.start_child(pipe)).await,
        }
    }

    /// Answers a request of the child `open`. Modern servers send no requests, yet some check that their client is alive
    /// and exit when a request stays unanswered. Spec: SPEC D-09, L-07.
    pub(in super::super) fn answer_request(&self, open: &Arc<OpenPipe>, method: &str, id: &str) {
        let Ok(place) = Arc::clone(&open.answers).try_acquire_owned() else {
            return self.suspect("it asks faster than it reads answers");
        };
        let answer = if method == "ping" {
            rpc::response(id, "result", "{}")
        } else {
            let text = "a client of this revision takes no requests";
            rpc::response(id, "error", &rpc::error(METHOD_NOT_FOUND, text, None))
        };
        let (name, open) = (Arc::clone(&self.settings.name), Arc::clone(open));
        self.settings.tasks.spawn_service(async move {
            if let Err(error) = open.child.tell(answer.into()).await {
                tracing::debug!(upstream = %name, error = chain(&error), "answer not delivered");
            }
            drop(place);
        });
    }

    /// Starts the child, unless another caller has just done so.
    async fn start_child(self: &Arc<Self>, pipe: &ChildPipe) -> Result<Arc<OpenPipe>, LinkError> {
        let _opening = pipe.opening.lock().await;
        if let Some(open) = pipe.usable() {
            return Ok(open);
        }
        if self.closed().is_cancelled() {
            return Err(LinkError::Cancelled);
        }
        pipe.retire_outdated();
        let started = lock(&pipe.started).take();
        let started = match started.filter(|started| started.child.takes_calls()) {
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
            replaced: CancellationToken::new(),
            _counted: UpstreamSession::begin(&self.settings.load),
        });
        if let Some(previous) = lock(&pipe.current).replace(Arc::clone(&open)) {
            pipe.retire(previous);
        }
        // `close` ran during the start and did not see this child.
        if self.closed().is_cancelled() {
            pipe.close().await;
            return Err(LinkError::Cancelled);
        }
        LABELED.upstream_opened.add(&self.settings.name, 1);
        let child = (Arc::downgrade(&open), serial);
        let reader = read_lines(Arc::downgrade(self), child, started.lines);
        self.settings.tasks.spawn_service(reader);
        Ok(open)
    }

    /// Sends a request as a line and waits for its reply. A request that could not be written because the connection
    /// was closed is sent on a new connection.
    ///
    /// # Cancel safety
    /// Dropping the future tells the upstream that the request is cancelled (SPEC D-10).
    pub(in super::super) async fn exchange_piped(
        self: &Arc<Self>,
        pipe: &ChildPipe,
        bytes: Bytes,
        running: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        match self.exchange_once(pipe, bytes.clone(), running).await {
            Err(LinkError::SessionGone) => self.exchange_once(pipe, bytes, running).await,
            other => other,
        }
    }

    async fn exchange_once(
        self: &Arc<Self>,
        pipe: &ChildPipe,
        bytes: Bytes,
        running: &Arc<RunningRequest>,
    ) -> Result<Message, LinkError> {
        let open = self.child(pipe).await?;
        let keeps_busy = running.keeps_busy();
        let _busy = keeps_busy.then(|| open.child.busy());
        let _held = (!keeps_busy).then(|| open.child.hold());
        let lost = || LinkError::Lost {
            last_words: open.child.last_words(),
        };
        let (reply, waiting) = oneshot::channel();
        let entry = PipeWaiter {
            running: Arc::clone(running),
            child: Arc::downgrade(&open),
            serial: open.serial,
            reply: Some(reply),
        };
        lock(&pipe.waiting).insert(running.id, entry);
        open.clocks.begin(&running.activity);
        let mut aloft = PipeCancellation {
            pipe,
            open: &open,
            running,
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
        let replaced = async {
            // A stream has no end of its own: it moves to the next child.
            if running.is_stream() {
                open.replaced.cancelled().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let reply = tokio::select! {
            biased;
            reply = waiting => reply,
            () = replaced => return Err(lost()),
        };
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
    running: &'a RunningRequest,
    request: Bytes,
    departure: DepartureFlag,
    done: bool,
}

impl Drop for PipeCancellation<'_> {
    fn drop(&mut self) {
        if !self.done && !self.open.child.withdraw(&self.departure) {
            if let Some(cancel) = cancelling(&self.request) {
                let noted = (self.open.serial, cancel);
                self.pipe.given_up.note(self.running.id, noted);
            }
            let cancelled = cancellation::of_request(self.running.id, self.running.reason());
            self.open.child.cancel(cancelled);
        }
        lock(&self.pipe.waiting).remove(&self.running.id);
    }
}

/// The request that cancels the task of `request`, still without `taskId`; `None` where the request cannot begin a
/// task.
fn cancelling(request: &Bytes) -> Option<Message> {
    let request = Message::parse(request.clone(), json::MAX_DEPTH).ok()?;
    let capabilities = request.meta(meta::CLIENT_CAPABILITIES)?;
    if request.method() != Some("tools/call")
        || !extensions::declares(capabilities, extensions::TASKS)
    {
        return None;
    }
    let params = json::object([("_meta", request.param("_meta")?)]);
    let cancel = request.edit().method("tasks/cancel").params(params);
    let cancel = Message::parse(cancel.finish(), json::MAX_DEPTH).ok()?;
    let told = cancel.edit().remove_meta(meta::PROGRESS_TOKEN).finish();
    Message::parse(told, json::MAX_DEPTH).ok()
}

/// Reads the output of the child `open` until it ends. Keeps neither the connection nor the child alive.
async fn read_lines(
    connection: Weak<ModernConnection>,
    (open, serial): (Weak<OpenPipe>, u64),
    mut lines: DuplexReceiver,
) {
    let mut room = ArrivingMessage::new(ChildCalls::new(&connection, &open));
    while let Some(line) = lines.next_in(&mut room).await {
        let Some(connection) = connection.upgrade() else {
            return;
        };
        let lease = room.take(line.len());
        // `None` once the child has been replaced and its last call has ended: no call waits for its messages.
        let from = open.upgrade();
        let message = match Message::parse(line.clone(), connection.settings.message_depth) {
            Ok(message) => message,
            Err(error) => {
                connection.not_read(&line, &error, from.as_ref());
                continue;
            }
        };
        let has_room = match (connection.pipe(), from.as_deref()) {
            (Some(pipe), Some(from)) if line.len() > EXEMPT_BYTES => {
                let link = (connection.settings.exclusive, connection.closed());
                Box::pin(pipe.has_room(&message, lease, from, link)).await
            }
            _ => true,
        };
        if has_room {
            connection.on_line(message, from.as_ref());
        }
    }
    if let Some(connection) = connection.upgrade()
        && let Some(pipe) = connection.pipe()
    {
        pipe.fail(serial);
    }
}
