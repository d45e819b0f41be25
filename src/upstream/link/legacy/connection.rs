//! One physical connection of a legacy link, after its handshake.

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::get_stream::GetStream;
use super::input_turn::InputTurn;
use super::open_questions::OpenQuestions;
use super::pending_calls::PendingCalls;
use super::task_progress::TaskProgress;
use super::wire::LegacyWire;
use crate::call::{ServerDeclaration, UpstreamContinuation};
use crate::cause::chain;
use crate::process::HoldGuard;
use crate::telemetry::metrics::{LABELED, UpstreamSession};
use crate::upstream::breach_log;
use crate::upstream::carrier::LinkSettings;
use crate::upstream::error::LinkError;
use crate::upstream::lock;
use crate::upstream::notice_feed::next_epoch;

/// How long the close of an HTTP session waits for `farewells`.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct LegacyConnection {
    pub(super) settings: Arc<LinkSettings>,
    pub(super) wire: LegacyWire,
    declared: Arc<ServerDeclaration>,
    /// Our requests without a reply.
    pub(super) pending: PendingCalls,
    /// Calls that have become tasks.
    pub(super) task_progress: TaskProgress,
    /// Open questions of the upstream.
    pub(super) questions: OpenQuestions,
    /// The right of a call to be asked without being named.
    pub(super) turn: InputTurn,
    forgotten: AtomicBool,
    /// Whether the end of the pipe was noted.
    end_noted: AtomicBool,
    /// Cancelled when the session is forgotten or the connection dropped.
    over: DropGuard,
    pub(super) closed: CancellationToken,
    /// Cancellations on their way over HTTP.
    pub(super) farewells: TaskTracker,
    /// None on a pipe.
    pub(super) get_stream: Option<Arc<GetStream>>,
    /// The epoch of a pipe's notice feed, which lasts as long as the connection.
    epoch: u64,
    /// Spares an unused child from the idle stop.
    held: Mutex<Option<HoldGuard>>,
    /// Calls that have taken the connection, from before they have requests.
    takers: TaskTracker,
    _counted: UpstreamSession,
}

/// A connection that a call has taken. It stays open for the call when another connection takes the new calls.
#[derive(Debug)]
pub(super) struct TakenConnection {
    pub(super) connection: Arc<LegacyConnection>,
    _taken: TaskTrackerToken,
}

impl TakenConnection {
    pub(super) fn new(connection: &Arc<LegacyConnection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            _taken: connection.takers.token(),
        }
    }
}

