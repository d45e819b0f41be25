//! The permit of one connection under `server.max_connections`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::activity::ConnectionActivity;
use super::connection_entry::ConnectionEntry;
use super::holding::{OpenExchange, PrincipalHolding};
use super::permit_pool::PermitPool;
use crate::call::OwnerKey;
use crate::downstream::connection_id::ConnectionId;
use crate::lock::lock;
use crate::telemetry::metrics::{COUNTERS, GaugeGuard};

/// A connection's permit, free again when the last clone is dropped: a connection that was upgraded
/// keeps it for as long as its socket lives. In the extensions of every request, with its sender.
#[derive(Debug, Clone)]
pub(in crate::downstream) struct ConnectionPermit {
    taken: Arc<TakenPermit>,
    client: Option<IpAddr>,
    /// The exchange of a request for an upgrade, which is open as long as the permit is kept.
    open: Option<Arc<OpenExchange>>,
}

#[derive(Debug)]
struct TakenPermit {
    id: ConnectionId,
    entry: Arc<ConnectionEntry>,
    pool: Arc<PermitPool>,
    /// Absent for a connection that is not a client's.
    open: Option<GaugeGuard>,
}

impl Drop for TakenPermit {
    fn drop(&mut self) {
        self.pool.leave(&self.entry);
    }
}

/// The principal has as many exchanges open as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::downstream) struct TooManyExchanges;

impl ConnectionPermit {
    pub(super) fn new(
        entry: Arc<ConnectionEntry>,
        pool: Arc<PermitPool>,
        open: Option<GaugeGuard>,
    ) -> Self {
        let taken = Arc::new(TakenPermit {
            id: ConnectionId::next(),
            entry,
            pool,
            open,
        });
        Self {
            taken,
            client: None,
            open: None,
        }
    }

    /// The permit with the sender of one of its requests.
    pub(super) fn of_request(&self, client: IpAddr) -> Self {
        let entry = &self.taken.entry;
        if entry.is_proxied && !entry.is_proven() {
            self.taken.pool.seen(entry, client);
        }
        Self {
            taken: Arc::clone(&self.taken),
            client: Some(client),
            open: None,
        }
    }

    /// The id of the connection.
    pub(in crate::downstream) fn id(&self) -> ConnectionId {
        self.taken.id
    }

    /// The client address of the request.
    pub(in crate::downstream) fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// Has the exchange last as long as this permit is kept.
    pub(in crate::downstream) fn keep(&mut self, open: OpenExchange) {
        self.open = Some(Arc::new(open));
    }

    /// Whether a client's connection has it.
    pub(super) fn is_client(&self) -> bool {
        self.taken.open.is_some()
    }

    /// Whether a client's connection has brought no good token, and is no proxy's.
    pub(super) fn is_of_stranger(&self) -> bool {
        let TakenPermit { entry, pool, .. } = &*self.taken;
        self.is_client() && !entry.is_proven() && !pool.is_from_proxy(entry)
    }

    /// Sets the source that tells whether the connection is in use.
    pub(super) fn shows(&self, activity: ConnectionActivity) {
        drop(self.taken.entry.activity.set(activity));
    }

    /// Cancelled at the drain, and when the connection has to make room.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.taken.entry.end
    }

    /// Whether the connection has to make room for another one.
    pub(super) fn has_left(&self) -> bool {
        self.taken.entry.has_left.load(Ordering::Acquire)
    }

    /// A request brought a good token of `owner`: counts its exchange. `is_limited` says whether its
    /// principal has a share at all.
    ///
    /// # Errors
    /// The share is used up.
    pub(in crate::downstream) fn begin(
        &self,
        owner: OwnerKey,
        is_limited: bool,
    ) -> Result<OpenExchange, TooManyExchanges> {
        let entry = &self.taken.entry;
        let known = lock(&entry.holding).clone();
        let holding = match known {
            Some(holding) if holding.owner == owner => holding,
            _ => self.change_hands(owner, is_limited),
        };
        let open = holding.open();
        entry.is_crowded.store(open.is_none(), Ordering::Relaxed);
        open.ok_or_else(|| {
            COUNTERS.exchanges_refused.add(1);
            TooManyExchanges
        })
    }

    /// A request brought a good token of `owner`, and another replica serves it, which counts its exchange. `is_limited` as
    /// in [`Self::begin`].
    pub(in crate::downstream) fn passed_on(&self, owner: OwnerKey, is_limited: bool) {
        let holding = lock(&self.taken.entry.holding).clone();
        if holding.is_none_or(|holding| holding.owner != owner) {
            drop(self.change_hands(owner, is_limited));
        }
    }

    /// Notes that the connection is used by `owner` from now on.
    fn change_hands(&self, owner: OwnerKey, is_limited: bool) -> Arc<PrincipalHolding> {
        let TakenPermit { entry, pool, .. } = &*self.taken;
        let holding = pool.holding(owner, is_limited);
        holding.connected();
        let before = lock(&entry.holding).replace(Arc::clone(&holding));
        if let Some(before) = &before {
            before.disconnected();
        }
        let is_first = before.is_none();
        let may_be_proxy = !entry.is_proxied && !entry.is_shared.load(Ordering::Relaxed);
        if is_first || may_be_proxy {
            pool.proven(entry, owner, is_first);
        }
        if is_first && let Some(activity) = entry.activity.get() {
            activity.refused(false);
        }
        holding
    }

    /// A request was refused for its token.
    pub(in crate::downstream) fn refused(&self) {
        let TakenPermit { entry, pool, .. } = &*self.taken;
        if !entry.is_proven()
            && !pool.is_from_proxy(entry)
            && let Some(activity) = entry.activity.get()
        {
            activity.refused(true);
        }
    }
}
