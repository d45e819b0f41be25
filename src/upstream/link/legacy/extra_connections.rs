//! `ExtraConnections` of a link, for calls whose clients may be asked while another call has the turn of the first
//! connection. Spec: DESIGN §6, "one askable call per child".

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::connection::LegacyConnection;
use super::input_turn::TurnGuard;
use super::opening::ConnectionOpening;
use crate::process::WaitPolicy;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{Carrier, LinkSettings, StartedConnection};
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// The connections of a link besides its first.
#[derive(Debug)]
pub(super) struct ExtraConnections {
    settings: Arc<LinkSettings>,
    open: Mutex<Vec<Arc<LegacyConnection>>>,
    /// Whether the link is closed.
    ended: AtomicBool,
}

impl ExtraConnections {
    pub(super) fn new(settings: Arc<LinkSettings>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            open: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    /// The open connections. One that takes no new calls is among them until its call has ended, and is closed then.
    pub(super) fn all(&self) -> Vec<Arc<LegacyConnection>> {
        // Dropped, and so closed, after the lock is released.
        let mut gone = Vec::new();
        let mut open = lock(&self.open);
        open.retain(|connection| {
            let is_over = connection.is_outdated() && connection.turn.take().is_some();
            let stays = !connection.is_closed() && !is_over;
            if !stays {
                gone.push(Arc::clone(connection));
            }
            stays
        });
        open.clone()
    }

    /// Opens another connection, sets its log level, and takes its turn. A child only if a place is free at once, or an
    /// idle child can be evicted.
    ///
    /// # Errors
    /// [`LinkError::AtCapacity`] at once when the caps leave no place for another child, else as
    /// for the first connection.
    pub(super) async fn open(
        self: Arc<Self>,
        level: Option<String>,
    ) -> Result<(Arc<LegacyConnection>, TurnGuard), LinkError> {
        let limit = self.settings.upstream.connect_timeout;
        let started = StartedConnection::child(&self.settings, WaitPolicy::None).await?;
        let connecting = ConnectionOpening::new(&self.settings).open_further(started);
        let connection = match tokio::time::timeout(limit, connecting).await {
            Ok(opened) => opened?,
            Err(_) => return Err(LinkError::Timeout),
        };
        LABELED.upstream_opened.add(&self.settings.name, 1);
        if let Some(level) = level {
            connection.tell("logging/setLevel", "level", &level).await;
        }
        let Some(turn) = connection.turn.take() else {
            return Err(LinkError::Cancelled);
        };
        lock(&self.open).push(Arc::clone(&connection));
        // `close` ran during the opening and did not see this connection: close it here.
        if self.ended.load(Ordering::Acquire) {
            self.close().await;
            return Err(LinkError::Cancelled);
        }
        Ok((connection, turn))
    }

    /// Sends the client's log level to all connections.
    pub(super) async fn set_level(&self, level: &str) {
        let all = self.all();
        let told = all
            .iter()
            .map(|connection| connection.tell("logging/setLevel", "level", level));
        join_all(told).await;
    }

    /// Closes all connections, for good.
    ///
    /// # Cancel safety
    /// Closes them in any case.
    pub(super) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.store(true, Ordering::Release);
        let open = std::mem::take(&mut *lock(&self.open));
        join_all(open.iter().map(LegacyConnection::close)).map(drop)
    }

    /// Drops all unused connections but one. Children are kept: they are stopped when idle, and take longer to start
    /// than a socket does to open.
    pub(super) fn tidy(&self) {
        if matches!(
            self.settings.carrier,
            Carrier::Duplex(DuplexSource::Children(_))
        ) {
            return;
        }
        let mut spare = false;
        // Dropped after the lock is released.
        let mut gone = Vec::new();
        lock(&self.open).retain(|connection| {
            let is_unused = connection.turn.take().is_some();
            let stays = !is_unused || !spare;
            spare |= is_unused;
            if !stays {
                gone.push(Arc::clone(connection));
            }
            stays
        });
    }
}
