//! Places for children: how many may live at once, per principal, per upstream and in total, and
//! who has to make room (DESIGN §6).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::child::{ChildState, StopReason};
use crate::call::OwnerKey;
use crate::config::Stdio;

/// The caps that hold for every upstream.
#[derive(Debug, Clone, Copy)]
struct Caps {
    total: usize,
    per_owner: usize,
}

/// All places.
pub(super) struct ChildSlots {
    caps: Caps,
    /// Callers that may wait at once.
    max_waiting: usize,
    /// Whether anybody waits, to be asked without the lock.
    is_contended: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    taken: HashMap<u64, Taken>,
    owners: HashMap<OwnerKey, usize>,
    upstreams: HashMap<Arc<str>, usize>,
    /// First come, first served, as far as the caps of each allow.
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Taken {
    owner: OwnerKey,
    upstream: Arc<str>,
    /// Absent while the child is being started.
    child: Option<Arc<ChildState>>,
}

#[derive(Debug)]
struct Waiter {
    wish: Wish,
    /// The place that was vacated for this waiter.
    promised: Option<u64>,
    grant: oneshot::Sender<Slot>,
}

/// Whose child of which upstream, and how many that upstream may have.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) owner: OwnerKey,
    pub(super) upstream: Arc<str>,
    pub(super) max_of_upstream: usize,
}

/// One place, free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<ChildSlots>,
    id: u64,
}

/// What a wish got.
#[derive(Debug)]
pub(super) enum Place {
    /// A place, at once.
    Taken(Slot),
    /// A place as soon as one is free.
    Later(oneshot::Receiver<Slot>),
    /// Too many wait already.
    Refused,
}

impl fmt::Debug for ChildSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChildSlots").field(&self.caps).finish()
    }
}

impl ChildSlots {
    pub(super) fn new(settings: &Stdio) -> Arc<Self> {
        let caps = Caps {
            total: settings.max_children,
            per_owner: settings.max_children_per_principal,
        };
        let max_waiting = settings.max_children.saturating_mul(4);
        Arc::new(Self {
            caps,
            max_waiting,
            is_contended: AtomicBool::new(false),
            inner: Mutex::default(),
        })
    }

    /// Takes a place for `wish`. When a cap is reached, an idle child of the same principal is
    /// stopped to make room; never somebody else's.
    pub(super) fn take(self: &Arc<Self>, wish: Wish) -> Place {
        let mut inner = self.inner();
        inner.forget_gone();
        if inner.fits(&wish, self.caps) {
            return Place::Taken(self.occupy(&mut inner, &wish));
        }
        if inner.waiting.len() >= self.max_waiting {
            return Place::Refused;
        }
        let promised = inner.make_room(&wish);
        let (grant, later) = oneshot::channel();
        self.is_contended.store(true, Ordering::Release);
        inner.waiting.push_back(Waiter {
            wish,
            promised,
            grant,
        });
        Place::Later(later)
    }

    /// A child of `owner` is not in use any more: if its principal waits for a place, this is one.
    pub(super) fn went_idle(&self, owner: OwnerKey) {
        if !self.is_contended.load(Ordering::Acquire) {
            return;
        }
        let mut inner = self.inner();
        inner.forget_gone();
        let at = inner
            .waiting
            .iter()
            .position(|w| w.wish.owner == owner && w.promised.is_none());
        if let Some(waiter) = at.and_then(|at| inner.waiting.get(at)) {
            let promised = inner.make_room(&waiter.wish);
            if let Some(waiter) = at.and_then(|at| inner.waiting.get_mut(at)) {
                waiter.promised = promised;
            }
        }
        self.is_contended
            .store(!inner.waiting.is_empty(), Ordering::Release);
    }

    /// Every child in a place.
    pub(super) fn children(&self) -> Vec<Arc<ChildState>> {
        self.inner()
            .taken
            .values()
            .filter_map(|taken| taken.child.clone())
            .collect()
    }

