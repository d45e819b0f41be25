//! Open connections: by number, by address, and by the token they presented.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::activity::ConnectionUse;
use super::super::connection_entry::ConnectionEntry;
use super::super::connection_shares::{ConnectionShares, EvictionReason, LEAVING};
use crate::address::ClientNetwork;
use crate::call::OwnerKey;

/// Principals whose good tokens come from one address before it counts as a proxy.
const CALLERS: usize = 3;
/// Addresses that are remembered as proxies.
const PROXIES: usize = 1024;
/// Between two warnings of proxies.
const WARN_EVERY: Duration = Duration::from_mins(1);
/// Connections examined per search for the longest idle one.
const LOOKED_AT: usize = 64;
/// Pause after a search of all connections that found none idle.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    next: u64,
    /// Connections that have not presented a valid token.
    unproven: BTreeMap<u64, HeldConnections>,
    proven: BTreeMap<u64, HeldConnections>,
    /// Unproven connections whose address is known.
    by_address: BTreeSet<(ClientNetwork, u64)>,
    origins: HashMap<ClientNetwork, AddressCounts>,
    proxies: HashSet<ClientNetwork>,
    warned: Option<Instant>,
    /// Where the next search for an idle connection starts.
    hand: u64,
    none_idle: Option<Instant>,
    leaving: usize,
}

#[derive(Debug)]
struct HeldConnections {
    entry: Arc<ConnectionEntry>,
    address: Option<ClientNetwork>,
}

/// Counts of one address; removed with its last connection.
#[derive(Debug, Default)]
struct AddressCounts {
    connections: usize,
    unproven: usize,
    /// Whose good tokens came from there, [`CALLERS`] at most.
    callers: Vec<OwnerKey>,
}

pub(super) type EvictedConnection = (Arc<ConnectionEntry>, EvictionReason);

impl ConnectionTable {
    /// Permits in use.
    pub(super) fn taken(&self) -> usize {
        self.unproven.len() + self.proven.len()
    }

    /// Evicted connections that are not closed yet.
    pub(super) fn leaving(&self) -> usize {
        self.leaving
    }

    /// A new connection takes a place.
    pub(super) fn enter(
        &mut self,
        address: Option<ClientNetwork>,
        is_proxied: bool,
        end: CancellationToken,
    ) -> Arc<ConnectionEntry> {
        let number = self.next;
        self.next += 1;
        let entry = Arc::new(ConnectionEntry::new(number, is_proxied, end));
        let held = HeldConnections {
            entry: Arc::clone(&entry),
            address: None,
        };
        self.unproven.insert(number, held);
        if let Some(address) = address {
            self.seen(number, address);
        }
        entry
    }

    /// Assigns an unproven connection to `address`; `true` if the address is new for it.
    pub(super) fn seen(&mut self, number: u64, address: ClientNetwork) -> bool {
        let Some(held) = self.unproven.get_mut(&number) else {
            return false;
        };
        let before = held.address.replace(address);
        if before == Some(address) {
            return false;
        }
        if let Some(before) = before {
            self.by_address.remove(&(before, number));
            self.depart(before, true);
        }
        self.by_address.insert((address, number));
        let origin = self.origins.entry(address).or_default();
        origin.connections += 1;
        origin.unproven += 1;
        true
    }

    /// A connection brought a good token of `owner`, its first where `is_first`. Gives its address when
    /// that turns out to be a proxy, once a minute at most.
    pub(super) fn proven(
        &mut self,
        number: u64,
        owner: OwnerKey,
        is_first: bool,
    ) -> Option<ClientNetwork> {
        if is_first && let Some(held) = self.unproven.remove(&number) {
            if let Some(address) = held.address {
                self.by_address.remove(&(address, number));
                let origin = self.origins.entry(address).or_default();
                origin.unproven = origin.unproven.saturating_sub(1);
            }
            self.proven.insert(number, held);
        }
        let held = self.proven.get(&number)?;
        let address = held.address?;
        if !self.proxies.contains(&address) {
            let callers = &mut self.origins.entry(address).or_default().callers;
            if !callers.contains(&owner) {
                callers.push(owner);
            }
            if callers.len() < CALLERS {
                return None;
            }
            if self.proxies.len() >= PROXIES {
                self.proxies.clear();
            }
            self.proxies.insert(address);
        }
        held.entry.is_shared.store(true, Ordering::Relaxed);
        let now = Instant::now();
        let is_quiet = |at: Instant| now.duration_since(at) < WARN_EVERY;
        if self.warned.is_some_and(is_quiet) {
            return None;
        }
        self.warned = Some(now);
        Some(address)
    }

