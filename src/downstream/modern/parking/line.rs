//! Calls that wait for a place among the parked ones, served in their order of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::call::OwnerKey;
use crate::sync::keyed_counter::KeyedCounter;

/// Whose call is parked, and at which upstream: each has a cap of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) owner: OwnerKey,
    pub(super) upstream: Arc<str>,
}

/// The waiting calls. Those of one [`Spot`] share a lane, since the same caps keep them all waiting: a look for the
/// next call reads the head of each lane only.
#[derive(Debug)]
pub(super) struct Line<W> {
    /// No lane is empty; numbers grow along a lane.
    lanes: HashMap<Spot, VecDeque<(u64, W)>>,
    owners: KeyedCounter<OwnerKey>,
    count: usize,
    next: u64,
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            owners: KeyedCounter::default(),
            count: 0,
            next: 0,
        }
    }
}

impl<W> Line<W> {
    /// Waiting calls.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Waiting calls of one principal.
    pub(super) fn of(&self, owner: OwnerKey) -> usize {
        self.owners.of(&owner)
    }

    /// Adds a call behind all others; returns its number for [`Line::leave`].
    pub(super) fn join(&mut self, spot: Spot, waiter: W) -> u64 {
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.owners.add(spot.owner);
        self.lanes
            .entry(spot)
            .or_default()
            .push_back((number, waiter));
        number
    }

    /// Takes out a call that still waits.
    pub(super) fn leave(&mut self, spot: &Spot, number: u64) -> Option<W> {
        let lane = self.lanes.get(spot)?;
        let at = lane.binary_search_by_key(&number, |(number, _)| *number);
        self.take(spot, at.ok()?)
    }

    /// Takes out the oldest call among those whose spot `is_free`.
    pub(super) fn take_oldest(&mut self, is_free: impl Fn(&Spot) -> bool) -> Option<(Spot, W)> {
        let free = self.lanes.iter().filter(|(spot, _)| is_free(spot));
        let heads = free.filter_map(|(spot, lane)| Some((lane.front()?.0, spot)));
        let (_, spot) = heads.min_by_key(|(number, _)| *number)?;
        let spot = spot.clone();
        let waiter = self.take(&spot, 0)?;
        Some((spot, waiter))
    }

    fn take(&mut self, spot: &Spot, at: usize) -> Option<W> {
        let lane = self.lanes.get_mut(spot)?;
        let (_, waiter) = lane.remove(at)?;
        if lane.is_empty() {
            self.lanes.remove(spot);
        }
        self.owners.remove(&spot.owner);
        self.count -= 1;
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn spot(subject: &str, upstream: &str) -> Spot {
        let principal = Principal::new("https://issuer", subject, "", Vec::new(), None);
        Spot {
            owner: principal.owner(),
            upstream: upstream.into(),
        }
    }

    #[test]
    fn oldest_call_whose_spot_is_free_comes_first() {
        let mut line = Line::default();
        let (one, other) = (spot("ada", "a"), spot("bob", "b"));
        line.join(one.clone(), "first");
        line.join(other.clone(), "second");
        line.join(one.clone(), "third");
        assert_eq!(line.take_oldest(|spot| *spot == other).unwrap().1, "second");
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "first");
        assert_eq!(line.take_oldest(|_| false), None);
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "third");
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn call_that_leaves_holds_up_no_other() {
        let mut line = Line::default();
        let ada = spot("ada", "a");
        let numbers = ["first", "second", "third"].map(|name| line.join(ada.clone(), name));
        assert_eq!(line.leave(&ada, numbers[1]), Some("second"));
        assert_eq!(line.leave(&ada, numbers[1]), None);
        assert_eq!(line.of(ada.owner), 2);
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "first");
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "third");
        assert_eq!((line.of(ada.owner), line.len()), (0, 0));
    }
}
