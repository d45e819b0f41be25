//! `CutOff`: tells running calls that the drain is over.

use tokio_util::sync::CancellationToken;

/// Groups of calls. All that wait at one token meet in a lock.
const GROUPS: usize = 32;

/// Cancelled once, for all calls.
#[derive(Debug, Default)]
pub(super) struct CutOff([CancellationToken; GROUPS]);

impl CutOff {
    /// The token of the call at the address `place` in memory.
    pub(super) fn of(&self, place: usize) -> &CancellationToken {
        // A call takes more than 128 bytes: neighbours in memory are in different groups.
        let [first, ..] = &self.0;
        self.0.get((place >> 7) % GROUPS).unwrap_or(first)
    }

    /// Tells all calls.
    pub(super) fn cancel(&self) {
        for token in &self.0 {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_told() {
        let cut_off = CutOff::default();
        cut_off.cancel();
        for place in (0..1 << 14).step_by(64) {
            assert!(cut_off.of(place).is_cancelled());
        }
    }
}
