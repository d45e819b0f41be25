use std::time::Duration;

use super::*;
use crate::call::Principal;
use crate::downstream::listener::activity::ConnectionActivity;
use crate::downstream::listener::head_clock::HeadClock;

fn owner(name: &str) -> OwnerKey {
    Principal::new("i", name, "", Vec::new(), None).owner()
}

/// `PermitPool` with a quarter of `total` as the share of one address, and of one principal.
fn pool(total: usize) -> Arc<PermitPool> {
    let shares = ConnectionShares {
        total,
        address: total / 4,
        principal: total / 4,
    };
    Arc::new(PermitPool::new(shares, true))
}

fn take(pool: &Arc<PermitPool>, peer: &str) -> Option<ConnectionPermit> {
    pool.take(peer.parse().unwrap(), false, CancellationToken::new())
}

/// A connection that has brought a good token and waits for its next request.
fn idle(pool: &Arc<PermitPool>, peer: &str, name: &str) -> ConnectionPermit {
    let place = take(pool, peer).unwrap();
    let long = Duration::from_secs(75);
    place.shows(ConnectionActivity::Http1(HeadClock::new(long, long, long)));
    drop(place.begin(owner(name), true).unwrap());
    place
}

fn have_left(all: &[ConnectionPermit]) -> Vec<bool> {
    all.iter().map(ConnectionPermit::has_left).collect()
}

#[tokio::test]
async fn oldest_connection_without_a_token_makes_room() {
    let pool = pool(4);
    let _known = idle(&pool, "192.0.2.1", "alice");
    let open: Vec<ConnectionPermit> = (2..5)
        .filter_map(|n| take(&pool, &format!("192.0.2.{n}")))
        .collect();
    assert_eq!(have_left(&open), [false, false, false]);
    let next = take(&pool, "192.0.2.9");
    assert!(next.is_some());
    assert_eq!(have_left(&open), [true, false, false]);
    assert!(open[0].end().is_cancelled() && !open[1].end().is_cancelled());
}

// The replica that serves the requests counts their exchanges; the token is known here all the same.
#[tokio::test]
async fn caller_whose_requests_are_passed_on_is_no_stranger() {
    let pool = pool(4);
    let passed = take(&pool, "192.0.2.1").unwrap();
    assert!(passed.is_of_stranger());
    passed.passed_on(owner("alice"), true);
    assert!(!passed.is_of_stranger());
    let open: Vec<ConnectionPermit> = (2..5)
        .filter_map(|n| take(&pool, &format!("192.0.2.{n}")))
        .collect();
    assert!(take(&pool, "192.0.2.9").is_some());
    assert_eq!(have_left(&open), [true, false, false]);
    assert!(!passed.has_left());
}

#[tokio::test]
async fn address_has_its_share_only_while_places_are_short() {
    let pool = pool(16);
    let mut open: Vec<ConnectionPermit> =
        (0..12).filter_map(|_| take(&pool, "192.0.2.1")).collect();
    assert_eq!(open.len(), 12, "enough are free");
    assert!(open.iter().all(|place| !place.has_left()));
    // Fewer than four are free after the next: only its own leave.
    let other = take(&pool, "192.0.2.2").unwrap();
    open.extend(take(&pool, "192.0.2.1"));
    assert!(open[0].has_left() && !open[1].has_left() && !other.has_left());
    let others: Vec<ConnectionPermit> = (0..3).filter_map(|_| take(&pool, "192.0.2.3")).collect();
    assert_eq!(have_left(&others), [false, false, false]);
    assert!(!open[1].has_left(), "places were free");
}

#[tokio::test]
async fn networks_of_ipv6_have_one_share() {
    let pool = pool(8);
    let open: Vec<ConnectionPermit> = (1..9)
        .filter_map(|n| take(&pool, &format!("2001:db8::{n}")))
        .collect();
    assert_eq!(open.len(), 8);
    assert!(open[0].has_left());
}

#[tokio::test]
async fn address_with_tokens_of_three_callers_has_no_share() {
    let pool = pool(16);
    let _known = ["alice", "bob", "carol"].map(|name| idle(&pool, "192.0.2.1", name));
    let open: Vec<ConnectionPermit> = (0..13).filter_map(|_| take(&pool, "192.0.2.1")).collect();
    assert_eq!(open.len(), 13);
    assert!(open.iter().all(|place| !place.has_left()));
}

#[tokio::test]
async fn connections_of_a_trusted_proxy_count_for_the_address_behind_it() {
    let pool = pool(8);
    let proxied = |client: &str| {
        let peer = "10.0.0.1".parse().unwrap();
        let place = pool.take(peer, true, CancellationToken::new()).unwrap();
        drop(place.of_request(client.parse().unwrap()));
        place
    };
    let open = ["192.0.2.1"; 7].map(proxied);
    assert!(open[0].has_left(), "two are its share");
    assert!(!open[6].has_left());
    let other = proxied("192.0.2.2");
    assert!(!other.has_left());
}

#[tokio::test]
async fn idle_connections_of_the_caller_with_most_make_room() {
    let pool = pool(8);
    let alice = idle(&pool, "192.0.2.1", "alice");
    let mallory = [(); 7].map(|()| idle(&pool, "192.0.2.2", "mallory"));
    assert!(take(&pool, "192.0.2.3").is_some());
    assert!(!alice.has_left());
    let left = have_left(&mallory).into_iter().filter(|left| *left);
    assert_eq!(left.count(), 1);
}

#[tokio::test]
async fn connections_that_are_in_use_stay() {
    let pool = pool(4);
    let open: Vec<ConnectionPermit> = ["alice", "bob", "carol", "dave"]
        .iter()
        .map(|name| {
            let place = take(&pool, "192.0.2.1").unwrap();
            drop(place.begin(owner(name), true).unwrap());
            place
        })
        .collect();
    assert!(take(&pool, "192.0.2.2").is_none());
    assert_eq!(have_left(&open), [false; 4]);
    drop(open);
    assert!(take(&pool, "192.0.2.2").is_some());
}

#[tokio::test]
async fn principal_without_a_limit_has_no_share() {
    let pool = pool(4);
    let place = take(&pool, "127.0.0.1").unwrap();
    let open: Vec<_> = (0..50)
        .map(|_| place.begin(owner("anonymous"), false))
        .collect();
    assert!(open.iter().all(Result::is_ok));
}

#[tokio::test]
async fn nothing_is_kept_of_connections_that_are_closed() {
    let pool = pool(4);
    for n in 0..100 {
        drop(take(&pool, &format!("192.0.2.{n}")));
        drop(idle(&pool, &format!("198.51.100.{n}"), "alice"));
    }
    assert!(pool.lock().is_empty());
}
