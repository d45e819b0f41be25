//! Leases in Redis: this replica renews its own, and hears of the others with each heartbeat.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::beats::BeatCounter;
use super::identity::ReplicaIdentity;
use super::lease::ReplicaLease;
use super::peers::{Peer, PeerClock, PeerList};
use super::proof::{ProvedGreeting, ReplicaProof};
use super::record::{RecordSealer, ReplicaRecord};
use crate::cause::chain;
use crate::clock::boot_time;
use crate::redis_client::{RedisClient, RedisFailure, RedisScript, RedisServer};
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// Heartbeats in one lease.
const BEATS: u32 = 3;
/// The shortest time between two heartbeats, however many callers want to know more.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time between two heartbeats of a replica that drains: replicas that are stopped at the same time soon know
/// that of each other.
const DRAINING_PAUSE: Duration = Duration::from_millis(500);
/// For a heartbeat that a caller waits for.
const REFRESH_WITHIN: Duration = Duration::from_secs(1);

/// Members of the cluster as this replica knows them.
#[derive(Debug)]
pub(super) struct Membership {
    redis: RedisClient,
    identity: Arc<ReplicaIdentity>,
    records: RecordSealer,
    own: ReplicaRecord,
    /// `own` as it stands in Redis.
    sealed: String,
    /// The same while this replica drains.
    sealed_draining: String,
    draining: CancellationToken,
    length: Duration,
    pub(super) lease: ReplicaLease,
    peers: watch::Sender<Arc<PeerList>>,
    beats: BeatCounter,
    /// Woken when a caller wants the list of peers to be up to date.
    wanted: Notify,
    heartbeat: RedisScript,
    leave: RedisScript,
}

/// What Redis says to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Renewed.
    Held,
    /// There was none.
    New,
    /// Another process has this number.
    Taken,
}

impl Membership {
    /// Before the first heartbeat. The record says that this replica drains once `draining` is cancelled.
    ///
    /// # Errors
    /// The record cannot be written as JSON.
    pub(super) fn new(
        redis: RedisClient,
        identity: Arc<ReplicaIdentity>,
        records: RecordSealer,
        own: ReplicaRecord,
        (length, draining): (Duration, CancellationToken),
    ) -> serde_json::Result<Self> {
        Ok(Self {
            sealed: records.seal(&own)?,
            sealed_draining: records.seal(&own.draining())?,
            draining,
            redis,
            identity,
            records,
            own,
            length,
            lease: ReplicaLease::default(),
            peers: watch::Sender::default(),
            beats: BeatCounter::default(),
            wanted: Notify::new(),
            heartbeat: RedisScript::new(include_str!("heartbeat.lua")),
            leave: RedisScript::new(include_str!("leave.lua")),
        })
    }

    /// The record of this replica.
    pub(super) fn own(&self) -> &ReplicaRecord {
        &self.own
    }

    /// The other replicas with a lease, and those whose lease ended less than a lease ago.
    pub(super) fn peers(&self) -> Arc<PeerList> {
        Arc::clone(&self.peers.borrow())
    }

    /// The same from now on.
    pub(super) fn peer_lists(&self) -> watch::Receiver<Arc<PeerList>> {
        self.peers.subscribe()
    }

