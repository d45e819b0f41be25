//! Room for replies. Their calls have run already, so a reply without room waits and is never refused.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;

use super::guarded_bytes::guarded;
use super::{BudgetHolder, BudgetLease, ByteBudget, EXEMPT_BYTES, ReservePermit};
use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;

/// The share of one caller in the budget of replies.
#[derive(Debug, Clone)]
pub struct ReplyShare {
    budget: Arc<ByteBudget>,
    holder: BudgetHolder,
}

/// The bytes of one reply in its caller's share, given back on drop.
#[derive(Debug)]
#[must_use = "the bytes are given back when the lease is dropped"]
pub struct ReplyLease(ReplyHold);

#[derive(Debug)]
enum ReplyHold {
    Share(BudgetLease),
    /// Room for one reply of any size.
    Reserve(#[expect(dead_code, reason = "held until it is dropped")] ReservePermit),
}

/// The leases of the replies to one call, until its answer is made of them.
#[derive(Debug, Default)]
pub struct KeptLeases {
    /// Whether there are any; read by every call.
    any: AtomicBool,
    leases: Mutex<Vec<ReplyLease>>,
}

/// The share from which the replies to one call take their bytes, and the leases on these.
#[derive(Debug, Clone, Copy)]
pub struct ReplyRoom<'a> {
    /// The share of its caller.
    pub share: &'a ReplyShare,
    /// The leases of its replies.
    pub kept: &'a KeptLeases,
}

impl ReplyShare {
    /// The share of `holder` in `budget`.
    #[must_use]
    pub fn new(budget: &Arc<ByteBudget>, holder: BudgetHolder) -> Self {
        Self {
            budget: Arc::clone(budget),
            holder,
        }
    }

    /// A lease that holds nothing yet.
    pub fn lease(&self) -> ReplyLease {
        let lease = BudgetLease::empty(Arc::clone(&self.budget), self.holder);
        ReplyLease(ReplyHold::Share(lease))
    }
}

impl ReplyRoom<'_> {
    /// The lease for a reply that held `arrived` while it was read. That is `arrived` itself if it is of the caller's own
    /// share (`is_own`), or a permit of the reserve. Otherwise an empty lease, with `arrived` beside it. Drop `arrived`
    /// before the empty lease grows: it may hold the bytes that the growth waits for.
    pub fn lease_of(
        &self,
        arrived: Option<ReplyLease>,
        is_own: bool,
    ) -> (ReplyLease, Option<ReplyLease>) {
        match arrived {
            Some(lease) if is_own || matches!(lease.0, ReplyHold::Reserve(_)) => (lease, None),
            other => (self.share.lease(), other),
        }
    }
}

impl ReplyLease {
    /// Grows the lease to `len` bytes without waiting; `false` if the budget has no room.
    pub fn try_grow_to(&mut self, len: usize) -> bool {
        match &mut self.0 {
            ReplyHold::Share(lease) => lease.grow_to(len).is_ok(),
            ReplyHold::Reserve(_) => true,
        }
    }

    /// Grows the lease to `len` bytes, waiting for room. One waiting reply per caller moves to the reserve, so
    /// that replies which each hold a part of the share do not deadlock.
    ///
    /// # Cancel safety
    /// A dropped future leaves the queue; the lease is unchanged.
    pub async fn grow_to(&mut self, len: usize) {
        let ReplyHold::Share(lease) = &mut self.0 else {
            return;
        };
        if lease.grow_to(len).is_ok() {
            return;
        }
        let budget = Arc::clone(lease.budget());
        let mut reserved = pin!(budget.reserve(lease.holder()));
        let mut permit = reserved.as_mut().now_or_never();
        if permit.is_none() {
            COUNTERS.replies_waited.add(1);
        }
        let permit = loop {
            if let Some(permit) = permit.take() {
                break permit;
            }
            let mut freed = pin!(budget.freed.notified());
            freed.as_mut().enable();
            if lease.grow_to(len).is_ok() {
                return;
            }
            permit = tokio::select! {
                biased;
                () = freed => None,
                permit = &mut reserved => Some(permit),
            };
        };
        self.0 = ReplyHold::Reserve(permit);
    }

    fn is_empty(&self) -> bool {
        match &self.0 {
            ReplyHold::Share(lease) => lease.is_empty(),
            ReplyHold::Reserve(_) => false,
        }
    }

    /// Gives back what a reply of `len` bytes does not need.
    pub fn shrink_to(&mut self, len: usize) {
        if let ReplyHold::Share(lease) = &mut self.0 {
            lease.shrink_to(len);
        }
    }
}

impl KeptLeases {
    /// Keeps the lease of a reply.
    pub fn keep(&self, lease: ReplyLease) {
        if lease.is_empty() {
            return;
        }
        lock(&self.leases).push(lease);
        self.any.store(true, Ordering::Release);
    }

    /// The answer of the call, which holds the leases of its replies until its last slice is dropped.
    #[must_use]
    pub fn hold(&self, answer: Bytes) -> Bytes {
        if !self.any.load(Ordering::Acquire) {
            return answer;
        }
        self.any.store(false, Ordering::Relaxed);
        let leases = std::mem::take(&mut *lock(&self.leases));
        if answer.len() <= EXEMPT_BYTES {
            return answer;
        }
        guarded(answer, leases)
    }
}
