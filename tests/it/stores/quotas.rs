//! Quotas of callers, counted over all replicas.

use std::sync::Arc;
use std::time::Duration;

use drawbridge::call::OwnerKey;
use drawbridge::redis_client::{RedisClient, cmd};
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::store::quotas::{CallerQuota, QuotaShape};
use drawbridge::store::scripts::StoreKeys;

use super::rates::owner;
use super::{ask, keys_with_life, redis};
use crate::harness::eventually;

const MOST: usize = 32;
const SLICE: usize = 2;

/// A replica, and the count of one caller there.
struct Replica {
    quota: Arc<CallerQuota>,
    owner: OwnerKey,
    held: usize,
}

impl Replica {
    fn start(client: &RedisClient, node: u32) -> Self {
        let store = Arc::new(client.clone());
        let shape = QuotaShape {
            kind: "things",
            most: MOST,
        };
        let tasks = TaskSpawner::new();
        Self {
            quota: CallerQuota::start(store, StoreKeys::new("test"), shape, node, &tasks),
            owner: owner("a"),
            held: 0,
        }
    }

    /// Takes `size` where there is room.
    async fn take(&mut self, size: usize) -> bool {
        let held = self.held;
        let _claim = self.quota.claim(self.owner, size, || held).await;
        let has_room = held + size <= self.quota.most(self.owner);
        if has_room {
            self.hold(held + size);
        }
        has_room
    }

    /// Takes one place after another until the quota is full; how many there are.
    async fn fill(&mut self) -> usize {
        while self.take(1).await {}
        self.held
    }

    fn hold(&mut self, count: usize) {
        self.held = count;
        self.quota.changed(self.owner, || count);
    }
}

/// The keys of quotas; `None` while Redis is away.
async fn told(client: &RedisClient) -> Option<Vec<String>> {
    let mut find = cmd("KEYS");
    find.arg("test:quota:*");
    client.command("keys", &find).await.ok()
}

#[tokio::test]
async fn replicas_share_one_quota() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (mut one, mut two) = (Replica::start(&client, 1), Replica::start(&client, 2));
    let (first, second) = tokio::join!(one.fill(), two.fill());
    let sum = first + second;
    assert!(
        (MOST..=MOST + 2 * SLICE).contains(&sum),
        "{first} and {second}"
    );
    let mut other = Replica {
        owner: owner("b"),
        ..Replica::start(&client, 1)
    };
    assert_eq!(other.fill().await, MOST, "another caller");
    assert!(!keys_with_life(&client).await.is_empty());
}

#[tokio::test]
async fn each_replica_has_a_slice_and_more_once_others_give_back() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (mut one, mut two) = (Replica::start(&client, 1), Replica::start(&client, 2));
    assert_eq!(one.fill().await, MOST);
    assert_eq!(two.fill().await, SLICE, "the rest is taken");
    one.hold(0);
    eventually("the other replica has it all", async || {
        (two.fill().await == MOST).then_some(())
    })
    .await;
}

#[tokio::test]
async fn share_of_a_lost_replica_comes_back() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let mut one = Replica::start(&client, 1);
    one.hold(SLICE);
    let key = eventually("the share is told", async || told(&client).await?.pop()).await;
    let (seconds, _): (u64, u64) = ask(&client, &["TIME"]).await;
    let ends = 1000 * (seconds + 3);
    let share = format!("{MOST} {ends}");
    ask::<()>(&client, &["HSET", &key, "lost", &share]).await;
    assert!(
        one.fill().await <= 2 * SLICE,
        "the lost replica's share counts"
    );
    eventually("the share is over", async || {
        (one.fill().await == MOST).then_some(())
    })
    .await;
    let left: Option<String> = ask(&client, &["HGET", &key, "lost"]).await;
    assert_eq!(left, None);
}

#[tokio::test]
async fn share_from_before_the_clock_was_set_back_is_over() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let mut one = Replica::start(&client, 1);
    one.hold(SLICE);
    let key = eventually("the share is told", async || told(&client).await?.pop()).await;
    let (seconds, _): (u64, u64) = ask(&client, &["TIME"]).await;
    let share = format!("{MOST} {}000", seconds + 86_400);
    ask::<()>(&client, &["HSET", &key, "lost", &share]).await;
    assert_eq!(one.fill().await, MOST);
    let left: Option<String> = ask(&client, &["HGET", &key, "lost"]).await;
    assert_eq!(left, None);
}

#[tokio::test]
async fn thing_larger_than_a_slice_waits_for_the_others_share() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let (mut one, mut two) = (Replica::start(&client, 1), Replica::start(&client, 2));
    assert!(one.take(20).await);
    eventually("the share is told", async || told(&client).await?.pop()).await;
    assert!(!two.take(13).await, "12 are left");
    assert!(two.take(12).await);
    assert!(one.fill().await <= 20 + SLICE);
}

#[tokio::test]
async fn less_than_a_slice_is_not_told() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let mut one = Replica::start(&client, 1);
    one.hold(SLICE - 1);
    // Longer than a round of the task.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(told(&client).await, Some(Vec::new()));
    one.hold(SLICE);
    eventually("a slice is told", async || told(&client).await?.pop()).await;
    one.hold(0);
    eventually("it is told that nothing is held", async || {
        (told(&client).await?.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_redis_each_replica_has_the_whole_quota() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let (mut one, mut two) = (Replica::start(&client, 1), Replica::start(&client, 2));
    assert_eq!(one.fill().await, MOST);
    server.kill();
    eventually("Redis is missed", async || {
        (two.fill().await == MOST).then_some(())
    })
    .await;
    server.start().await;
    // An empty Redis is told again what each holds.
    let told = async || {
        let mut values = cmd("HVALS");
        values.arg(told(&client).await?.pop()?);
        let held: Vec<String> = client.command("values", &values).await.ok()?;
        let all = held.iter().all(|one| one.starts_with("32 "));
        (held.len() == 2 && all).then_some(())
    };
    eventually("both say again what they hold", told).await;
}
