//! Calls that wait for their client to come back with answers: who is found by what, and how many
//! there may be. Spec: BRIDGING §3.1; SPEC M-67.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::link::ModernLink;
use super::ticket::KEY_LEN;
use crate::call::OwnerKey;
use crate::clock::SharedClock;
use crate::lifecycle::Tasks;
use crate::lock::lock;
use crate::seal::Sealer;
use crate::tally::Tally;
use crate::telemetry::metrics::{COUNTERS, GAUGES, Open};

type Key = [u8; KEY_LEN];

/// Every parked call of this replica, and what parking needs.
#[derive(Debug)]
pub(in crate::downstream) struct Parking {
    pub(super) sealer: Arc<Sealer>,
    pub(super) clock: SharedClock,
    pub(super) tasks: Tasks,
    per_principal: usize,
    total: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    calls: HashMap<Key, Arc<ModernLink>>,
    owners: Tally<OwnerKey>,
}

/// A call's place, from its first question until it is over; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    parking: Arc<Parking>,
    owner: OwnerKey,
    key: Key,
    _counted: Open,
}

impl Parking {
    /// Nobody is parked; `per_principal` and `total` are `[limits]`.
    pub(in crate::downstream) fn new(
        sealer: Arc<Sealer>,
        clock: SharedClock,
        tasks: Tasks,
        per_principal: usize,
        total: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            sealer,
            clock,
            tasks,
            per_principal,
            total,
            table: Mutex::default(),
        })
    }

    /// Whether another call of this principal could be parked now.
    pub(super) fn has_room(&self, owner: OwnerKey) -> bool {
        self.lock().has_room(owner, self.per_principal, self.total)
    }

    /// A place for a call, unless a cap is reached.
    pub(super) fn enter(self: &Arc<Self>, owner: OwnerKey, link: Arc<ModernLink>) -> Option<Place> {
        let mut table = self.lock();
        if !table.has_room(owner, self.per_principal, self.total) {
            drop(table);
            COUNTERS.calls_park_refused.add(1);
            return None;
        }
        let key: Key = rand::random();
        table.calls.insert(key, link);
        table.owners.add(owner);
        Some(Place {
            parking: Arc::clone(self),
            owner,
            key,
            _counted: GAUGES.calls_parked.enter(),
        })
    }

    /// The call with this key, while it is not over.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<ModernLink>> {
        self.lock().calls.get(key).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    fn has_room(&self, owner: OwnerKey, per_principal: usize, total: usize) -> bool {
        self.owners.of(&owner) < per_principal && self.calls.len() < total
    }
}

impl Place {
    /// What the call is found by.
    pub(super) fn key(&self) -> Key {
        self.key
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.parking.lock();
        let call = table.calls.remove(&self.key);
        table.owners.remove(&self.owner);
        drop(table);
        // Perhaps the last that held the call: not under the lock.
        drop(call);
    }
}
