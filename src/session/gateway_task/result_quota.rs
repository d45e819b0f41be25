//! Byte budget for results of hosted tasks: a cap per principal and a cap for the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::call::OwnerKey;
use crate::store::quotas::{CallerQuota, QuotaClaim};

/// Bytes reserved by one principal.
#[derive(Debug, Default)]
pub(in crate::session) struct OwnResults {
    /// At this replica.
    taken: AtomicUsize,
    /// The principal's quota over all replicas, where there are several.
    in_sum: Option<(Arc<CallerQuota>, OwnerKey)>,
}

/// Bytes reserved by one principal, and by all.
#[derive(Debug, Clone, Default)]
pub struct ResultQuota {
    /// By the principal.
    pub(in crate::session) own: Arc<OwnResults>,
    /// By all.
    pub(in crate::session) all: Arc<AtomicUsize>,
}

/// A reservation; released when dropped.
#[derive(Debug)]
pub struct QuotaReservation {
    bytes: usize,
    room: ResultQuota,
}

impl OwnResults {
    pub(in crate::session) fn new(in_sum: Option<(Arc<CallerQuota>, OwnerKey)>) -> Self {
        let taken = AtomicUsize::new(0);
        Self { taken, in_sum }
    }

    /// Whether nothing is reserved.
    pub(in crate::session) fn is_free(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0
    }

    /// What may be taken here of `per_principal`.
    fn most(&self, per_principal: usize) -> usize {
        let in_sum = self.in_sum.as_ref();
        in_sum.map_or(per_principal, |(quota, owner)| {
            quota.most(*owner).min(per_principal)
        })
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(None);
    }

    /// Tells the other replicas how much this replica holds, with what was claimed by `claim`.
    fn tell(&self, claim: Option<&QuotaClaim>) {
        let taken = || self.taken.load(Ordering::Relaxed);
        if let Some(claim) = claim {
            claim.counted(taken);
        } else if let Some((quota, owner)) = &self.in_sum {
            quota.changed(*owner, taken);
        }
    }
}

impl ResultQuota {
    /// Claims room for a result, until it is taken: waits for what other replicas hold where that counts, a second at
    /// most. `None` where the quota is this replica's own.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim(&self, bytes: usize) -> Option<QuotaClaim> {
        let (quota, owner) = self.own.in_sum.as_ref()?;
        let taken = || self.own.taken.load(Ordering::Relaxed);
        Some(quota.claim(*owner, bytes, taken).await)
    }

    /// Reserves `bytes`, which may be claimed by `claim`; `None` if that exceeds `per_principal` for this principal or
    /// `total` for all.
    #[must_use]
    pub fn take(
        &self,
        (bytes, claim): (usize, Option<&QuotaClaim>),
        per_principal: usize,
        total: usize,
    ) -> Option<QuotaReservation> {
        let take = |from: &AtomicUsize, max: usize| {
            let sum = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
        };
        take(&self.own.taken, self.own.most(per_principal)).ok()?;
        if take(&self.all, total).is_err() {
            self.own.taken.fetch_sub(bytes, Ordering::Relaxed);
            // Another call may have told the sum meanwhile.
            self.own.tell(None);
            return None;
        }
        self.own.tell(claim);
        Some(QuotaReservation {
            bytes,
            room: self.clone(),
        })
    }

    /// How many bytes have to be released before `bytes` can be reserved.
    #[must_use]
    pub fn lacking(&self, bytes: usize, per_principal: usize, total: usize) -> usize {
        let over = |taken: &AtomicUsize, max: usize| {
            let wanted = taken.load(Ordering::Relaxed).saturating_add(bytes);
            wanted.saturating_sub(max)
        };
        let own = self.own.most(per_principal);
        over(&self.own.taken, own).max(over(&self.all, total))
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        self.room.own.give_back(self.bytes);
        self.room.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_principal_and_all_together_have_so_much_room() {
        let room = ResultQuota::default();
        let other = ResultQuota {
            all: Arc::clone(&room.all),
            ..ResultQuota::default()
        };
        let kept = room.take((6, None), 10, 12).unwrap();
        assert!(
            room.take((5, None), 10, 12).is_none(),
            "of its own there are four"
        );
        assert!(
            other.take((7, None), 10, 12).is_none(),
            "of all there are six"
        );
        let theirs = other.take((6, None), 10, 12).unwrap();
        drop(kept);
        assert!(room.take((6, None), 10, 12).is_some());
        drop(theirs);
        assert_eq!(room.all.load(Ordering::Relaxed), 0);
    }
}
