//! Borrowed rates: what principals may do holds in sum over all replicas.

use std::sync::Arc;
use std::time::Duration;

use drawbridge::call::{OwnerKey, Principal};
use drawbridge::redis_client::RedisClient;
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::store::rates::{BorrowedRates, RateShape};
use drawbridge::store::scripts::StoreKeys;

use super::{ask, keys_with_life, redis};
use crate::harness::eventually;

/// The allowance does not grow during a test.
const SLOW: RateShape = RateShape {
    each: Duration::from_hours(1),
    burst: 20,
};
/// A hundred requests are borrowed at once.
pub(super) const FAST: RateShape = RateShape {
    each: Duration::from_millis(1),
    burst: 2_000,
};

pub(super) fn owner(subject: &str) -> OwnerKey {
    Principal::new("issuer", subject, "", Vec::new(), None).owner()
}

pub(super) fn replica(client: &RedisClient, shape: RateShape) -> Arc<BorrowedRates> {
    let store = Arc::new(client.clone());
    BorrowedRates::start(store, StoreKeys::new("test"), shape, &TaskSpawner::new())
}

/// Takes requests until there are none for a minute; how many there were.
async fn spend(rates: &BorrowedRates, owner: OwnerKey) -> u32 {
    let mut taken = 0;
    loop {
        match rates.take(owner, 1).expect("Redis is there") {
            Ok(()) => taken += 1,
            Err(wait) if wait > Duration::from_mins(1) => return taken,
            Err(wait) => tokio::time::sleep(wait).await,
        }
    }
}

#[tokio::test]
async fn replicas_share_one_allowance() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (one, two) = (replica(&client, SLOW), replica(&client, SLOW));
    let (first, second) = tokio::join!(spend(&one, owner("a")), spend(&two, owner("a")));
    let sum = first + second;
    assert!((20..=22).contains(&sum), "{first} and {second}");
    assert!(spend(&one, owner("b")).await >= 20, "another principal");
    keys_with_life(&client).await;
}

#[tokio::test]
async fn unused_requests_are_given_back() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let shape = RateShape {
        each: Duration::from_millis(1),
        burst: 100,
    };
    let (one, two) = (replica(&client, shape), replica(&client, shape));
    assert_eq!(one.take(owner("a"), 1), Some(Ok(())));
    // The slice that the first replica holds is a full allowance.
    eventually("the other replica gets a full allowance", async || {
        (two.take(owner("a"), 90) == Some(Ok(()))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn allowance_that_is_given_back_whole_is_full() {
    const SCRIPT: &str = include_str!("../../../src/store/rates/borrow.lua");
    let Some((_server, client)) = redis().await else {
        return;
    };
    // A request in an hour, 20 of them at once.
    let lent = async |charged: &str, wanted: &str| {
        let hour = "3600000000";
        let words = ["EVAL", SCRIPT, "1", "rate", hour, "20", charged, wanted];
        let (lent, _wait): (u32, u64) = ask(&client, &words).await;
        lent
    };
    assert_eq!(lent("0", "20").await, 20);
    assert_eq!(lent("0", "20").await, 0);
    assert_eq!(lent("-20", "0").await, 0);
    assert_eq!(lent("0", "20").await, 20);
    keys_with_life(&client).await;
}

#[tokio::test]
async fn clock_that_is_set_back_uses_up_no_allowance() {
    const SCRIPT: &str = include_str!("../../../src/store/rates/borrow.lua");
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (seconds, _): (u64, u64) = ask(&client, &["TIME"]).await;
    let tomorrow = format!("{}000000", seconds + 86_400);
    ask::<()>(&client, &["SET", "rate", &tomorrow, "EX", "86400"]).await;
    // A request in a second, 20 of them at once.
    let words = ["EVAL", SCRIPT, "1", "rate", "1000000", "20", "0", "1"];
    let (lent, wait): (u32, u64) = ask(&client, &words).await;
    assert!(lent == 0 && wait <= 21_000_000, "{lent}, {wait}");
}

#[tokio::test]
async fn slice_is_served_without_a_wait_and_a_burst_soon() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, FAST);
    let at_once = (0..1_000)
        .take_while(|_| one.take(owner("a"), 1) == Some(Ok(())))
        .count();
    assert_eq!(at_once, 100, "100 ms of the rate");
    let mut taken = at_once;
    while taken < 1_500 {
        match one.take(owner("a"), 1).expect("Redis is there") {
            Ok(()) => taken += 1,
            Err(wait) => {
                assert!(wait < Duration::from_millis(100), "{wait:?}");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

#[tokio::test]
async fn without_redis_the_own_allowance_of_the_caller_holds() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let one = replica(&client, SLOW);
    assert_eq!(one.take(owner("a"), 1), Some(Ok(())));
    server.kill();
    eventually("Redis is missed", async || {
        one.take(owner("a"), 1).is_none().then_some(())
    })
    .await;
    server.start().await;
    eventually("Redis is asked again", async || {
        one.take(owner("a"), 1).map(drop)
    })
    .await;
}
