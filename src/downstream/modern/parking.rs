//! Parked calls, which wait for their client's retry with answers: the lookup by key, and the caps on parked calls.
//! Spec: BRIDGING §3.1; SPEC M-67.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::link::ModernLink;
use super::ticket::KEY_LEN;
use crate::call::OwnerKey;
use crate::clock::SharedClock;
use crate::lifecycle::Tasks;
use crate::lock::lock;
use crate::ownership::Ownership;
use crate::seal::Sealer;
use crate::tally::Tally;
use crate::telemetry::metrics::{COUNTERS, GAUGES, Open};

type Key = [u8; KEY_LEN];

/// The parked calls of this replica, with sealer, clock and caps.
#[derive(Debug)]
pub(in crate::downstream) struct Parking {
    pub(super) sealer: Arc<Sealer>,
    /// Who keeps the parked calls.
    pub(super) owner: Ownership,
    pub(super) clock: SharedClock,
    pub(super) tasks: Tasks,
    caps: ParkingCaps,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    calls: HashMap<Key, Arc<ModernLink>>,
    owners: Tally<OwnerKey>,
    upstreams: Tally<Arc<str>>,
}

/// How many calls may be parked at once.
#[derive(Debug, Clone, Copy)]
pub(in crate::downstream) struct ParkingCaps {
    pub(in crate::downstream) per_principal: usize,
    pub(in crate::downstream) per_upstream: usize,
    pub(in crate::downstream) total: usize,
}

/// A call's place, from its first question until it is over; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    parking: Arc<Parking>,
    owner: OwnerKey,
    upstream: Arc<str>,
    key: Key,
    _counted: Open,
}

impl Parking {
    /// No call is parked; `owner` will keep those that are.
    pub(in crate::downstream) fn new(
        sealer: Arc<Sealer>,
        owner: Ownership,
        clock: SharedClock,
        tasks: Tasks,
        caps: ParkingCaps,
    ) -> Arc<Self> {
        Arc::new(Self {
            sealer,
            owner,
            clock,
            tasks,
            caps,
            table: Mutex::default(),
        })
    }

    /// Whether another call of this principal could be parked now.
    pub(super) fn has_room(&self, owner: OwnerKey) -> bool {
        self.lock().has_room(owner, self.caps)
    }

    /// A place for a call that `upstream` asks in, unless a cap is reached.
    pub(super) fn enter(
        self: &Arc<Self>,
        owner: OwnerKey,
        upstream: &Arc<str>,
        link: Arc<ModernLink>,
    ) -> Option<Place> {
        let mut table = self.lock();
        let is_full = table.upstreams.of(upstream) >= self.caps.per_upstream;
        if is_full || !table.has_room(owner, self.caps) {
            drop(table);
            COUNTERS.calls_park_refused.add(1);
            return None;
        }
        let key: Key = rand::random();
        table.calls.insert(key, link);
        table.owners.add(owner);
        table.upstreams.add(Arc::clone(upstream));
        Some(Place {
            parking: Arc::clone(self),
            owner,
            upstream: Arc::clone(upstream),
            key,
            _counted: GAUGES.calls_parked.enter(),
        })
    }

    /// The unfinished call with this key.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<ModernLink>> {
        self.lock().calls.get(key).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    fn has_room(&self, owner: OwnerKey, caps: ParkingCaps) -> bool {
        self.owners.of(&owner) < caps.per_principal && self.calls.len() < caps.total
    }
}

impl Place {
    /// The key of the parked call.
    pub(super) fn key(&self) -> Key {
        self.key
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.parking.lock();
        let call = table.calls.remove(&self.key);
        table.owners.remove(&self.owner);
        table.upstreams.remove(&self.upstream);
        drop(table);
        // Perhaps the last that held the call: not under the lock.
        drop(call);
    }
}
