use std::sync::LazyLock;

use super::*;
use crate::cluster::fixtures::{identity, record};

fn make(record: ReplicaRecord) -> Result<Peer, IdentityError> {
    static IDENTITY: LazyLock<ReplicaIdentity> = LazyLock::new(identity);
    Peer::new(record, &IDENTITY)
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
    let start = Instant::now();
    let successor = |node: u32, at: u32| ReplicaRecord {
        address: record(at).address,
        ..record(node)
    };
    let proved = |node, at| make(successor(node, at)).unwrap();
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
    let start = Instant::now();
    let list = PeerList::default().next(vec![record(1)], at(start, 0, 1), make);
    let moved = ReplicaRecord {
        address: "127.0.0.1:9".to_owned(),
        ..record(1)
    };
    let list = list.next(vec![moved], at(start, 1, 1), make);
    assert_eq!(list.get(1).unwrap().0.record.address, "127.0.0.1:9");
}
