//! Parked calls, which wait for their client's retry with answers: the lookup by key, the caps on parked calls, and the
//! line of calls that wait for a place.
//! Spec: BRIDGING §3.1; SPEC M-67.

mod line;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

pub(super) use self::line::SharedConnection;
use self::line::{Line, ParkingGroup, WaitingCaps};
use super::request_state::KEY_LEN;
use crate::call::OwnerKey;
use crate::clock::SharedClock;
use crate::config::{HttpServerConfig, LimitsConfig};
use crate::downstream::listener::H2_MAX_STREAMS;
use crate::lock::lock;
use crate::ownership::Ownership;
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::store::quotas::{CallerQuota, QuotaClaim};
use crate::sync::keyed_counter::KeyedCounter;
use crate::telemetry::line_limit::LineLimit;
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeGuard};

type ParkingKey = [u8; KEY_LEN];

/// The parked calls of this replica, with sealer, clock and caps. `C` is a call.
#[derive(Debug)]
pub(in crate::downstream) struct ParkedCalls<C> {
    pub(super) sealer: Arc<Sealer>,
    /// Who keeps the parked calls.
    pub(super) owner: Ownership,
    pub(super) clock: SharedClock,
    pub(super) tasks: TaskSpawner,
    caps: ParkingCaps,
    /// The quota of each principal over all replicas, where there are several.
    in_sum: Option<Arc<CallerQuota>>,
    table: Mutex<ParkingTable<C>>,
    refusals: LineLimit,
}

#[derive(Debug)]
struct ParkingTable<C> {
    calls: HashMap<ParkingKey, Arc<C>>,
    parked: Counts,
    line: Line<Waiter<C>>,
}

impl<C> Default for ParkingTable<C> {
    fn default() -> Self {
        Self {
            calls: HashMap::new(),
            parked: Counts::default(),
            line: Line::default(),
        }
    }
}

/// How many calls are parked.
#[derive(Debug, Default)]
struct Counts {
    owners: KeyedCounter<OwnerKey>,
    upstreams: KeyedCounter<Arc<str>>,
}

/// A call in the line.
#[derive(Debug)]
struct Waiter<C> {
    call: Arc<C>,
    granted: oneshot::Sender<ParkingPermit<C>>,
}

/// How many calls may be parked at once, and how many more may wait for a place.
#[derive(Debug, Clone, Copy)]
pub(in crate::downstream) struct ParkingCaps {
    pub(in crate::downstream) per_principal: usize,
    pub(in crate::downstream) per_upstream: usize,
    pub(in crate::downstream) total: usize,
    pub(in crate::downstream) waiting: WaitingCaps,
}

impl ParkingCaps {
    /// The caps of the configuration. Calls that wait leave half of the exchanges to retries: those of a principal, of an
    /// HTTP/2 connection, and of all connections.
    pub(in crate::downstream) fn new(limits: &LimitsConfig, server: &HttpServerConfig) -> Self {
        let streams = H2_MAX_STREAMS as usize;
        Self {
            per_principal: limits.parked_per_principal,
            per_upstream: limits.parked_per_upstream,
            total: limits.parked_total,
            waiting: WaitingCaps {
                per_principal: server.exchange_share().min(streams) / 2,
                per_connection: streams / 2,
                total: server.max_connections / 2,
            },
        }
    }
}

/// A call's place, from its first question until it is over; free again when dropped.
#[derive(Debug)]
pub(super) struct ParkingPermit<C> {
    parking: Arc<ParkedCalls<C>>,
    group: ParkingGroup,
    key: ParkingKey,
    _counted: GaugeGuard,
}

