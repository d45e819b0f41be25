//! Byte budget for results of hosted tasks: a cap per principal and a cap for the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes reserved by one principal, and by all.
#[derive(Debug, Clone, Default)]
pub struct ResultQuota {
    /// By the principal.
    pub(in crate::session) own: Arc<AtomicUsize>,
    /// By all.
    pub(in crate::session) all: Arc<AtomicUsize>,
}

/// A reservation; released when dropped.
#[derive(Debug)]
pub struct QuotaReservation {
    bytes: usize,
    room: ResultQuota,
}

impl ResultQuota {
    /// Reserves `bytes`; `None` if that exceeds `per_principal` for this principal or `total` for all.
    #[must_use]
    pub fn take(
        &self,
        bytes: usize,
        per_principal: usize,
        total: usize,
    ) -> Option<QuotaReservation> {
        let take = |from: &AtomicUsize, max: usize| {
            let sum = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
        };
        take(&self.own, per_principal).ok()?;
        if take(&self.all, total).is_err() {
            self.own.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
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
        over(&self.own, per_principal).max(over(&self.all, total))
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        self.room.own.fetch_sub(self.bytes, Ordering::Relaxed);
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
        let kept = room.take(6, 10, 12).unwrap();
        assert!(room.take(5, 10, 12).is_none(), "of its own there are four");
        assert!(other.take(7, 10, 12).is_none(), "of all there are six");
        let theirs = other.take(6, 10, 12).unwrap();
        drop(kept);
        assert!(room.take(6, 10, 12).is_some());
        drop(theirs);
        assert_eq!(room.all.load(Ordering::Relaxed), 0);
    }
}