    /// Proof of this replica for peers that do not reach Redis.
    pub(super) fn proof(&self) -> ReplicaProof<'_> {
        let (own, records) = (&self.own, &self.records);
        ReplicaProof { own, records }
    }

    /// Asks the replica at `address` for its greeting with a proof, and takes it in as a peer. `None` without a valid
    /// proof. Without a bound on the time.
    ///
    /// # Cancel safety
    /// Nothing is changed before the greeting is there.
    pub(super) async fn ask_for_proof(&self, address: &str) -> Option<ProvedGreeting> {
        let proved = self.proof().ask(address, &self.identity).await?;
        self.learn_proved(proved.record.clone());
        Some(proved)
    }

    /// Takes in a replica that has proved itself, so that requests are passed on to it and taken from it while Redis is
    /// away.
    pub(super) fn learn_proved(&self, record: ReplicaRecord) {
        let (node, address) = (record.node, record.address.clone());
        let Ok(peer) = Peer::new(record, &self.identity) else {
            return;
        };
        let changed = self.change_peers(|before| before.with_proved(peer, Instant::now()));
        if changed.is_some() {
            tracing::info!(node, address, "replica found without Redis");
        }
    }

    /// Puts the list that `change` makes of the present one in its place, and returns both, the former first. No other
    /// change comes in between.
    fn change_peers(
        &self,
        change: impl FnOnce(&PeerList) -> Option<PeerList>,
    ) -> Option<(Arc<PeerList>, Arc<PeerList>)> {
        let mut changed = None;
        self.peers.send_if_modified(|peers| {
            let next = change(peers).map(Arc::new);
            changed = next.map(|next| (std::mem::replace(peers, Arc::clone(&next)), next));
            changed.is_some()
        });
        let (before, next) = changed?;
        next.give_up_others(&before);
        Some((before, next))
    }

    /// Waits until the lease of the replica `node` is over, or the replica is not known any more. Heartbeats come every
    /// 100 ms meanwhile.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn lapsed(&self, node: u32) {
        while self
            .peers()
            .get(node)
            .is_some_and(|(_, is_lapsed)| !is_lapsed)
        {
            self.refresh().await;
        }
    }

    /// Whether Redis has had what it has for two leases: in the first one each replica sees that Redis has lost data, and
    /// in the second it has written its own again.
    pub(super) fn has_settled(&self) -> bool {
        let server = self.redis.server();
        let server = server.borrow();
        let is_recent = |began: Instant| began.elapsed() < 2 * self.length;
        server.is_connected && !server.began.is_some_and(is_recent)
    }

    /// How long a lease is.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// Sends heartbeats for as long as it is polled: three in a lease, at once after a new connection to Redis, and when
    /// a caller waits for one. Begins the drain of this process where another one has its number.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut server = self.redis.server();
        let mut outage = LeaseOutage::default();
        loop {
            let started = Instant::now();
            server.mark_unchanged();
            match self.beat().await {
                Ok(state) => {
                    outage.answered(state, &self.own);
                    if state == LeaseState::Taken {
                        // Handles have named this number by now: only another process can draw another one.
                        self.draining.cancel();
                    }
                }
                Err(failure) => outage.failed(&failure, &self.lease),
            }
            GAUGES
                .cluster_lease_held
                .set(i64::from(self.lease.is_held()));
            // Replicas that started together do not stay in step.
            let is_draining = self.draining.is_cancelled();
            let longest = if is_draining {
                DRAINING_PAUSE
            } else {
                Duration::MAX
            };
            let pause = (self.length / BEATS).min(longest);
            let called = async {
                tokio::select! {
                    () = self.wanted.notified() => {}
                    Ok(()) = server.changed() => {}
                    () = self.draining.cancelled(), if !is_draining => {}
                }
                sleep_until(started + SHORTEST_PAUSE).await;
            };
            drop(timeout(pause.mul_f64(rand::random_range(0.9..1.0)), called).await);
        }
    }

    /// One heartbeat.
    ///
    /// # Errors
    /// Redis did not answer.
    pub(super) async fn beat(&self) -> Result<LeaseState, RedisFailure> {
        let sent = boot_time();
        let number = self.beats.begin();
        let server = self.redis.server().borrow().clone();
        let node = self.own.node.to_string();
        let length = self.length.as_millis().to_string();
        let begin = self.redis.key("{replicas}:lease:");
        let keys = self.keys();
        let (record, former) = self.records_in_redis();
        let arguments = [
            record.as_bytes(),
            length.as_bytes(),
            node.as_bytes(),
            begin.as_bytes(),
            former.as_bytes(),
        ];
        let said: Vec<String> = self
            .redis
            .script("heartbeat", &self.heartbeat, &keys, &arguments)
            .await?;
        let mut said = said.into_iter();
        let state = match said.next().as_deref() {
            Some("held") => LeaseState::Held,
            Some("new") => LeaseState::New,
            _ => LeaseState::Taken,
        };
        if state == LeaseState::Taken {
            self.lease.ended();
            return Ok(state);
        }
        self.lease.renewed(sent, boot_time(), self.length);
        self.learn(said, &server);
        self.beats.answered(number);
        Ok(state)
    }

    /// Waits for a heartbeat that begins from now on, a second at most.
    ///
    /// # Cancel safety
    /// The heartbeat is sent nevertheless.
    pub(super) async fn refresh(&self) {
        let next = self.beats.next();
        self.wanted.notify_one();
        drop(timeout(REFRESH_WITHIN, next).await);
    }

    /// Gives the lease up, so that the others need not wait for its end.
    pub(super) async fn leave(&self) {
        self.lease.ended();
        let node = self.own.node.to_string();
        let (record, former) = self.records_in_redis();
        let arguments = [record.as_bytes(), node.as_bytes(), former.as_bytes()];
        let keys = self.keys();
        let left = self
            .redis
            .script::<()>("leave", &self.leave, &keys, &arguments);
        if let Err(failure) = left.await {
            tracing::debug!(error = chain(&failure), "lease not given up, it runs out");
        }
    }

    /// The record to write to Redis, and the record of this process that it may replace there; empty without one.
    fn records_in_redis(&self) -> (&str, &str) {
        if self.draining.is_cancelled() {
            (&self.sealed_draining, &self.sealed)
        } else {
            (&self.sealed, "")
        }
    }

    fn keys(&self) -> [String; 2] {
        let node = self.own.node;
        [
            self.redis.key(&format!("{{replicas}}:lease:{node}")),
            self.redis.key("{replicas}:index"),
        ]
    }

    /// Takes over the records that `server` has. Records that do not open may be forged, and are ignored.
    fn learn(&self, sealed: impl Iterator<Item = String>, server: &RedisServer) {
        let mut records = Vec::new();
        for text in sealed {
            match self.records.open(&text) {
                Some(record) if record.node != self.own.node => records.push(record),
                Some(_) => {}
                None => COUNTERS.cluster_records_refused.add(1),
            }
        }
        let make = |record| Peer::new(record, &self.identity);
        let at = PeerClock {
            now: Instant::now(),
            lease: self.length,
            connects: server.connects,
            run_id: Arc::clone(&server.run_id),
        };
        let changed = self.change_peers(|before| Some(before.next(records, at, make)));
        let Some((before, next)) = changed else {
            return;
        };
        next.report_changes(&before, &self.own);
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let unlike = next.other_configurations(&self.own);
        GAUGES
            .cluster_replicas
            .set(gauge(next.living().count() + 1));
        GAUGES.cluster_other_configurations.set(gauge(unlike));
    }
}

/// Log lines of a lease that is lost and of its return: one of each.
#[derive(Debug, Default)]
struct LeaseOutage {
    had: bool,
    said: bool,
}

impl LeaseOutage {
    fn answered(&mut self, state: LeaseState, own: &ReplicaRecord) {
        match state {
            LeaseState::Held => {}
            LeaseState::New if self.had => {
                COUNTERS.cluster_leases_lost.add(1);
                tracing::warn!(
                    node = own.node,
                    "replica had lost its lease and has it again"
                );
            }
            LeaseState::New => tracing::info!(
                node = own.node,
                address = own.address,
                "replica joined the cluster"
            ),
            LeaseState::Taken => {
                if !std::mem::replace(&mut self.said, true) {
                    tracing::error!(
                        node = own.node,
                        "this process ends: another replica has its number"
                    );
                }
                return;
            }
        }
        (self.had, self.said) = (true, false);
    }

    fn failed(&mut self, failure: &RedisFailure, lease: &ReplicaLease) {
        if self.had && !lease.is_held() && !std::mem::replace(&mut self.said, true) {
            tracing::warn!(error = chain(failure), "lease of this replica is over");
        }
    }
}

#[cfg(test)]
mod tests;
