//! Open exchanges and connections of each principal, counted per listener.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::call::OwnerKey;
use crate::lock::lock;
use crate::sync::fast_maps::FastMap;

/// The counts of one principal.
#[derive(Debug)]
pub(super) struct PrincipalHolding {
    pub(super) owner: OwnerKey,
    /// Exchanges and streams within its share.
    exchanges: AtomicUsize,
    /// Connections whose last good token was its own.
    connections: AtomicUsize,
    /// How many exchanges it may have open; as many connections of its own may be idle or stuck before
    /// they are the first to be closed.
    share: usize,
}

impl PrincipalHolding {
    /// Counts one exchange more, unless the share is used up.
    pub(super) fn open(self: &Arc<Self>) -> Option<OpenExchange> {
        let before = self.exchanges.fetch_add(1, Ordering::Relaxed);
        let open = OpenExchange(Arc::clone(self));
        (before < self.share).then_some(open)
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it has more connections than its share.
    pub(super) fn is_greedy(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > self.share
    }
}

/// An exchange or a stream within the share of its principal; counted until it is dropped.
#[derive(Debug)]
#[must_use = "the exchange counts until this is dropped"]
pub(in crate::downstream) struct OpenExchange(Arc<PrincipalHolding>);

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counts of all principals; an owner without exchanges and connections is removed.
#[derive(Debug, Default)]
pub(super) struct PrincipalHoldings(Mutex<FastMap<OwnerKey, Weak<PrincipalHolding>>>);

impl PrincipalHoldings {
    /// The counts of `owner`; `share` is used if the owner is new.
    pub(super) fn of(&self, owner: OwnerKey, share: usize) -> Arc<PrincipalHolding> {
        let mut all = lock(&self.0);
        if let Some(known) = all.get(&owner).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() == all.capacity() {
            all.retain(|_, holding| holding.strong_count() > 0);
        }
        let new = Arc::new(PrincipalHolding {
            owner,
            exchanges: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            share,
        });
        all.insert(owner, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn owner(name: &str) -> OwnerKey {
        Principal::new("i", name, "", Vec::new(), None).owner()
    }

    #[test]
    fn shares_are_used_up_by_open_exchanges_of_their_principal_alone() {
        let holdings = PrincipalHoldings::default();
        let alice = holdings.of(owner("alice"), 2);
        let open = [alice.open(), alice.open()];
        assert!(open.iter().all(Option::is_some));
        assert!(holdings.of(owner("alice"), 2).open().is_none());
        assert!(holdings.of(owner("bob"), 2).open().is_some());
        drop(open);
        assert!(alice.open().is_some());
    }

    #[test]
    fn principals_that_hold_nothing_are_forgotten() {
        let holdings = PrincipalHoldings::default();
        for number in 0..10_000 {
            drop(holdings.of(owner(&number.to_string()), 1));
        }
        assert!(lock(&holdings.0).len() < 10);
    }
}
