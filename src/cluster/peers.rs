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
mod tests;
