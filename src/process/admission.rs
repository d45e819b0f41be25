//! Places for children: the limits per principal, per upstream and in total, and which idle child is evicted to make
//! room (DESIGN §6).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::full::{ChildCap, NoChildSlot};
use super::state::ChildState;
use super::stop_reason::StopReason;
use crate::call::OwnerKey;
use crate::config::StdioConfig;
use crate::lock::lock;
use crate::process::holders::SessionHolders;
use crate::sync::keyed_counter::KeyedCounter;

/// The caps that hold for every upstream.
#[derive(Debug, Clone, Copy)]
struct ChildCaps {
    total: usize,
    per_owner: usize,
}

/// All places.
pub(super) struct ChildSlots {
    caps: ChildCaps,
    /// Callers that may wait at once.
    max_waiting: usize,
    /// Whether any caller waits; readable without the lock.
    is_contended: AtomicBool,
    inner: Mutex<SlotTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    next: u64,
    taken: HashMap<u64, TakenSlots>,
    owners: KeyedCounter<OwnerKey>,
    upstreams: KeyedCounter<Arc<str>>,
    /// Waiters in order of arrival; the caps may let a later one go first.
    waiting: VecDeque<SlotWaiter>,
}

#[derive(Debug)]
struct TakenSlots {
    owner: OwnerKey,
    upstream: Arc<str>,
    holders: SessionHolders,
    /// Absent while the child is being started.
    child: Option<Arc<ChildState>>,
}

#[derive(Debug)]
struct SlotWaiter {
    request: SlotRequest,
    /// The place being vacated for this waiter.
    promised: Option<u64>,
    grant: oneshot::Sender<ChildSlot>,
}

/// A request for a child: its owner, its upstream, and the upstream's cap.
#[derive(Debug, Clone)]
pub(super) struct SlotRequest {
    pub(super) owner: OwnerKey,
    pub(super) upstream: Arc<str>,
    pub(super) max_of_upstream: usize,
    pub(super) patience: WaitPolicy,
    /// The sessions that the child is for.
    pub(super) holders: SessionHolders,
}

/// Whether a caller waits for a place under the caps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Up to `stdio.spawn_wait`.
    SpawnWait,
    /// Only for a place that an idle child of the same principal is giving up.
    None,
}

/// One place, free again when dropped.
#[derive(Debug)]
pub(super) struct ChildSlot {
    slots: Arc<ChildSlots>,
    id: u64,
}

/// The outcome of a [`SlotRequest`].
#[derive(Debug)]
pub(super) enum Admission {
    /// A place, at once.
    Taken(ChildSlot),
    /// A place as soon as one is free.
    Later(oneshot::Receiver<ChildSlot>),
    /// Too many wait already, the request is not to wait, or it would wait for its own session.
    Refused(NoChildSlot),
}

impl fmt::Debug for ChildSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChildSlots").field(&self.caps).finish()
    }
}

impl ChildSlots {
    pub(super) fn new(settings: &StdioConfig) -> Arc<Self> {
        let caps = ChildCaps {
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

    /// Takes a place for `request`. When a cap is reached, an idle child of the same principal is evicted to make room;
    /// never one of another principal.
    pub(super) fn take(self: &Arc<Self>, request: SlotRequest) -> Admission {
        let mut inner = self.inner();
        inner.forget_gone();
        let Some(cap) = inner.reached(&request, self.caps) else {
            return Admission::Taken(self.occupy(&mut inner, &request));
        };
        if inner.waiting.len() >= self.max_waiting {
            let cap = ChildCap::Waiting(self.max_waiting);
            return Admission::Refused(NoChildSlot { cap, is_own: false });
        }
        let promised = inner.make_room(&request);
        let is_own = promised.is_none() && inner.is_all_own(&request, cap);
        if promised.is_none() && (is_own || request.patience == WaitPolicy::None) {
            return Admission::Refused(NoChildSlot { cap, is_own });
        }
        let (grant, later) = oneshot::channel();
        self.is_contended.store(true, Ordering::Release);
        inner.waiting.push_back(SlotWaiter {
            request,
            promised,
            grant,
        });
        Admission::Later(later)
    }

    /// The cap that leaves no place for `request` now.
    pub(super) fn full(&self, request: &SlotRequest) -> NoChildSlot {
        let reached = self.inner().reached(request, self.caps);
        NoChildSlot {
            cap: reached.unwrap_or(ChildCap::Starts),
            is_own: false,
        }
    }

    /// A child of `owner` went idle: if its principal waits for a place, the child is evicted.
    pub(super) fn went_idle(&self, owner: OwnerKey) {
        if !self.is_contended.load(Ordering::Acquire) {
            return;
        }
        let mut inner = self.inner();
        inner.forget_gone();
        let of_owner =
            |waiter: &&SlotWaiter| waiter.request.owner == owner && waiter.promised.is_none();
        let all = inner.waiting.iter().enumerate();
        let mut waiting = all.filter(|(_, waiter)| of_owner(waiter));
        let made = waiting.find_map(|(at, waiter)| Some((at, inner.make_room(&waiter.request)?)));
        if let Some((at, promised)) = made
            && let Some(waiter) = inner.waiting.get_mut(at)
        {
            waiter.promised = Some(promised);
        }
        self.is_contended
            .store(!inner.waiting.is_empty(), Ordering::Release);
    }

    /// Every child that holds a place.
    pub(super) fn children(&self) -> Vec<Arc<ChildState>> {
        self.inner()
            .taken
            .values()
            .filter_map(|taken| taken.child.clone())
            .collect()
    }

    /// The number of taken places, and of waiting callers.
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

    /// Entries in all maps together.
    pub(super) fn entries(&self) -> usize {
        let inner = self.inner();
        inner.taken.len() + inner.owners.holders() + inner.upstreams.holders()
    }

    fn occupy(self: &Arc<Self>, inner: &mut SlotTable, request: &SlotRequest) -> ChildSlot {
        let id = inner.next;
        inner.next += 1;
        inner.owners.add(request.owner);
        inner.upstreams.add(Arc::clone(&request.upstream));
        let (owner, upstream) = (request.owner, Arc::clone(&request.upstream));
        inner.taken.insert(
            id,
            TakenSlots {
                owner,
                upstream,
                holders: request.holders.clone(),
                child: None,
            },
        );
        ChildSlot {
            slots: Arc::clone(self),
            id,
        }
    }

    fn vacate(self: &Arc<Self>, id: u64) {
        // Grants are sent after the lock is released: a refused grant drops its slot, which locks again.
        let mut grants = Vec::new();
        {
            let mut inner = self.inner();
            inner.remove(id);
            while let Some(waiter) = inner.next_waiter(id, self.caps) {
                let slot = self.occupy(&mut inner, &waiter.request);
                grants.push((waiter.grant, slot));
            }
        }
        for (grant, slot) in grants {
            drop(grant.send(slot));
        }
    }

    fn inner(&self) -> MutexGuard<'_, SlotTable> {
        lock(&self.inner)
    }
}

impl SlotTable {
    fn fits(&self, request: &SlotRequest, caps: ChildCaps) -> bool {
        self.reached(request, caps).is_none()
    }

