//! One logical connection to a legacy upstream: opened when first needed, opened again when the
//! upstream forgets it or its child is gone, with log level and subscriptions restored.
//! Spec: SPEC U-02, U-04, D-06, L-08; DESIGN §6.

mod answers;
mod asked;
mod calls;
mod connection;
mod connection_choice;
mod draining;
mod extra_connections;
mod get_stream;
pub(in crate::upstream) mod handshake;
mod in_flight;
mod inbound;
mod input_turn;
mod next_turn;
pub(super) mod offer;
mod opening;
mod pending_reply;
mod ping;
mod post_stream;
mod reading;
mod reconnect;
mod related;
mod restore;
mod room;
mod subscribe;
mod task_progress;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use futures_util::future::OptionFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::{Call, Reply, ServerDeclaration, UpstreamContinuation};
use crate::cause::chain;
use crate::protocol::{Era, Message, methods};
use crate::sync::desired::Desired;
use crate::telemetry::metrics::LABELED;

use super::session_state::SessionState;
use crate::process::WaitPolicy;
use crate::sync::shared_failure::SharedFailure;
use crate::upstream::carrier::duplex::DuplexSender;
use crate::upstream::carrier::{LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::lock;
use connection::{LegacyConnection, TakenConnection};
use draining::DrainingConnections;
use extra_connections::ExtraConnections;
use subscribe::PendingSubscribes;

/// A link of the legacy era.
#[derive(Debug)]
pub struct LegacyLink {
    /// Itself, for what goes on when its caller has gone.
    own: Weak<Self>,
    settings: Arc<LinkSettings>,
    /// A child that was started to find out what it speaks, for the first connection.
    started: Mutex<Option<StartedConnection>>,
    current: Mutex<Option<Arc<LegacyConnection>>>,
    opening: SharedFailure<LinkError>,
    extra_connections: Arc<ExtraConnections>,
    draining: DrainingConnections,
    /// What a fresh connection has to be told again.
    state: SessionState,
    /// Subscriptions that are asked for now.
    asking: PendingSubscribes,
    listening: Desired<bool>,
    /// Whether it is opened again when it is lost.
    kept: Mutex<bool>,
    /// Whoever had this link is gone: nothing is opened any more.
    ended: AtomicBool,
    /// Told when a connection is opened, and when none will be any more.
    changed: Notify,
}

impl LegacyLink {
    /// A link that keeps `state`; `started` is a child that was started to find out what it speaks.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        state: SessionState,
        started: Option<StartedConnection>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            extra_connections: ExtraConnections::new(Arc::clone(&settings)),
            settings,
            started: Mutex::new(started),
            current: Mutex::default(),
            draining: DrainingConnections::default(),
            opening: SharedFailure::default(),
            state,
            asking: PendingSubscribes::default(),
            listening: Desired::default(),
            kept: Mutex::default(),
            ended: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    fn open_connection(&self) -> Option<Arc<LegacyConnection>> {
        lock(&self.current)
            .as_ref()
            .filter(|open| !open.is_closed())
            .map(Arc::clone)
    }

    /// Opens the connection if needed and tells what the upstream declared.
    pub(super) async fn open_inner(&self) -> Result<Arc<ServerDeclaration>, LinkError> {
        let connection = self.connection().await?;
        Ok(Arc::clone(connection.declared()))
    }

    /// The open connection, if it takes new calls. Taken under the lock: nothing retires it in between.
    fn usable_connection(&self) -> Option<TakenConnection> {
        let current = lock(&self.current);
        let open = current.as_ref().filter(|open| !open.is_closed());
        open.filter(|open| !open.is_outdated())
            .map(TakenConnection::new)
    }

    async fn connection(&self) -> Result<TakenConnection, LinkError> {
        match self.usable_connection() {
            Some(open) => Ok(open),
            // Seldom, and large: a call need not have room for it.
            None => Box::pin(self.reopen()).await,
        }
    }

    async fn reopen(&self) -> Result<TakenConnection, LinkError> {
        let turn = self.opening.attempt().await;
        if let Some(open) = self.usable_connection() {
            return Ok(open);
        }
        if let Some(failed) = turn.spared() {
            return Err(failed);
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(LinkError::Cancelled);
        }
        self.retire_outdated();
        let connection = match self.fresh(WaitPolicy::SpawnWait).await {
            Ok(connection) => connection,
            Err(error) => {
                let error = error.of_opening();
                self.settings.count_unopened(&error);
                tracing::debug!(upstream = %self.settings.name, error = chain(&error), "upstream not opened");
                turn.share(error.clone());
                return Err(error);
            }
        };
        let taken = TakenConnection::new(&connection);
        self.install(&connection).await?;
        Ok(taken)
    }

    /// Opens the first connection of an upstream that may keep no sessions. Returns whether it keeps one; over HTTP a
    /// session needs an id, since the upstream can neither ask nor announce anything without.
    ///
    /// Others wait to find out as much: a child is started only if there is a place for it at once, or
    /// one that an idle child makes.
    ///
    /// # Errors
    /// [`LinkError`] when it cannot be told.
    pub(super) async fn open_session(&self) -> Result<bool, LinkError> {
        let opened = self.fresh(WaitPolicy::None).await;
        match opened.map_err(|error| handshake::refused(error, None)) {
            Ok(connection) if connection.has_session() => {
                self.install(&connection).await?;
                Ok(true)
            }
            Ok(connection) => {
                connection.close().await;
                Ok(false)
            }
            Err(LinkError::Handshake(_) | LinkError::Invalid(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a connection the current one.
    async fn install(&self, connection: &Arc<LegacyConnection>) -> Result<(), LinkError> {
        LABELED.upstream_opened.add(&self.settings.name, 1);
        self.settings.health.speaks(connection.declared().revision);
        // Also if no caller waits for the slow start any more.
        self.settings.health.succeeded();
        let followed = self.restore(connection).await;
        let previous = lock(&self.current).replace(Arc::clone(connection));
        if let Some(previous) = previous {
            // It may have closed its output just now, and still be waited for.
            previous.note_end();
            self.retire(previous);
        }
        // The session ended while this was opened: nobody would ever close it.
        if self.ended.load(Ordering::Acquire) {
            drop(lock(&self.current).take());
            self.changed.notify_waiters();
            tokio::join!(self.draining.close(), connection.close());
            return Err(LinkError::Cancelled);
        }
        let declared = connection.declared();
        self.settings.intake.opened(&self.settings.name, declared);
        connection.follow(&self.state);
        self.listening.apply(|wanted| connection.listen(*wanted));
        self.hold();
        self.changed.notify_waiters();
        self.tell_what_was_missed(connection, followed);
        Ok(())
    }

    /// Opens a connection, with the child that was started already, if any. A child that the era probe has upset is
    /// replaced (SPEC D-08).
    async fn fresh(&self, patience: WaitPolicy) -> Result<Arc<LegacyConnection>, LinkError> {
        if let Some(continued) = LegacyConnection::continued(&self.settings) {
            return Ok(continued);
        }
        let limit = self.settings.upstream.connect_timeout;
        let mut started = lock(&self.started).take();
        if started.as_ref().is_some_and(|started| started.asked) {
            let open = LegacyConnection::open(&self.settings, started.take());
            match tokio::time::timeout(limit / 2, open).await {
                Ok(Err(LinkError::Lost { .. })) | Err(_) => {
                    tracing::debug!(upstream = %self.settings.name, "restarting child after probe");
                }
                Ok(other) => return other,
            }
        }
        let started = match started.filter(|started| started.child.takes_calls()) {
            Some(started) => Some(started),
            None => StartedConnection::child(&self.settings, patience).await?,
        };
        let child = started.as_ref().map(|started| started.child.clone());
        let since = Instant::now();
        let open = LegacyConnection::open(&self.settings, started);
        tokio::time::timeout(limit, open).await.unwrap_or_else(|_| {
            let quoting = |child: DuplexSender| child.timed_out(since, &self.settings);
            Err(child.map_or(LinkError::Timeout, quoting))
        })
    }

    /// Keeps a child with listeners from counting as idle, even without calls. A lost connection is opened again for
    /// listeners.
    fn hold(&self) {
        self.listening.apply(|listening| {
            let wanted = *listening || !self.state.followed.is_empty();
            if let Some(connection) = self.open_connection() {
                connection.hold(wanted);
                if wanted {
                    self.keep();
                }
            }
        });
    }

    pub(super) async fn call_inner(
        &self,
        request: &Message,
        call: &Call,
    ) -> Result<Reply, LinkError> {
        if request.method() == Some("resources/subscribe")
            && let Some(uri) = request.param_str("uri")
        {
            return Box::pin(self.subscribe(&uri, request, call)).await;
        }
        self.call_through(request, call).await
    }

    async fn call_through(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        let place = self.place(request, call).await?;
        let reply = match place.connection.call(request, call).await {
            // The upstream refused the session before it looked at the call: nothing has run.
            Err(LinkError::SessionGone) => {
                // The end of a pipe is counted as it comes.
                if !place.connection.is_pipe() {
                    LABELED.upstream_lost.add(&self.settings.name, 1);
                }
                place.connection.forget();
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            // Nothing has run: the connection broke on the way, or the upstream led to its other URL.
            Err(LinkError::Unread { redirect }) => {
                if redirect.is_none() {
                    LABELED.calls_repeated.add(&self.settings.name, 1);
                }
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            // It may have run, and twice is as good as once.
            Err(LinkError::Lost { .. }) if self.may_repeat(request, &place.connection) => {
                LABELED.calls_repeated.add(&self.settings.name, 1);
                tracing::warn!(upstream = %self.settings.name, "lost a reply: retrying the call");
                drop(place);
                Box::pin(self.call_again(request, call)).await
            }
            other => other,
        }?;
        self.remember(request, &reply);
        if request.method() == Some("logging/setLevel")
            && let Some(level) = request.param("level")
        {
            Box::pin(self.extra_connections.set_level(level)).await;
        }
        Ok(reply)
    }

    async fn call_again(&self, request: &Message, call: &Call) -> Result<Reply, LinkError> {
        let place = self.place(request, call).await?;
        let reply = place.connection.call(request, call).await;
        reply.map_err(LinkError::of_last_try)
    }

    /// Whether a call whose reply was lost is made again: what reads, over HTTP, where a connection may
    /// break for no reason of the upstream's; and the tools that the operator names.
    fn may_repeat(&self, request: &Message, connection: &LegacyConnection) -> bool {
        let safe = &self.settings.upstream.retry_safe;
        match request.method() {
            Some("tools/call") => request
                .param_str("name")
                .is_some_and(|name| safe.iter().any(|tool| *tool == name)),
            Some(method) => !connection.is_pipe() && methods::is_repeatable(method),
            None => false,
        }
    }
}

/// As [`crate::call::UpstreamLink`] has them.
impl LegacyLink {
    pub(super) async fn notify(&self, message: Bytes) {
        let extra_connections = self.extra_connections.all();
        for connection in self.open_connection().into_iter().chain(extra_connections) {
            connection.notify(message.clone()).await;
        }
    }

    /// See [`crate::call::UpstreamLink::prepare`].
    pub(super) async fn prepare(&self) {
        if let Some(connection) = self.open_connection()
            && self.settings.client == Era::Legacy
        {
            connection.hear_changes().await;
        }
    }

    pub(super) fn declared(&self) -> Option<Arc<ServerDeclaration>> {
        self.open_connection()
            .map(|connection| Arc::clone(connection.declared()))
    }

    pub(super) fn continuation(&self) -> Option<UpstreamContinuation> {
        self.open_connection()?.continuation()
    }

    /// See [`crate::call::UpstreamLink::ends_with_process`].
    pub(super) fn ends_with_process(&self) -> bool {
        let open = self.open_connection();
        open.is_some_and(|connection| connection.is_pipe())
    }

    /// See [`crate::call::UpstreamLink::disown`].
    pub(super) fn disown(&self) {
        if let Some(connection) = self.open_connection() {
            connection.disown();
        }
    }

    pub(super) fn listen(&self, wanted: bool) {
        let listen = |wanted: &bool| {
            if let Some(connection) = self.open_connection() {
                connection.listen(*wanted);
            }
        };
        self.listening.set_and_apply(|wish| *wish = wanted, listen);
        self.hold();
    }

    pub(super) fn notice_feed(&self) -> Option<u64> {
        self.open_connection()?.notice_feed()
    }

    /// A connection lost meanwhile tells no more; the one opened in its place does.
    pub(super) async fn wait_until_live(&self) -> bool {
        let mut was_open = false;
        loop {
            let changed = self.changed.notified();
            let open = self.open_connection();
            if open.is_none() && (!was_open || self.ended.load(Ordering::Acquire)) {
                return false;
            }
            was_open = true;
            let heard = async {
                let Some(connection) = &open else {
                    return std::future::pending().await;
                };
                tokio::select! {
                    heard = connection.wait_until_live() => Some(heard),
                    () = connection.over() => None,
                }
            };
            tokio::select! {
                Some(heard) = heard => return heard,
                () = changed => {}
            }
        }
    }

    /// Closes the link and its connections, for good.
    ///
    /// # Cancel safety
    /// Closes them in any case, in tasks of their own.
    pub(super) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.store(true, Ordering::Release);
        drop(lock(&self.started).take());
        let connection = lock(&self.current).take();
        // Who looks before now finds a connection that says nothing of its end.
        self.changed.notify_waiters();
        let draining = self.draining.close();
        let current = OptionFuture::from(connection.map(|connection| connection.close()));
        let extra = self.extra_connections.close();
        async move {
            tokio::join!(draining, current, extra);
        }
    }
}
