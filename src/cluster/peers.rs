//! The other replicas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::connections::PeerConnections;
use super::identity::{IdentityError, ReplicaIdentity};
use super::record::ReplicaRecord;
use crate::cause::chain;

/// Leases for which a replica is known that lives and does not reach Redis.
const CUT_OFF_LEASES: u32 = 20;

/// Another replica, and the connections to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) record: ReplicaRecord,
    pub(super) connections: Arc<PeerConnections>,
    /// Whether it has answered, without a lease, that it does not reach Redis.
    pub(super) is_cut_off: AtomicBool,
}

/// A peer as of the last heartbeat.
#[derive(Debug, Clone)]
struct KnownPeer {
    peer: Arc<Peer>,
    /// Since when its lease has been over. After an outage of Redis that is so until the peer's next heartbeat, which
    /// waits for its own connection: it is forgotten a lease later.
    lapsed: Option<Instant>,
    /// Whether it drains, by its last heartbeat.
    is_draining: bool,
}

/// When the list of peers is brought up to date, and by which connection to Redis.
#[derive(Debug, Clone)]
pub(super) struct PeerClock {
    pub(super) now: Instant,
    /// How long a lease is.
    pub(super) lease: Duration,
    /// Connections to Redis so far.
    pub(super) connects: u64,
    pub(super) run_id: Arc<str>,
}

/// All other replicas, by node.
#[derive(Debug, Default)]
pub(super) struct PeerList {
    peers: BTreeMap<u32, KnownPeer>,
    /// Connections to Redis, and the run id of its server, as of the last heartbeat.
    connection: (u64, Arc<str>),
}

impl Peer {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// Its address names no host.
    pub(super) fn new(
        record: ReplicaRecord,
        identity: &ReplicaIdentity,
    ) -> Result<Self, IdentityError> {
        let client = identity.client(&record.address, record.fingerprint.as_deref())?;
        Ok(Self {
            connections: Arc::new(PeerConnections::new(record.address.clone(), client)),
            record,
            is_cut_off: AtomicBool::new(false),
        })
    }

    /// How long it is known after its lease was missed first. One that only does not reach Redis may reach it when this
    /// replica does not, and has to be asked then.
    fn known_for(&self, lease: Duration) -> Duration {
        if self.is_cut_off.load(Ordering::Relaxed) {
            CUT_OFF_LEASES * lease
        } else {
            lease
        }
    }
}

impl PeerList {
    /// The peer, and whether its lease is over.
    pub(super) fn get(&self, node: u32) -> Option<(&Arc<Peer>, bool)> {
        let known = self.peers.get(&node)?;
        Some((&known.peer, known.lapsed.is_some()))
    }

    /// Numbers of those whose lease is over.
    pub(super) fn lapsed(&self) -> impl Iterator<Item = u32> {
        let lapsed = self
            .peers
            .iter()
            .filter(|(_, known)| known.lapsed.is_some());
        lapsed.map(|(node, _)| *node)
    }

    /// Records of all replicas that are known, also of those without a lease.
    pub(super) fn known(&self) -> impl Iterator<Item = &ReplicaRecord> {
        self.peers.values().map(|known| &known.peer.record)
    }

    /// Those with a lease.
    pub(super) fn living(&self) -> impl Iterator<Item = &ReplicaRecord> {
        let living = self.peers.values().filter(|known| known.lapsed.is_none());
        living.map(|known| &known.peer.record)
    }

    /// Numbers of those with a lease that do not drain: each may take over sessions of others.
    pub(super) fn successors(&self) -> impl Iterator<Item = u32> {
        let successors =
            { self.peers.iter() }.filter(|(_, known)| known.lapsed.is_none() && !known.is_draining);
        successors.map(|(node, _)| *node)
    }

    /// Whether the replica `node` drains.
    pub(super) fn is_draining(&self, node: u32) -> bool {
        self.peers.get(&node).is_some_and(|known| known.is_draining)
    }

    /// Whether a record names the certificate with this fingerprint.
    pub(super) fn has_certificate(&self, fingerprint: &str) -> bool {
        let mut records = self.peers.values().map(|known| &known.peer.record);
        records.any(|record| record.fingerprint.as_deref() == Some(fingerprint))
    }