    /// Places taken, and callers that wait for one.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inner = self.inner();
        (
            inner.taken.len(),
            inner
                .waiting
                .iter()
                .filter(|w| !w.grant.is_closed())
                .count(),
        )
    }

    /// Entries in any of the maps.
    pub(super) fn entries(&self) -> usize {
        let inner = self.inner();
        inner.taken.len() + inner.owners.len() + inner.upstreams.len()
    }

    fn occupy(self: &Arc<Self>, inner: &mut Inner, wish: &Wish) -> Slot {
        let id = inner.next;
        inner.next += 1;
        *inner.owners.entry(wish.owner).or_default() += 1;
        *inner
            .upstreams
            .entry(Arc::clone(&wish.upstream))
            .or_default() += 1;
        let (owner, upstream) = (wish.owner, Arc::clone(&wish.upstream));
        inner.taken.insert(
            id,
            Taken {
                owner,
                upstream,
                child: None,
            },
        );
        Slot {
            slots: Arc::clone(self),
            id,
        }
    }

    fn vacate(self: &Arc<Self>, id: u64) {
        // Grants are sent after the lock is gone: a refused one comes back as a dropped slot.
        let mut grants = Vec::new();
        {
            let mut inner = self.inner();
            inner.remove(id);
            while let Some(waiter) = inner.next_waiter(id, self.caps) {
                let slot = self.occupy(&mut inner, &waiter.wish);
                grants.push((waiter.grant, slot));
            }
        }
        for (grant, slot) in grants {
            drop(grant.send(slot));
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn fits(&self, wish: &Wish, caps: Caps) -> bool {
        let of_owner = self.owners.get(&wish.owner).copied().unwrap_or(0);
        self.taken.len() < caps.total && of_owner < caps.per_owner && self.upstream_fits(wish)
    }

    fn upstream_fits(&self, wish: &Wish) -> bool {
        self.upstreams.get(&wish.upstream).copied().unwrap_or(0) < wish.max_of_upstream
    }

    /// Forgets waiters that gave up.
    fn forget_gone(&mut self) {
        self.waiting.retain(|waiter| !waiter.grant.is_closed());
    }

    /// Stops the least recently used idle child of the same principal whose place would do.
    /// Returns the place that will be free because of it.
    fn make_room(&self, wish: &Wish) -> Option<u64> {
        let same_upstream = !self.upstream_fits(wish);
        // Total and principal's cap are helped by any child of the principal.
        let promised = |id: &u64| self.waiting.iter().any(|w| w.promised.as_ref() == Some(id));
        let candidates = self.taken.iter().filter(|(_, taken)| {
            taken.owner == wish.owner && (!same_upstream || taken.upstream == wish.upstream)
        });
        let mut best: Option<(u64, &Arc<ChildState>)> = None;
        for (id, taken) in candidates {
            let Some(child) = &taken.child else { continue };
            if child.closed().is_cancelled() {
                if !promised(id) {
                    // One is ending already and nobody else waits for its place.
                    return Some(*id);
                }
            } else if child.is_idle()
                && best.is_none_or(|(_, other)| child.last_used() < other.last_used())
            {
                best = Some((*id, child));
            }
        }
        let (id, child) = best?;
        child.stop(StopReason::Evicted);
        Some(id)
    }

    fn remove(&mut self, id: u64) {
        let Some(taken) = self.taken.remove(&id) else {
            return;
        };
        if let Some(count) = self.owners.get_mut(&taken.owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&taken.owner);
            }
        }
        if let Some(count) = self.upstreams.get_mut(&taken.upstream) {
            *count -= 1;
            if *count == 0 {
                self.upstreams.remove(&taken.upstream);
            }
        }
    }

    /// Who gets a place now that `vacated` is free: whoever it was vacated for, else the first
    /// whose caps allow it.
    fn next_waiter(&mut self, vacated: u64, caps: Caps) -> Option<Waiter> {
        self.forget_gone();
        let fits = |waiter: &Waiter| self.fits(&waiter.wish, caps);
        let promised = self
            .waiting
            .iter()
            .position(|w| w.promised == Some(vacated) && fits(w));
        let at = promised.or_else(|| {
            // Whoever has a promise gets what was promised: the owner gave a child for it.
            self.waiting
                .iter()
                .position(|w| w.promised.is_none() && fits(w))
                .or_else(|| self.waiting.iter().position(fits))
        })?;
        self.waiting.remove(at)
    }
}

