//! `HeldHere`: the count of one caller at this replica, and the count of the other replicas by the last answer of the store.

use tokio::time::Instant;

/// What a caller may hold in all, and the slices that replicas take of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuotaSize {
    pub(super) most: usize,
    pub(super) slice: usize,
}

/// What one caller holds.
#[derive(Debug, Default)]
pub(super) struct HeldHere {
    /// At this replica.
    pub(super) used: usize,
    /// About to be held here.
    pub(super) claimed: usize,
    /// As the store was told.
    pub(super) told: usize,
    /// At the other replicas, by the last answer.
    pub(super) others: usize,
    /// When the last answer was there.
    pub(super) answered: Option<Instant>,
    /// Whether the store is to be asked, though nothing has changed here.
    pub(super) is_asked: bool,
    /// Whether it is in the list, in a call, or waits after a failed one.
    pub(super) is_listed: bool,
    /// Whether its last call failed: the caller may hold the whole quota here.
    pub(super) is_failing: bool,
}

/// Whether a claim finds room.
pub(super) enum ClaimState {
    Claimed,
    /// The store has still to say.
    Unknown,
    Full,
}

impl HeldHere {
    pub(super) fn new(used: usize) -> Self {
        Self {
            used,
            ..Self::default()
        }
    }

    /// What the others leave.
    pub(super) fn room(&self, size: QuotaSize) -> usize {
        size.most.saturating_sub(self.others)
    }

    /// What the store is told: less than a slice is not told, as each replica may have that much.
    pub(super) fn shown(&self, size: QuotaSize) -> usize {
        if self.used < size.slice { 0 } else { self.used }
    }

    /// What may be held here now. `is_down`: the store cannot be reached.
    pub(super) fn most(&self, size: QuotaSize, is_down: bool) -> usize {
        if self.is_failing || is_down {
            return size.most;
        }
        let room = self.room(size).min(self.told + size.slice);
        room.max(size.slice).max(self.used + self.claimed)
    }

    /// Claims room for `more`, for a caller that waits since `since`.
    pub(super) fn claim(
        &mut self,
        size: QuotaSize,
        (more, since): (usize, Instant),
        is_down: bool,
    ) -> ClaimState {
        let wanted = self.used + self.claimed + more;
        let room = self.room(size);
        let is_fresh = self.answered.is_some_and(|at| at > since);
        // Something larger than a slice, where all else was told.
        let is_first = self.claimed == 0 && self.shown(size) == self.told;
        if wanted <= self.most(size, is_down) || is_fresh && is_first && wanted <= room {
            self.claimed += more;
            return ClaimState::Claimed;
        }
        if self.is_failing || is_fresh && wanted > room {
            return ClaimState::Full;
        }
        self.is_asked |= !is_fresh;
        ClaimState::Unknown
    }

    /// Claims room for `more` by the last answer, as the store gives none; whether there was room.
    pub(super) fn claim_unanswered(&mut self, size: QuotaSize, more: usize) -> bool {
        let fits = self.used + self.claimed + more <= self.room(size);
        if fits {
            self.claimed += more;
        }
        fits
    }
}