    /// The list after a heartbeat that was answered with `records`. A peer is forgotten a lease after its lease was
    /// missed first, or later if it is cut off; after a new connection to Redis that time begins again.
    pub(super) fn next(
        &self,
        records: Vec<ReplicaRecord>,
        at: PeerClock,
        make: impl Fn(ReplicaRecord) -> Result<Peer, IdentityError>,
    ) -> Self {
        let connection = (at.connects, at.run_id);
        let is_same = connection == self.connection;
        let lapsed = self.peers.iter().filter_map(|(node, known)| {
            let since = known.lapsed.filter(|_| is_same).unwrap_or(at.now);
            let peer = Arc::clone(&known.peer);
            let is_known = at.now.duration_since(since) < peer.known_for(at.lease);
            let lapsed = KnownPeer {
                peer,
                lapsed: Some(since),
                is_draining: known.is_draining,
            };
            is_known.then_some((*node, lapsed))
        });
        let mut next: BTreeMap<u32, KnownPeer> = lapsed.collect();
        for record in records {
            let known = self.peers.get(&record.node).map(|known| &known.peer);
            let is_same = |peer: &&Arc<Peer>| {
                peer.record.is_same_process(&record) && !peer.connections.is_given_up()
            };
            let known = known.filter(is_same).map(Arc::clone);
            let (node, is_draining) = (record.node, record.is_draining);
            let connect = || make(record).map(Arc::new);
            let peer = match known.map_or_else(connect, Ok) {
                Ok(peer) => peer,
                Err(error) => {
                    tracing::warn!(node, error = chain(&error), "replica cannot be reached");
                    continue;
                }
            };
            let known = KnownPeer {
                peer,
                lapsed: None,
                is_draining,
            };
            next.insert(node, known);
        }
        let peers = next;
        Self { peers, connection }
    }

    /// The list with a replica that has proved itself while Redis does not tell of it; `None` where it is in the list.
    /// Replicas without a lease at its address are gone: it has taken their place. It is forgotten as one whose lease
    /// is over since `now`.
    pub(super) fn with_proved(&self, proved: Peer, now: Instant) -> Option<Self> {
        let (node, address) = (proved.record.node, proved.record.address.clone());
        if self.peers.contains_key(&node) {
            return None;
        }
        let mut peers = self.peers.clone();
        peers.retain(|_, known| known.lapsed.is_none() || known.peer.record.address != address);
        let proved = KnownPeer {
            is_draining: proved.record.is_draining,
            peer: Arc::new(proved),
            lapsed: Some(now),
        };
        peers.insert(node, proved);
        let connection = self.connection.clone();
        Some(Self { peers, connection })
    }

    /// Ends what is under way at those that are no longer in the list.
    pub(super) fn give_up_others(&self, before: &Self) {
        for (node, known) in &before.peers {
            let now = self.peers.get(node);
            if !now.is_some_and(|now| Arc::ptr_eq(&now.peer, &known.peer)) {
                known.peer.connections.give_up();
            }
        }
    }

    /// How many replicas with a lease have the release of `own` and another configuration.
    pub(super) fn other_configurations(&self, own: &ReplicaRecord) -> usize {
        let living = self.living();
        living.filter(|one| one.is_configured_unlike(own)).count()
    }

    /// Logs who came and who went.
    pub(super) fn report_changes(&self, before: &Self, own: &ReplicaRecord) {
        let is_known = |list: &Self, node: u32| list.living().any(|one| one.node == node);
        for record in self.living().filter(|one| !is_known(before, one.node)) {
            let (node, address, version) = (record.node, &*record.address, &*record.version);
            tracing::info!(node, address, version, "replica found");
            if record.is_configured_unlike(own) {
                let remedy = "give all replicas the same configuration";
                tracing::warn!(node, address, remedy, "replica has another configuration");
            }
        }
        let drains = |record: &&ReplicaRecord| {
            self.is_draining(record.node) && !before.is_draining(record.node)
        };
        for record in self.living().filter(drains) {
            let (node, address) = (record.node, &*record.address);
            tracing::info!(node, address, "replica drains");
        }
        for record in before.living().filter(|one| !is_known(self, one.node)) {
            let (node, address) = (record.node, &*record.address);
            tracing::warn!(node, address, "lease of a replica is over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReplicaTrust;
    use crate::secret::Secret;

    fn record(node: u32) -> ReplicaRecord {
        ReplicaRecord {
            node,
            address: format!("127.0.0.1:{node}"),
            version: "1".to_owned(),
            config: "c".to_owned(),
            fingerprint: Some(format!("f{node}")),
            started: 0,
            is_draining: false,
        }
    }

    fn nodes(list: &PeerList) -> Vec<u32> {
        list.living().map(|record| record.node).collect()
    }

    const LEASE: Duration = Duration::from_secs(5);

    /// Seconds after `start`, over the connection `connects` to Redis.
    fn at(start: Instant, seconds: u64, connects: u64) -> PeerClock {
        PeerClock {
            now: start + Duration::from_secs(seconds),
            lease: LEASE,
            connects,
            run_id: "r".into(),
        }
    }

    #[test]
    fn peers_lapse_before_they_are_forgotten() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let list = PeerList::default().next(vec![record(1), record(2)], at(start, 0, 1), make);
        assert_eq!(nodes(&list), [1, 2]);
        let kept = Arc::clone(list.get(1).unwrap().0);
        let list = list.next(vec![record(1)], at(start, 2, 1), make);
        assert_eq!(nodes(&list), [1]);
        assert!(
            Arc::ptr_eq(list.get(1).unwrap().0, &kept),
            "keeps its connections"
        );
        let list = list.next(vec![record(1)], at(start, 6, 1), make);
        assert!(list.get(2).unwrap().1, "lapsed");
        assert!(list.has_certificate("f2"));
        let list = list.next(vec![record(1)], at(start, 7, 1), make);
        assert!(list.get(2).is_none());
        assert!(!list.has_certificate("f2"));
    }

    #[test]
    fn peer_that_drains_takes_nothing_over_and_keeps_its_connections() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let successors = |list: &PeerList| list.successors().collect::<Vec<_>>();
        let list = PeerList::default().next(vec![record(1), record(2)], at(start, 0, 1), make);
        assert_eq!(successors(&list), [1, 2]);
        let kept = Arc::clone(list.get(1).unwrap().0);
        let list = list.next(vec![record(1).draining(), record(2)], at(start, 1, 1), make);
        assert_eq!(successors(&list), [2]);
        assert_eq!(nodes(&list), [1, 2], "it lives");
        assert!(Arc::ptr_eq(list.get(1).unwrap().0, &kept));
        let list = list.next(vec![record(1).draining()], at(start, 2, 1), make);
        assert_eq!(successors(&list), [] as [u32; 0], "the other has lapsed");
    }

    #[test]
    fn peer_that_is_cut_off_from_redis_is_known_longer() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let list = PeerList::default().next(vec![record(1)], at(start, 0, 1), make);
        let list = list.next(Vec::new(), at(start, 2, 1), make);
        let (peer, _) = list.get(1).unwrap();
        peer.is_cut_off.store(true, Ordering::Relaxed);
        let list = list.next(Vec::new(), at(start, 60, 1), make);
        assert!(list.get(1).unwrap().1, "lapsed, and not forgotten");
        let list = list.next(Vec::new(), at(start, 110, 1), make);
        assert!(list.get(1).is_none());
    }

