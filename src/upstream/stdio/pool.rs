//! Places for children: how many may live at once, per principal, per upstream and in total, and
//! who has to make room (DESIGN §6).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::state::{ChildState, StopReason};
use crate::call::OwnerKey;
use crate::config::Stdio;
use crate::lock::lock;
use crate::tally::Tally;

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
    owners: Tally<OwnerKey>,
    upstreams: Tally<Arc<str>>,
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
    pub(super) patience: Patience,
}

/// Whether a caller waits for a place under the caps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Up to `stdio.spawn_wait`.
    SpawnWait,
    /// Only for one that an idle child of the same principal is giving up.
    None,
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
    /// Too many wait already, or the wish is not to wait.
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
        if promised.is_none() && wish.patience == Patience::None {
            return Place::Refused;
        }
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
        inner.taken.len() + inner.owners.holders() + inner.upstreams.holders()
    }

    fn occupy(self: &Arc<Self>, inner: &mut Inner, wish: &Wish) -> Slot {
        let id = inner.next;
        inner.next += 1;
        inner.owners.add(wish.owner);
        inner.upstreams.add(Arc::clone(&wish.upstream));
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
        lock(&self.inner)
    }
}

impl Inner {
    fn fits(&self, wish: &Wish, caps: Caps) -> bool {
        self.taken.len() < caps.total
            && self.owners.of(&wish.owner) < caps.per_owner
            && self.upstream_fits(wish)
    }

    fn upstream_fits(&self, wish: &Wish) -> bool {
        self.upstreams.of(&wish.upstream) < wish.max_of_upstream
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
        self.owners.remove(&taken.owner);
        self.upstreams.remove(&taken.upstream);
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
mod tests;
