//! Connection permits under `server.max_connections`, and the order of eviction when permits are short.
//!
//! A connection that has presented no valid token is known only by its address: the oldest such connection is evicted
//! first. While fewer than a quarter of the permits are free, one address may hold no more unproven connections than
//! its share. Once every connection has presented a token, idle connections are evicted.

mod table;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use self::table::{ConnectionTable, EvictedConnection};
use super::connection_entry::ConnectionEntry;
use super::connection_permit::ConnectionPermit;
use super::connection_shares::{ConnectionShares, LEAVING};
use super::holding::{PrincipalHolding, PrincipalHoldings};
use crate::address::ClientNetwork;
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::{GAUGES, LABELED};

/// The connection permits of one listener.
#[derive(Debug)]
pub(super) struct PermitPool {
    shares: ConnectionShares,
    /// Whether its connections are those of clients.
    is_public: bool,
    table: Mutex<ConnectionTable>,
    holdings: PrincipalHoldings,
    logged: LineLimit,
}

impl PermitPool {
    pub(super) fn new(shares: ConnectionShares, is_public: bool) -> Self {
        Self {
            shares,
            is_public,
            table: Mutex::default(),
            holdings: PrincipalHoldings::default(),
            logged: LineLimit::default(),
        }
    }

    /// A permit for a connection from `peer`, a trusted proxy if `is_proxied`; `end` is cancelled to evict the
    /// connection. When permits are short, another connection is evicted.
    pub(super) fn take(
        self: &Arc<Self>,
        peer: IpAddr,
        is_proxied: bool,
        end: CancellationToken,
    ) -> Option<ConnectionPermit> {
        // Of probes nothing is known either, and all may come from one address.
        let address = (self.is_public && !is_proxied).then(|| peer.into());
        let (entry, evicted) = {
            let mut table = self.lock();
            let mut evicted = Vec::new();
            if let Some(address) = address {
                evicted.extend(table.evict_of(address, self.shares, None));
            }
            if table.taken() >= self.shares.total && table.leaving() < LEAVING {
                evicted.extend(table.evict_any());
            }
            let has_room = table.taken() < self.shares.total;
            let entry = has_room.then(|| table.enter(address, is_proxied, end));
            (entry, evicted)
        };
        self.tell(evicted);
        entry.map(|entry| {
            let open = self.is_public.then(|| GAUGES.connections_open.enter());
            ConnectionPermit::new(entry, Arc::clone(self), open)
        })
    }

    /// A request came from `client` through a trusted proxy.
    pub(super) fn seen(&self, entry: &ConnectionEntry, client: IpAddr) {
        let address = ClientNetwork::from(client);
        let evicted = {
            let mut table = self.lock();
            let is_new = table.seen(entry.number, address);
            is_new.then(|| table.evict_of(address, self.shares, Some(entry.number)))
        };
        self.tell(evicted.flatten());
    }

    /// A request of the connection brought a good token of `owner`, its first where `is_first`.
    pub(super) fn proven(&self, entry: &ConnectionEntry, owner: OwnerKey, is_first: bool) {
        let found = self.lock().proven(entry.number, owner, is_first);
        if let Some(address) = found.filter(|_| !entry.is_proxied) {
            tracing::warn!(
                %address,
                "good tokens of several callers come from one address, which has no share of the connections \
                 any more: if it is a proxy, name it in server.trusted_proxies"
            );
        }
    }

    /// Whether the connection comes from an address that many callers share.
    pub(super) fn is_from_proxy(&self, entry: &ConnectionEntry) -> bool {
        entry.is_proxied || self.lock().is_from_proxy(entry.number)
    }

    pub(super) fn holding(&self, owner: OwnerKey, is_limited: bool) -> Arc<PrincipalHolding> {
        let share = if is_limited {
            self.shares.principal
        } else {
            usize::MAX
        };
        self.holdings.of(owner, share)
    }

    pub(super) fn leave(&self, entry: &ConnectionEntry) {
        self.lock().leave(entry);
        entry.disconnect();
    }

    /// Ends connections, outside of the lock: an end wakes its task.
    fn tell(&self, evicted: impl IntoIterator<Item = EvictedConnection>) {
        for (entry, reason) in evicted {
            entry.evict();
            if self.is_public {
                LABELED.connections_evicted.add(reason.word(), 1);
            }
            if let Some(muted) = self.logged.admit(reason.word()) {
                let reason = reason.word();
                tracing::warn!(
                    reason,
                    muted,
                    "closed a connection to make room for another"
                );
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        lock(&self.table)
    }
}

#[cfg(test)]
mod tests;
