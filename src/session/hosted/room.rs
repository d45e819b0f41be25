//! Room for what tasks came to: so many bytes of one principal, and so many in all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is taken by one principal, and by all.
#[derive(Debug, Clone, Default)]
pub struct ResultRoom {
    /// By the principal.
    pub(in crate::session) own: Arc<AtomicUsize>,
    /// By all.
    pub(in crate::session) all: Arc<AtomicUsize>,
}

/// A part that is taken; free again when dropped.
#[derive(Debug)]
pub struct Kept {
    bytes: usize,
    room: ResultRoom,
}

impl ResultRoom {
    /// Takes room for so many bytes; nothing where the principal has not so much of `per_principal`
    /// left, or all have not of `total`.
    #[must_use]
    pub fn take(&self, bytes: usize, per_principal: usize, total: usize) -> Option<Kept> {
        let take = |from: &AtomicUsize, max: usize| {
            let sum = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
        };
        take(&self.own, per_principal).ok()?;
        if take(&self.all, total).is_err() {
            self.own.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(Kept {
            bytes,
            room: self.clone(),
        })
    }

    /// How much would have to be given up for so many bytes.
    #[must_use]
    pub fn lacking(&self, bytes: usize, per_principal: usize, total: usize) -> usize {
        let over = |taken: &AtomicUsize, max: usize| {
            let wanted = taken.load(Ordering::Relaxed).saturating_add(bytes);
            wanted.saturating_sub(max)
        };
        over(&self.own, per_principal).max(over(&self.all, total))
    }
}

impl Drop for Kept {
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
        let room = ResultRoom::default();
        let other = ResultRoom {
            all: Arc::clone(&room.all),
            ..ResultRoom::default()
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
