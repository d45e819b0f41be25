//! `ConnectionEntry`: the state of a connection, as `PermitPool` needs it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio_util::sync::CancellationToken;

use super::activity::{ConnectionActivity, ConnectionUse};
use super::holding::PrincipalHolding;
use crate::lock::lock;

/// State of a connection, as `PermitPool` needs it.
#[derive(Debug)]
pub(super) struct ConnectionEntry {
    /// Counts up over the connections of a listener.
    pub(super) number: u64,
    /// Whether the peer is one of `server.trusted_proxies`: the client address is then in each request's headers.
    pub(super) is_proxied: bool,
    pub(super) has_left: AtomicBool,
    /// Whether the address is known to be shared by many callers.
    pub(super) is_shared: AtomicBool,
    /// Counts of the principal of the last valid token; `None` before the first.
    pub(super) holding: Mutex<Option<Arc<PrincipalHolding>>>,
    /// Whether the last exchange went beyond the share of its principal.
    pub(super) is_crowded: AtomicBool,
    pub(super) activity: OnceLock<ConnectionActivity>,
    /// Cancelled at the drain, or when the place is wanted for another connection.
    pub(super) end: CancellationToken,
}

impl ConnectionEntry {
    pub(super) fn new(number: u64, is_proxied: bool, end: CancellationToken) -> Self {
        Self {
            number,
            is_proxied,
            has_left: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            holding: Mutex::new(None),
            is_crowded: AtomicBool::new(false),
            activity: OnceLock::new(),
            end,
        }
    }

    pub(super) fn activity(&self) -> ConnectionUse {
        self.activity
            .get()
            .map_or(ConnectionUse::Busy, ConnectionActivity::now)
    }

    /// Whether the principal exceeds its share, and the connection serves no exchange within that share.
    pub(super) fn is_excess(&self, activity: ConnectionUse) -> bool {
        let is_expendable =
            activity != ConnectionUse::Busy || self.is_crowded.load(Ordering::Relaxed);
        let is_greedy = |holding: &Arc<PrincipalHolding>| holding.is_greedy();
        is_expendable && lock(&self.holding).as_ref().is_some_and(is_greedy)
    }

    /// Ends the connection for another one.
    pub(super) fn evict(&self) {
        self.has_left.store(true, Ordering::Release);
        self.end.cancel();
    }

    /// Whether it has brought a good token.
    pub(super) fn is_proven(&self) -> bool {
        lock(&self.holding).is_some()
    }

    pub(super) fn disconnect(&self) {
        if let Some(holding) = lock(&self.holding).take() {
            holding.disconnected();
        }
    }
}