    /// The cap that leaves no place for `request`.
    fn reached(&self, request: &SlotRequest, caps: ChildCaps) -> Option<ChildCap> {
        if !self.upstream_fits(request) {
            Some(ChildCap::Upstream(request.max_of_upstream))
        } else if self.owners.of(&request.owner) >= caps.per_owner {
            Some(ChildCap::Principal(caps.per_owner))
        } else {
            (self.taken.len() >= caps.total).then_some(ChildCap::Total(caps.total))
        }
    }

    /// Whether every place under `cap` is held by a session that `request` is for.
    fn is_all_own(&self, request: &SlotRequest, cap: ChildCap) -> bool {
        let mut concerned = self.taken.values().filter(|taken| match cap {
            ChildCap::Upstream(_) => taken.upstream == request.upstream,
            ChildCap::Principal(_) => taken.owner == request.owner,
            _ => true,
        });
        concerned.all(|taken| {
            let ends = |child: &Arc<ChildState>| child.closed().is_cancelled();
            taken.holders.shares(&request.holders) && !taken.child.as_ref().is_some_and(ends)
        })
    }

    fn upstream_fits(&self, request: &SlotRequest) -> bool {
        self.upstreams.of(&request.upstream) < request.max_of_upstream
    }

    /// Drops waiters whose caller gave up.
    fn forget_gone(&mut self) {
        self.waiting.retain(|waiter| !waiter.grant.is_closed());
    }

    /// Evicts the least recently used idle child of the same principal whose place satisfies the cap, and returns that
    /// place. Spares children held by a session of the request, as that session would start them again at once.
    fn make_room(&self, request: &SlotRequest) -> Option<u64> {
        let same_upstream = !self.upstream_fits(request);
        // Any child of the principal helps against the total and the principal's cap.
        let promised = |id: &u64| self.waiting.iter().any(|w| w.promised.as_ref() == Some(id));
        let candidates = self.taken.iter().filter(|(_, taken)| {
            taken.owner == request.owner && (!same_upstream || taken.upstream == request.upstream)
        });
        let mut best: Option<(u64, &Arc<ChildState>)> = None;
        for (id, taken) in candidates {
            let Some(child) = &taken.child else { continue };
            if child.closed().is_cancelled() {
                if !promised(id) {
                    // This child is ending already, and its place is promised to no waiter.
                    return Some(*id);
                }
            } else if child.is_idle()
                && !taken.holders.shares(&request.holders)
                && best.is_none_or(|(_, other)| child.uses.last_used() < other.uses.last_used())
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

    /// The waiter that gets the place `vacated`: the promised waiter, else the first whose caps allow a place.
    fn next_waiter(&mut self, vacated: u64, caps: ChildCaps) -> Option<SlotWaiter> {
        self.forget_gone();
        let fits = |waiter: &SlotWaiter| self.fits(&waiter.request, caps);
        let promised = self
            .waiting
            .iter()
            .position(|w| w.promised == Some(vacated) && fits(w));
        let at = promised.or_else(|| {
            // Waiters without a promise go first: the owner of a promised one gave up a child for its place.
            self.waiting
                .iter()
                .position(|w| w.promised.is_none() && fits(w))
                .or_else(|| self.waiting.iter().position(fits))
        })?;
        self.waiting.remove(at)
    }
}

impl ChildSlot {
    /// The child that lives here.
    pub(super) fn settle(&self, child: Arc<ChildState>) {
        if let Some(taken) = self.slots.inner().taken.get_mut(&self.id) {
            taken.child = Some(child);
        }
    }
}

impl Drop for ChildSlot {
    fn drop(&mut self) {
        self.slots.vacate(self.id);
    }
}

#[cfg(test)]
mod tests;