    #[test]
    fn peers_have_a_lease_to_come_back_after_an_outage() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let list = PeerList::default().next(vec![record(1)], at(start, 0, 1), make);
        let list = list.next(Vec::new(), at(start, 2, 1), make);
        // The first replica that is back finds no lease but its own.
        let list = list.next(Vec::new(), at(start, 60, 2), make);
        let list = list.next(Vec::new(), at(start, 64, 2), make);
        assert!(list.get(1).unwrap().1, "lapsed, and not forgotten");
        let other = PeerClock {
            run_id: "other".into(),
            ..at(start, 66, 2)
        };
        let list = list.next(Vec::new(), other, make);
        assert!(list.get(1).is_some(), "another server");
    }

    #[test]
    fn peer_that_was_given_up_is_another_one_with_its_next_lease() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let list = PeerList::default().next(vec![record(1)], at(start, 0, 1), make);
        let list = list.next(Vec::new(), at(start, 2, 1), make);
        assert_eq!(list.lapsed().collect::<Vec<_>>(), [1]);
        list.get(1).unwrap().0.connections.give_up();
        let list = list.next(vec![record(1)], at(start, 3, 1), make);
        assert!(!list.get(1).unwrap().0.connections.is_given_up());
    }

    #[test]
    fn proved_replica_takes_the_place_of_one_without_a_lease() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let successor = |node: u32, at: u32| ReplicaRecord {
            address: record(at).address,
            ..record(node)
        };
        let proved = |node, at| Peer::new(successor(node, at), &identity).unwrap();
        let list = PeerList::default().next(vec![record(1), record(2)], at(start, 0, 1), make);
        let list = list.next(vec![record(1)], at(start, 2, 1), make);
        let next = list.with_proved(proved(3, 2), start).unwrap();
        assert!(next.get(2).is_none());
        assert!(next.get(3).unwrap().1, "without a lease");
        assert!(next.has_certificate("f3"));
        // Redis knows better what is at the address of a replica with a lease.
        let beside = list.with_proved(proved(4, 1), start).unwrap();
        assert!(!beside.get(1).unwrap().1);
        assert!(list.with_proved(proved(1, 9), start).is_none());
    }

    #[test]
    fn only_living_replicas_of_the_same_release_count_as_differing() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let other = |node, version: &str| ReplicaRecord {
            version: version.to_owned(),
            config: "d".to_owned(),
            ..record(node)
        };
        let start = Instant::now();
        let all = vec![record(1), other(2, "1"), other(3, "2")];
        let list = PeerList::default().next(all, at(start, 0, 1), make);
        assert_eq!(list.other_configurations(&record(9)), 1);
        let list = list.next(vec![record(1), other(3, "2")], at(start, 1, 1), make);
        assert_eq!(list.other_configurations(&record(9)), 0, "lapsed");
    }

    #[test]
    fn changed_record_makes_another_peer() {
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap();
        let make = |record| Peer::new(record, &identity);
        let start = Instant::now();
        let list = PeerList::default().next(vec![record(1)], at(start, 0, 1), make);
        let moved = ReplicaRecord {
            address: "127.0.0.1:9".to_owned(),
            ..record(1)
        };
        let list = list.next(vec![moved], at(start, 1, 1), make);
        assert_eq!(list.get(1).unwrap().0.record.address, "127.0.0.1:9");
    }
}
