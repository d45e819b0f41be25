//! Further connections of a link, for calls whose clients may be asked while the turn of the first
//! connection is another call's. Spec: DESIGN §6, "one askable call per child".

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;

use super::connection::Connection;
use super::turn::TurnGuard;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::{Carrier, Settings, Started};
use crate::upstream::duplex::Source;
use crate::upstream::error::LinkError;
use crate::upstream::lock;
use crate::upstream::stdio::Patience;

/// The connections of a link besides its first.
#[derive(Debug)]
pub(super) struct Further {
    settings: Arc<Settings>,
    open: Mutex<Vec<Arc<Connection>>>,
    /// Whoever had the link is gone.
    ended: AtomicBool,
}

impl Further {
    pub(super) fn new(settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            open: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    /// Those that are open.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        let mut open = lock(&self.open);
        open.retain(|connection| !connection.is_closed());
        open.clone()
    }

    /// Opens another connection, told of the log level, and takes its turn. A child only if there is
    /// a place for it at once, or one that an idle child makes.
    ///
    /// # Errors
    /// [`LinkError::AtCapacity`] at once when the caps leave no place for another child, else as
    /// for the first connection.
    pub(super) async fn open(
        self: Arc<Self>,
        level: Option<String>,
    ) -> Result<(Arc<Connection>, TurnGuard), LinkError> {
        let limit = self.settings.upstream.connect_timeout;
        let started = Started::child(&self.settings, Patience::None).await?;
        let connecting = Connection::open_further(&self.settings, started);
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
        // The session ended while this was opened: nobody would ever close it.
        if self.ended.load(Ordering::Acquire) {
            self.close().await;
            return Err(LinkError::Cancelled);
        }
        Ok((connection, turn))
    }

    /// Tells all of them that the client wants other log messages.
    pub(super) async fn set_level(&self, level: &str) {
        let all = self.all();
        let told = all
            .iter()
            .map(|connection| connection.tell("logging/setLevel", "level", level));
        join_all(told).await;
    }

    /// Ends all of them, for good.
    pub(super) async fn close(&self) {
        self.ended.store(true, Ordering::Release);
        let open = std::mem::take(&mut *lock(&self.open));
        for connection in open {
            connection.close().await;
        }
    }

    /// Lets go of all but one that nobody uses. Children end by themselves when they are idle, and
    /// take longer to start than a socket does to open.
    pub(super) fn tidy(&self) {
        if matches!(self.settings.carrier, Carrier::Duplex(Source::Children(_))) {
            return;
        }
        let mut spare = false;
        // Dropped after the lock is gone.
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