impl Slot {
    /// The child that lives here.
    pub(super) fn settle(&self, child: Arc<ChildState>) {
        if let Some(taken) = self.slots.inner().taken.get_mut(&self.id) {
            taken.child = Some(child);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.vacate(self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::call::Principal;
    use crate::upstream::stdio::backoff::Backoff;
    use crate::upstream::stdio::child::Birth;
    use crate::upstream::stdio::starts::Starts;
    use crate::upstream::stdio::stderr::Log;

    fn slots(total: usize, per_owner: usize) -> Arc<ChildSlots> {
        ChildSlots::new(&Stdio {
            max_children: total,
            max_children_per_principal: per_owner,
            idle: std::time::Duration::MAX,
            spawn_wait: std::time::Duration::MAX,
        })
    }

    fn wish(who: &str, upstream: &str) -> Wish {
        let owner = Principal::new("i", who, "", Vec::new(), None).owner();
        Wish {
            owner,
            upstream: upstream.into(),
            max_of_upstream: 3,
        }
    }

    /// A child that has spoken, in its place.
    fn child(slots: &Arc<ChildSlots>, slot: &Slot, wish: &Wish) -> Arc<ChildState> {
        let starts = Starts::new(1);
        let permit = starts.permit(&wish.upstream).now_or_never().flatten();
        let child = Arc::new(ChildState::new(Birth {
            upstream: Arc::clone(&wish.upstream),
            owner: wish.owner,
            pid: 0,
            log: Log::new(&std::collections::BTreeMap::new()),
            backoff: Arc::new(Backoff::default()),
            slots: Arc::clone(slots),
            start_permit: permit.unwrap(),
        }));
        slot.settle(Arc::clone(&child));
        child.spoke();
        child
    }

    fn at_once(slots: &Arc<ChildSlots>, wish: Wish) -> Slot {
        match slots.take(wish) {
            Place::Taken(slot) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn later(slots: &Arc<ChildSlots>, wish: Wish) -> oneshot::Receiver<Slot> {
        match slots.take(wish) {
            Place::Later(later) => later,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_place_goes_to_whoever_gave_a_child_for_it() {
        let slots = slots(2, 2);
        let alice = wish("alice", "up");
        let first = at_once(&slots, alice.clone());
        let idle = child(&slots, &first, &alice);
        let _second = at_once(&slots, wish("bob", "up"));
        let mut carol = later(&slots, wish("carol", "up"));
        let mut mine = later(&slots, alice);
        assert!(idle.closed().is_cancelled(), "alice's own child makes room");
        drop(first);
        assert!(carol.try_recv().is_err(), "though carol came first");
        assert!(mine.try_recv().is_ok());
    }

    #[test]
    fn each_waiter_costs_one_child_at_most() {
        let slots = slots(9, 2);
        let alice = wish("alice", "up");
        let places = [0, 1].map(|_| at_once(&slots, alice.clone()));
        let children = [0, 1].map(|at: usize| child(&slots, &places[at], &alice));
        let closed = || {
            children
                .iter()
                .filter(|child| child.closed().is_cancelled())
                .count()
        };
        let _one = later(&slots, alice.clone());
        assert_eq!(closed(), 1);
        let _two = later(&slots, alice.clone());
        assert_eq!(closed(), 2);
        let _three = later(&slots, alice);
        assert_eq!(slots.counts(), (2, 3));
    }

    #[test]
    fn a_child_that_is_ending_anyway_saves_another() {
        let slots = slots(9, 2);
        let alice = wish("alice", "up");
        let places = [0, 1].map(|_| at_once(&slots, alice.clone()));
        let children = [0, 1].map(|at: usize| child(&slots, &places[at], &alice));
        children[1].stop(StopReason::Dropped);
        let _one = later(&slots, alice);
        assert!(!children[0].closed().is_cancelled());
    }

    #[test]
    fn waiting_has_a_bound_and_leaves_nothing() {
        let slots = slots(1, 1);
        let place = at_once(&slots, wish("alice", "up"));
        let waiting: Vec<_> = (0..4).map(|_| later(&slots, wish("bob", "up"))).collect();
        assert!(matches!(slots.take(wish("bob", "up")), Place::Refused));
        drop(waiting);
        drop(place);
        assert_eq!(slots.counts(), (0, 0));
        assert_eq!(slots.entries(), 0);
    }

    #[test]
    fn a_grant_that_nobody_takes_goes_on_to_the_next() {
        let slots = slots(1, 1);
        let place = at_once(&slots, wish("alice", "up"));
        let (gone, mut next) = (
            later(&slots, wish("bob", "a")),
            later(&slots, wish("carol", "b")),
        );
        drop(place);
        assert!(next.try_recv().is_err(), "first come, first served");
        drop(gone);
        assert!(next.try_recv().is_ok());
    }
}