impl Deref for TakenConnection {
    type Target = Arc<LegacyConnection>;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl LegacyConnection {
    /// A connection over `wire`, whose handshake is done.
    pub(super) fn new(
        settings: &Arc<LinkSettings>,
        wire: LegacyWire,
        declared: Arc<ServerDeclaration>,
    ) -> Arc<Self> {
        Self::with_ids_from(0, settings, wire, declared)
    }

    /// The same, with ids of requests after `first`: none is given out twice in the upstream's session.
    pub(super) fn with_ids_from(
        first: u64,
        settings: &Arc<LinkSettings>,
        wire: LegacyWire,
        declared: Arc<ServerDeclaration>,
    ) -> Arc<Self> {
        let closed = CancellationToken::new();
        Arc::new_cyclic(|own| {
            let get_stream = match &wire {
                LegacyWire::Duplex(_) => None,
                LegacyWire::Http(http) => {
                    let of_connection = (own, settings, &declared);
                    Some(GetStream::new(of_connection, http, &closed))
                }
            };
            Self {
                settings: Arc::clone(settings),
                wire,
                declared,
                pending: PendingCalls::after(first),
                task_progress: TaskProgress::default(),
                questions: OpenQuestions::new(settings.upstream.open_questions),
                turn: InputTurn::new(),
                forgotten: AtomicBool::new(false),
                end_noted: AtomicBool::new(false),
                over: CancellationToken::new().drop_guard(),
                closed,
                farewells: TaskTracker::new(),
                get_stream,
                epoch: next_epoch(),
                held: Mutex::default(),
                takers: TaskTracker::new(),
                _counted: UpstreamSession::begin(&settings.load),
            }
        })
    }

    pub(super) fn declared(&self) -> &Arc<ServerDeclaration> {
        &self.declared
    }

    /// The upstream's session over HTTP, where it has one.
    pub(super) fn continuation(&self) -> Option<UpstreamContinuation> {
        let LegacyWire::Http(http) = &self.wire else {
            return None;
        };
        Some(UpstreamContinuation {
            upstream: self.settings.name.to_string(),
            declared: Arc::clone(&self.declared),
            id: http.id()?,
            connection: self.settings.connection,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
            || match &self.wire {
                LegacyWire::Duplex(duplex) => duplex.closed().is_cancelled(),
                LegacyWire::Http(_) => false,
            }
    }

    /// Whether the connection takes no new calls and ends with its running ones.
    pub(super) fn is_outdated(&self) -> bool {
        match &self.wire {
            LegacyWire::Duplex(duplex) => duplex.is_outdated(),
            LegacyWire::Http(_) => false,
        }
    }

    /// Whether the upstream can tell this connection from others.
    pub(super) fn has_session(&self) -> bool {
        match &self.wire {
            LegacyWire::Duplex(_) => true,
            LegacyWire::Http(http) => http.has_session(),
        }
    }

    /// Whether all messages share one pipe or stream, so that questions do not tell their call.
    pub(super) fn is_pipe(&self) -> bool {
        matches!(self.wire, LegacyWire::Duplex(_))
    }

    /// See [`crate::call::UpstreamLink::notice_feed`].
    pub(super) fn notice_feed(&self) -> Option<u64> {
        match &self.wire {
            LegacyWire::Duplex(_) => Some(self.epoch),
            LegacyWire::Http(http) => http.notice_feed().epoch(),
        }
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`].
    pub(super) async fn wait_until_live(&self) -> bool {
        match &self.get_stream {
            None => true,
            Some(get_stream) => get_stream.wait_until_live().await,
        }
    }

    /// Opens or closes the GET stream, if it has one; it stays open for questions and for calls.
    pub(super) fn listen(&self, wanted: bool) {
        if let Some(get_stream) = &self.get_stream {
            get_stream.listen(wanted);
        }
    }

    /// Ready when the connection is over: its pipe is closed, the upstream has forgotten its session, or it was
    /// dropped. Does not keep the connection alive.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let over = self.over.token().clone();
        let pipe = match &self.wire {
            LegacyWire::Duplex(duplex) => duplex.closed().clone(),
            LegacyWire::Http(_) => over.clone(),
        };
        async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = pipe.cancelled() => {}
            }
        }
    }

    /// Notes that the upstream no longer knows this session.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
        self.over.token().cancel();
        self.task_progress.clear();
        self.listen(false);
    }

    /// Sends nothing more in an HTTP session, which another replica goes on with. Children end as always.
    pub(super) fn disown(&self) {
        if !self.is_pipe() {
            self.forget();
        }
    }

    /// Whether a message may be sent now.
    ///
    /// # Errors
    /// Another replica owns the session, or may own it.
    pub(super) fn check_ownership(&self) -> Result<(), LinkError> {
        let is_left = !self.is_pipe() && self.forgotten.load(Ordering::Relaxed);
        if is_left || !self.settings.fence.is_open() {
            return Err(LinkError::Fenced);
        }
        Ok(())
    }

    /// Notes a breach of the protocol that does not end the connection (SPEC U-14).
    pub(super) fn suspect(&self, what: &str) {
        breach_log::note(&self.settings.name, what);
    }

    /// Sends a notification or a response; failures show in the calls.
    pub(super) async fn send(&self, message: Bytes) {
        drop(self.deliver_message(message).await);
    }

    /// Sends a notification of a client, counted as dropped when the upstream does not take it in time.
    ///
    /// # Cancel safety
    /// As that of [`LegacyWire::send`].
    pub(super) async fn notify(&self, message: Bytes) {
        if let Err(LinkError::Timeout) = self.deliver_message(message).await {
            LABELED.notifications_dropped.add(&self.settings.name, 1);
        }
    }

    async fn deliver_message(&self, message: Bytes) -> Result<(), LinkError> {
        self.check_ownership()?;
        let sent = self.wire.send(message, &self.settings.upstream).await;
        sent.inspect_err(|error| {
            tracing::debug!(upstream = %self.settings.name, error = chain(&error), "message not delivered");
        })
    }

    /// Spares an unused child from the idle stop, or no longer.
    pub(super) fn hold(&self, wanted: bool) {
        let LegacyWire::Duplex(duplex) = &self.wire else {
            return;
        };
        let mut held = lock(&self.held);
        if !wanted {
            *held = None;
        } else if held.is_none() {
            *held = duplex.hold();
        }
    }

    /// Ready when no call has the connection, and no request of ours is pending. For a connection that the link does not
    /// give to calls any more.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn until_given_back(&self) {
        self.takers.close();
        self.takers.wait().await;
        self.pending.until_unused().await;
    }

    /// Ends the connection politely. An HTTP session needs no end that the upstream has forgotten, or that another replica
    /// may go on with.
    ///
    /// # Cancel safety
    /// Ends it in any case, in a task of its own.
    pub(super) fn close(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        self.closed.cancel();
        let (this, limit) = (Arc::clone(self), self.settings.closing_limit());
        let closing = async move { this.part().await };
        self.settings.tasks.finish(limit, closing)
    }

    async fn part(&self) {
        let limit = self.settings.upstream.connect_timeout;
        if self.is_pipe() {
            self.wire.close(limit).await;
        } else if !self.is_closed() && self.settings.fence.is_open() {
            // Spec: BRIDGING §3.7: cancellations of its calls are sent first.
            let told = async {
                self.pending.until_unused().await;
                self.farewells.close();
                self.farewells.wait().await;
            };
            drop(timeout(FAREWELL.min(limit), told).await);
            self.wire.close(limit).await;
        }
        self.fail_all();
    }

    /// Counts the session as lost, once, if its pipe closed without a `close` of ours.
    pub(super) fn note_end(&self) {
        if let LegacyWire::Duplex(duplex) = &self.wire
            && duplex.closed().is_cancelled()
            && !self.closed.is_cancelled()
            && duplex.broke_off()
            && !self.end_noted.swap(true, Ordering::Relaxed)
        {
            LABELED.upstream_lost.add(&self.settings.name, 1);
        }
    }

    /// Fails all pending requests and withdraws open questions.
    pub(super) fn fail_all(&self) {
        self.task_progress.clear();
        let last_words = match &self.wire {
            LegacyWire::Duplex(duplex) => duplex.last_words(),
            LegacyWire::Http(_) => None,
        };
        self.pending.fail_all(last_words.as_deref());
        self.questions.withdraw_all();
    }
}

impl Drop for LegacyConnection {
    /// Closes the GET stream and the session of a connection that was given up before it was closed, as by a caller
    /// that went while it was opened.
    fn drop(&mut self) {
        if self.closed.is_cancelled() {
            return;
        }
        self.closed.cancel();
        let LegacyWire::Http(http) = &self.wire else {
            return;
        };
        if http.has_session() && !self.is_closed() && Handle::try_current().is_ok() {
            let (http, limit) = (Arc::clone(http), self.settings.upstream.connect_timeout);
            let closing = async move { http.close().await };
            drop(self.settings.tasks.finish(limit, closing));
        }
    }
}
