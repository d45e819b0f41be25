//! `LinkConnections`: the connections of a legacy link. The first one is opened when needed, and opened again when the
//! upstream forgets it or its child is gone. Spec: SPEC U-02, D-06, D-08.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use futures_util::future::OptionFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{LegacyConnection, TakenConnection};
use super::draining::DrainingConnections;
use super::extra_connections::ExtraConnections;
use super::handshake;
use super::opening::ConnectionOpening;
use super::restore::RestoredSession;
use crate::cause::chain;
use crate::process::WaitPolicy;
use crate::sync::desired::Desired;
use crate::sync::shared_failure::SharedFailure;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::duplex::DuplexSender;
use crate::upstream::carrier::{LinkSettings, ProbeStage, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;

/// The connections of one link.
#[derive(Debug)]
pub(super) struct LinkConnections {
    /// Itself, for the task that opens a lost connection again.
    pub(super) own: Weak<Self>,
    pub(super) settings: Arc<LinkSettings>,
    /// A child that was started to find out what it speaks, for the first connection.
    started: Mutex<Option<StartedConnection>>,
    current: Mutex<Option<Arc<LegacyConnection>>>,
    opening: SharedFailure<LinkError>,
    pub(super) extra: Arc<ExtraConnections>,
    draining: Arc<DrainingConnections>,
    /// What a fresh connection has to be told again.
    pub(super) state: SessionState,
    pub(super) listening: Desired<bool>,
    /// Whether it is opened again when it is lost.
    pub(super) kept: Mutex<bool>,
    /// The owner of this link is gone: no connection is opened any more.
    ended: AtomicBool,
    /// Told when a connection is opened, and when none will be any more.
    changed: Notify,
}

impl LinkConnections {
    /// None is open yet; `started` is a child that was started to find out what it speaks.
    pub(super) fn new(
        settings: Arc<LinkSettings>,
        state: SessionState,
        started: Option<StartedConnection>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            extra: ExtraConnections::new(Arc::clone(&settings)),
            settings,
            started: Mutex::new(started),
            current: Mutex::default(),
            draining: Arc::default(),
            opening: SharedFailure::default(),
            state,
            listening: Desired::default(),
            kept: Mutex::default(),
            ended: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    /// Whether nothing is opened any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The first connection, if it is open.
    pub(super) fn open(&self) -> Option<Arc<LegacyConnection>> {
        lock(&self.current)
            .as_ref()
            .filter(|open| !open.is_closed())
            .map(Arc::clone)
    }

    /// All open connections, with those besides the first.
    pub(super) fn all(&self) -> Vec<Arc<LegacyConnection>> {
        let extra = self.extra.all();
        self.open().into_iter().chain(extra).collect()
    }

    /// The open connection, if it takes new calls. Taken under the lock: nothing retires it in between.
    fn usable_connection(&self) -> Option<TakenConnection> {
        let current = lock(&self.current);
        let open = current.as_ref().filter(|open| !open.is_closed());
        open.filter(|open| !open.is_outdated())
            .map(TakenConnection::new)
    }

    /// The first connection, opened if needed.
    pub(super) async fn connection(&self) -> Result<TakenConnection, LinkError> {
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
        if self.has_ended() {
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
    pub(super) async fn install(
        &self,
        connection: &Arc<LegacyConnection>,
    ) -> Result<(), LinkError> {
        LABELED.upstream_opened.add(&self.settings.name, 1);
        self.settings.health.speaks(connection.declared().revision);
        // Also if no caller waits for the slow start any more.
        self.settings.health.succeeded();
        let restored = RestoredSession::tell(connection, &self.state).await;
        let previous = lock(&self.current).replace(Arc::clone(connection));
        if let Some(previous) = previous {
            // It may have closed its output just now, and still be waited for.
            previous.note_end();
            self.draining.retire(previous);
        }
        // The session ended meanwhile, so nothing else would close this connection.
        if self.has_ended() {
            drop(lock(&self.current).take());
            self.changed.notify_waiters();
            tokio::join!(self.draining.close(), connection.close());
            return Err(LinkError::Cancelled);
        }
        let declared = connection.declared();
        self.settings.intake.opened(&self.settings.name, declared);
        if let Some(get_stream) = &connection.get_stream {
            get_stream.follow(&self.state);
        }
        self.listening.apply(|wanted| connection.listen(*wanted));
        self.hold();
        self.changed.notify_waiters();
        restored.announce(self.listening.get());
        Ok(())
    }

    /// Opens a connection, with the child that was started already, if any. A child that the era probe has upset is
    /// replaced (SPEC D-08).
    async fn fresh(&self, patience: WaitPolicy) -> Result<Arc<LegacyConnection>, LinkError> {
        let opening = ConnectionOpening::new(&self.settings);
        if let Some(continued) = opening.continued() {
            return Ok(continued);
        }
        let limit = self.settings.upstream.connect_timeout;
        let mut started = lock(&self.started).take();
        let probed = started.take_if(|started| !matches!(started.stage, ProbeStage::Fresh));
        if probed.is_some() {
            let open = opening.open(probed);
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
        let open = opening.open(started);
        tokio::time::timeout(limit, open).await.unwrap_or_else(|_| {
            let quoting =
                |child: DuplexSender| child.timed_out(since, self.settings.upstream.isolation);
            Err(child.map_or(LinkError::Timeout, quoting))
        })
    }

    /// Keeps a child with listeners from counting as idle, even without calls. A lost connection is opened again for
    /// listeners.
    pub(super) fn hold(&self) {
        self.listening.apply(|listening| {
            let wanted = *listening || !self.state.followed.is_empty();
            if let Some(connection) = self.open() {
                connection.hold(wanted);
                if wanted {
                    self.keep();
                }
            }
        });
    }

    /// Retires connections that take no new calls, before another one is opened: their children may have the only places.
    fn retire_outdated(&self) {
        let outdated = lock(&self.current).take_if(|open| open.is_outdated());
        if let Some(outdated) = outdated {
            self.draining.retire(outdated);
        }
        drop(self.extra.all());
    }

    /// Sets whether the link listens, for this connection and its successors.
    pub(super) fn listen(&self, wanted: bool) {
        let listen = |wanted: &bool| {
            if let Some(connection) = self.open() {
                connection.listen(*wanted);
            }
        };
        self.listening.set_and_apply(|wish| *wish = wanted, listen);
        self.hold();
    }

    /// See [`crate::call::UpstreamLink::wait_until_live`]. A connection lost meanwhile tells no more; the one opened in its
    /// place does.
    pub(super) async fn wait_until_live(&self) -> bool {
        let mut was_open = false;
        loop {
            let changed = self.changed.notified();
            let open = self.open();
            if open.is_none() && (!was_open || self.has_ended()) {
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

    /// Closes all connections, for good.
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
        let extra = self.extra.close();
        async move {
            tokio::join!(draining, current, extra);
        }
    }
}