/// How a call that asks enters.
enum Entry<C> {
    Placed(ParkingPermit<C>),
    /// It waits, since the named cap is reached.
    Waits(WaitingCall<C>, &'static str),
    /// It may not even wait.
    Full(&'static str),
}

/// A call in the line; it leaves the line when dropped, and a place that it was just granted is free again.
#[derive(Debug)]
struct WaitingCall<C> {
    parking: Arc<ParkedCalls<C>>,
    group: ParkingGroup,
    number: u64,
    granted: oneshot::Receiver<ParkingPermit<C>>,
}

impl<C> ParkedCalls<C> {
    /// No call is parked; `owner` will keep those that are.
    pub(in crate::downstream) fn new(
        sealer: Arc<Sealer>,
        owner: Ownership,
        clock: SharedClock,
        tasks: TaskSpawner,
        (caps, in_sum): (ParkingCaps, Option<Arc<CallerQuota>>),
    ) -> Arc<Self> {
        Arc::new(Self {
            sealer,
            owner,
            clock,
            tasks,
            caps,
            in_sum,
            table: Mutex::default(),
            refusals: LineLimit::default(),
        })
    }

    /// Whether another call of this principal could be parked now, or, if its questions `may_wait`, later.
    pub(super) fn has_room(
        &self,
        owner: OwnerKey,
        connection: SharedConnection,
        may_wait: impl FnOnce() -> bool,
    ) -> bool {
        // What the shared store was not told yet is known before there is a question.
        let caps = self.caps_by(|quota| quota.most_known(owner));
        let table = self.lock();
        let is_free = table.parked.full_for(owner, caps).is_none();
        let line_has_room = table.line.has_room(owner, connection, self.caps.waiting);
        drop(table);
        is_free || line_has_room && may_wait()
    }

    /// A place for a call of the principal and connection given, that `upstream` asks in. At a cap the call waits up to `patience` behind those that wait
    /// already. `None`, counted and logged, when no place became free in time or too many wait.
    ///
    /// # Cancel safety
    /// The call leaves the line; a place that was just granted goes to the next call.
    pub(super) async fn place(
        self: &Arc<Self>,
        upstream: Arc<str>,
        (owner, connection): (OwnerKey, SharedConnection),
        call: Arc<C>,
        patience: Duration,
    ) -> Option<ParkingPermit<C>> {
        let group = ParkingGroup { owner, upstream };
        let claim = match &self.in_sum {
            Some(quota) => {
                let parked = || self.lock().parked.owners.of(&owner);
                Some(quota.claim(owner, 1, parked).await)
            }
            None => None,
        };
        let entry = self.enter((group.clone(), claim.as_ref()), connection, call, patience);
        drop(claim);
        let cap = match entry {
            Entry::Placed(place) => return Some(place),
            Entry::Full(cap) => cap,
            Entry::Waits(mut waiting, cap) => {
                COUNTERS.calls_park_waited.add(1);
                let granted = tokio::time::timeout(patience, &mut waiting.granted);
                let granted = tokio::select! {
                    granted = granted => granted,
                    never = self.follow_others(owner) => match never {},
                };
                if let Ok(Ok(place)) = granted {
                    return Some(place);
                }
                cap
            }
        };
        self.refused(&group, cap);
        None
    }

    /// Grants places to waiting calls of a principal whenever other replicas leave some, for ever.
    async fn follow_others(self: &Arc<Self>, owner: OwnerKey) -> Infallible {
        let Some(quota) = &self.in_sum else {
            return std::future::pending().await;
        };
        loop {
            quota.next_answer(owner).await;
            let unclaimed = self.serve(&mut self.lock());
            drop(unclaimed);
        }
    }

    /// The caps, with the principal's as `most` says of the quota over all replicas.
    fn caps_by(&self, most: impl FnOnce(&CallerQuota) -> usize) -> ParkingCaps {
        let own = self.caps.per_principal;
        let in_sum = self.in_sum.as_deref();
        ParkingCaps {
            per_principal: in_sum.map_or(own, |quota| most(quota).min(own)),
            ..self.caps
        }
    }

    /// The caps for a call of `owner`.
    fn caps_of(&self, owner: OwnerKey) -> ParkingCaps {
        self.caps_by(|quota| quota.most(owner))
    }

    /// Tells the other replicas how many calls of a principal are parked here, with the one that was claimed by `claim`.
    fn tell(&self, table: &ParkingTable<C>, owner: OwnerKey, claim: Option<&QuotaClaim>) {
        let parked = || table.parked.owners.of(&owner);
        if let Some(claim) = claim {
            claim.counted(parked);
        } else if let Some(quota) = &self.in_sum {
            quota.changed(owner, parked);
        }
    }

    fn enter(
        self: &Arc<Self>,
        (group, claim): (ParkingGroup, Option<&QuotaClaim>),
        connection: SharedConnection,
        call: Arc<C>,
        patience: Duration,
    ) -> Entry<C> {
        let mut table = self.lock();
        // No call in the line could enter now: it would have, when the last place became free.
        let Some(cap) = table.parked.full(&group, self.caps_of(group.owner)) else {
            return Entry::Placed(self.seat(&mut table, (group, claim), call));
        };
        if patience.is_zero()
            || !table
                .line
                .has_room(group.owner, connection, self.caps.waiting)
        {
            return Entry::Full(cap);
        }
        let (sender, granted) = oneshot::channel();
        let waiter = Waiter {
            call,
            granted: sender,
        };
        let number = table.line.join(group.clone(), connection, waiter);
        drop(table);
        let parking = Arc::clone(self);
        let waiting = WaitingCall {
            parking,
            group,
            number,
            granted,
        };
        Entry::Waits(waiting, cap)
    }

    fn seat(
        self: &Arc<Self>,
        table: &mut ParkingTable<C>,
        (group, claim): (ParkingGroup, Option<&QuotaClaim>),
        call: Arc<C>,
    ) -> ParkingPermit<C> {
        let key: ParkingKey = rand::random();
        table.calls.insert(key, call);
        table.parked.add(&group);
        self.tell(table, group.owner, claim);
        ParkingPermit {
            parking: Arc::clone(self),
            group,
            key,
            _counted: GAUGES.calls_parked.enter(),
        }
    }

    /// Grants free places to waiting calls, the oldest first; returns those that were not taken.
    fn serve(self: &Arc<Self>, table: &mut ParkingTable<C>) -> Vec<ParkingPermit<C>> {
        let mut unclaimed = Vec::new();
        loop {
            let ParkingTable { line, parked, .. } = &mut *table;
            let oldest =
                line.take_oldest(|group| parked.full(group, self.caps_of(group.owner)).is_none());
            let Some((group, waiter)) = oldest else {
                return unclaimed;
            };
            let place = self.seat(table, (group, None), waiter.call);
            unclaimed.extend(waiter.granted.send(place).err());
        }
    }

    fn refused(&self, group: &ParkingGroup, cap: &'static str) {
        COUNTERS.calls_park_refused.add(1);
        if let Some(muted) = self.refusals.admit(cap) {
            tracing::warn!(
                upstream = %group.upstream, principal = %group.owner, cap, muted,
                "a client was not asked: too many calls wait for answers"
            );
        }
    }

    /// The unfinished call with this key.
    pub(super) fn find(&self, key: &ParkingKey) -> Option<Arc<C>> {
        self.lock().calls.get(key).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, ParkingTable<C>> {
        lock(&self.table)
    }
}

impl Counts {
    /// The name of the cap that keeps a call from being parked.
    fn full(&self, group: &ParkingGroup, caps: ParkingCaps) -> Option<&'static str> {
        let is_full = self.upstreams.of(&group.upstream) >= caps.per_upstream;
        let upstream = is_full.then_some("limits.parked_per_upstream");
        upstream.or_else(|| self.full_for(group.owner, caps))
    }

    /// The same, where the upstream is not known yet.
    fn full_for(&self, owner: OwnerKey, caps: ParkingCaps) -> Option<&'static str> {
        if self.owners.of(&owner) >= caps.per_principal {
            return Some("limits.parked_per_principal");
        }
        (self.owners.total() >= caps.total).then_some("limits.parked_total")
    }

    fn add(&mut self, group: &ParkingGroup) {
        self.owners.add(group.owner);
        self.upstreams.add(Arc::clone(&group.upstream));
    }

    fn remove(&mut self, group: &ParkingGroup) {
        self.owners.remove(&group.owner);
        self.upstreams.remove(&group.upstream);
    }
}

impl<C> ParkingPermit<C> {
    /// The key of the parked call.
    pub(super) fn key(&self) -> ParkingKey {
        self.key
    }
}

impl<C> Drop for ParkingPermit<C> {
    fn drop(&mut self) {
        let mut table = self.parking.lock();
        let call = table.calls.remove(&self.key);
        table.parked.remove(&self.group);
        self.parking.tell(&table, self.group.owner, None);
        let unclaimed = self.parking.serve(&mut table);
        drop(table);
        // Perhaps the last that held the call: not under the lock. Nor are places, which take it.
        drop((call, unclaimed));
    }
}

impl<C> Drop for WaitingCall<C> {
    fn drop(&mut self) {
        let left = self.parking.lock().line.leave(&self.group, self.number);
        drop(left);
    }
}