    /// Whether the connection comes from an address that counts as a proxy.
    pub(super) fn is_from_proxy(&self, number: u64) -> bool {
        let held = self.unproven.get(&number).or(self.proven.get(&number));
        let address = held.and_then(|held| held.address);
        address.is_some_and(|address| self.proxies.contains(&address))
    }

    /// Removes the oldest unproven connection of `address` where places are short and it has its share,
    /// besides `newest` if that is one of them.
    pub(super) fn evict_of(
        &mut self,
        address: ClientNetwork,
        shares: ConnectionShares,
        newest: Option<u64>,
    ) -> Option<EvictedConnection> {
        let free = shares.total.saturating_sub(self.taken());
        let are_short = free.saturating_mul(4) < shares.total;
        let most = shares.address + usize::from(newest.is_some());
        let has_share = |origin: &AddressCounts| origin.unproven >= most;
        if !are_short
            || self.leaving >= LEAVING
            || self.proxies.contains(&address)
            || !self.origins.get(&address).is_some_and(has_share)
        {
            return None;
        }
        let all = (address, 0)..=(address, u64::MAX);
        let (_, number) = *self.by_address.range(all).next()?;
        self.evict(number, EvictionReason::Address)
    }

    /// Evicts the least valuable connection: the oldest unproven one, else one in excess of its share, else an idle
    /// one.
    pub(super) fn evict_any(&mut self) -> Option<EvictedConnection> {
        if let Some(number) = self.unproven.keys().next() {
            return self.evict(*number, EvictionReason::NoToken);
        }
        let now = Instant::now();
        if self.none_idle.is_some_and(|until| now < until) {
            return None;
        }
        let Some((number, reason)) = self.expendable() else {
            self.none_idle = Some(now + PAUSE);
            return None;
        };
        self.evict(number, reason)
    }

    /// A connection in excess of its share, or else the one idle for longest among about `LOOKED_AT`.
    fn expendable(&mut self) -> Option<(u64, EvictionReason)> {
        let from_hand = self.proven.range(self.hand..);
        let all = from_hand.chain(self.proven.range(..self.hand));
        let mut idle: Option<(Option<Instant>, u64)> = None;
        for (looked_at, (number, held)) in all.enumerate() {
            if looked_at >= LOOKED_AT && idle.is_some() {
                break;
            }
            self.hand = number + 1;
            let activity = held.entry.activity();
            if held.entry.is_excess(activity) {
                return Some((*number, EvictionReason::Share));
            }
            if let ConnectionUse::Idle(until) = activity {
                let is_longer = idle.is_none_or(|(other, _)| match (until, other) {
                    (Some(until), Some(other)) => until < other,
                    (until, _) => until.is_some(),
                });
                if is_longer {
                    idle = Some((until, *number));
                }
            }
        }
        idle.map(|(_, number)| (number, EvictionReason::Idle))
    }

    fn evict(&mut self, number: u64, reason: EvictionReason) -> Option<EvictedConnection> {
        let held = self.remove(number)?;
        self.leaving += 1;
        Some((held.entry, reason))
    }

    /// The connection is closed.
    pub(super) fn leave(&mut self, entry: &ConnectionEntry) {
        if self.remove(entry.number).is_none() {
            self.leaving = self.leaving.saturating_sub(1);
        }
    }

    fn remove(&mut self, number: u64) -> Option<HeldConnections> {
        let unproven = self.unproven.remove(&number);
        let was_unproven = unproven.is_some();
        let held = unproven.or_else(|| self.proven.remove(&number))?;
        if let Some(address) = held.address {
            self.by_address.remove(&(address, number));
            self.depart(address, was_unproven);
        }
        Some(held)
    }

    /// Whether nothing is kept.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.taken() + self.leaving + self.by_address.len() + self.origins.len() == 0
    }

    /// A connection does not belong to `address` any more.
    fn depart(&mut self, address: ClientNetwork, was_unproven: bool) {
        if let Some(origin) = self.origins.get_mut(&address) {
            origin.connections -= 1;
            origin.unproven -= usize::from(was_unproven);
            if origin.connections == 0 {
                self.origins.remove(&address);
            }
        }
    }
}
