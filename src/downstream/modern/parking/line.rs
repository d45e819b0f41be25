//! Calls that wait for a place among the parked ones, served in their order of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::call::OwnerKey;
use crate::downstream::connection_id::ConnectionId;
use crate::sync::keyed_counter::KeyedCounter;

/// Whose call is parked, and at which upstream: each has a cap of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ParkingGroup {
    pub(super) owner: OwnerKey,
    pub(super) upstream: Arc<str>,
}

/// The HTTP/2 connection on which a call waits, where its exchange is one of the connection's streams.
pub(crate) type SharedConnection = Option<ConnectionId>;

/// How many calls may wait for a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingCaps {
    /// Of a principal. Each keeps its exchange open, and retries need exchanges too.
    pub(crate) per_principal: usize,
    /// On one HTTP/2 connection, whose principals may be several behind a proxy.
    pub(crate) per_connection: usize,
    pub(crate) total: usize,
}

/// The waiting calls. Those of one [`ParkingGroup`] share a lane, since the same caps keep them all waiting: a look for the
/// next call reads the head of each lane only.
#[derive(Debug)]
pub(super) struct Line<W> {
    /// No lane is empty; numbers grow along a lane.
    lanes: HashMap<ParkingGroup, VecDeque<(u64, SharedConnection, W)>>,
    owners: KeyedCounter<OwnerKey>,
    connections: KeyedCounter<ConnectionId>,
    next: u64,
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            owners: KeyedCounter::default(),
            connections: KeyedCounter::default(),
            next: 0,
        }
    }
}

impl<W> Line<W> {
    /// Whether one more call of a principal may wait, on this connection.
    pub(super) fn has_room(
        &self,
        owner: OwnerKey,
        connection: SharedConnection,
        caps: WaitingCaps,
    ) -> bool {
        let on_connection = connection.map_or(0, |connection| self.connections.of(&connection));
        self.owners.of(&owner) < caps.per_principal
            && on_connection < caps.per_connection
            && self.owners.total() < caps.total
    }

    /// Adds a call behind all others; returns its number for [`Line::leave`].
    pub(super) fn join(
        &mut self,
        group: ParkingGroup,
        connection: SharedConnection,
        waiter: W,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.owners.add(group.owner);
        if let Some(connection) = connection {
            self.connections.add(connection);
        }
        let lane = self.lanes.entry(group).or_default();
        lane.push_back((number, connection, waiter));
        number
    }

    /// Takes out a call that still waits.
    pub(super) fn leave(&mut self, group: &ParkingGroup, number: u64) -> Option<W> {
        let lane = self.lanes.get(group)?;
        let at = lane.binary_search_by_key(&number, |(number, ..)| *number);
        self.take(group, at.ok()?)
    }

    /// Takes out the oldest call among those whose group `is_free`.
    pub(super) fn take_oldest(
        &mut self,
        is_free: impl Fn(&ParkingGroup) -> bool,
    ) -> Option<(ParkingGroup, W)> {
        let free = self.lanes.iter().filter(|(group, _)| is_free(group));
        let heads = free.filter_map(|(group, lane)| Some((lane.front()?.0, group)));
        let (_, group) = heads.min_by_key(|(number, _)| *number)?;
        let group = group.clone();
        let waiter = self.take(&group, 0)?;
        Some((group, waiter))
    }

    fn take(&mut self, group: &ParkingGroup, at: usize) -> Option<W> {
        let lane = self.lanes.get_mut(group)?;
        let (_, connection, waiter) = lane.remove(at)?;
        if lane.is_empty() {
            self.lanes.remove(group);
        }
        self.owners.remove(&group.owner);
        if let Some(connection) = connection {
            self.connections.remove(&connection);
        }
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn group(subject: &str, upstream: &str) -> ParkingGroup {
        let principal = Principal::new("https://issuer", subject, "", Vec::new(), None);
        ParkingGroup {
            owner: principal.owner(),
            upstream: upstream.into(),
        }
    }

    #[test]
    fn oldest_call_whose_spot_is_free_comes_first() {
        let mut line = Line::default();
        let (one, other) = (group("ada", "a"), group("bob", "b"));
        line.join(one.clone(), None, "first");
        line.join(other.clone(), None, "second");
        line.join(one.clone(), None, "third");
        assert_eq!(
            line.take_oldest(|group| *group == other).unwrap().1,
            "second"
        );
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "first");
        assert_eq!(line.take_oldest(|_| false), None);
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "third");
        assert_eq!(line.owners.total(), 0);
    }

    #[test]
    fn call_that_leaves_holds_up_no_other() {
        let mut line = Line::default();
        let ada = group("ada", "a");
        let numbers = ["first", "second", "third"].map(|name| line.join(ada.clone(), None, name));
        assert_eq!(line.leave(&ada, numbers[1]), Some("second"));
        assert_eq!(line.leave(&ada, numbers[1]), None);
        assert_eq!(line.owners.of(&ada.owner), 2);
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "first");
        assert_eq!(line.take_oldest(|_| true).unwrap().1, "third");
        assert_eq!((line.owners.of(&ada.owner), line.owners.total()), (0, 0));
    }

    // Else several principals behind one proxy could fill its connection, and no answer would reach us on it.
    #[test]
    fn waiting_calls_leave_streams_of_their_connection_to_answers() {
        let caps = WaitingCaps {
            per_principal: 2,
            per_connection: 3,
            total: 100,
        };
        let (ada, bob) = (group("ada", "a"), group("bob", "a"));
        let (shared, other) = (Some(ConnectionId::next()), Some(ConnectionId::next()));
        let mut line = Line::default();
        line.join(ada.clone(), shared, ());
        let second = line.join(ada.clone(), shared, ());
        assert!(!line.has_room(ada.owner, shared, caps));
        assert!(line.has_room(bob.owner, shared, caps));
        line.join(bob.clone(), shared, ());
        assert!(!line.has_room(bob.owner, shared, caps));
        for elsewhere in [other, None] {
            assert!(line.has_room(bob.owner, elsewhere, caps), "{elsewhere:?}");
        }
        line.leave(&ada, second);
        assert!(line.has_room(bob.owner, shared, caps));
    }
}
