use std::sync::Mutex;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::{sleep, timeout};

use super::*;
use crate::call::Principal;
use crate::lock::lock;
use crate::redis_client::{RedisFailure, Value};

const MOST: usize = 160;
const SLICE: usize = 10;
const ROUND_TRIP: Duration = Duration::from_millis(15);

/// A store with a count of the other replicas, or without an answer.
#[derive(Debug)]
struct Others(Mutex<Option<i64>>);

impl ScriptRunner for Others {
    fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
        Box::pin(async move {
            sleep(ROUND_TRIP).await;
            let held = *lock(&self.0);
            let reply = |_| held.map(Value::Int).ok_or(RedisFailure::Silent);
            calls.into_iter().map(reply).collect()
        })
    }
}

/// A store that never answers.
#[derive(Debug)]
struct Silent;

impl ScriptRunner for Silent {
    fn run(&self, _calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
        Box::pin(std::future::pending())
    }
}

fn quota(others: Option<i64>) -> Arc<CallerQuota> {
    quota_in(Arc::new(Others(Mutex::new(others))))
}

fn quota_in(store: Arc<dyn ScriptRunner>) -> Arc<CallerQuota> {
    let keys = StoreKeys::new("test");
    let shape = QuotaShape {
        kind: "things",
        most: MOST,
    };
    CallerQuota::start(store, keys, shape, 1, &TaskSpawner::new())
}

impl QuotaClaim {
    fn claimed(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn owner() -> OwnerKey {
    Principal::new("i", "a", "", Vec::new(), None).owner()
}

#[tokio::test(start_paused = true)]
async fn slice_needs_no_answer_and_what_comes_after_it_waits_for_one() {
    let quota = quota(Some(0));
    let started = Instant::now();
    let first = quota.claim(owner(), SLICE, || 0).await;
    quota.changed(owner(), || SLICE);
    drop(first);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(quota.most(owner()), SLICE);
    let next = quota.claim(owner(), 1, || SLICE).await;
    assert_eq!(next.claimed(), 1);
    assert_eq!(started.elapsed(), ROUND_TRIP);
    drop(next);
    assert_eq!(quota.most(owner()), 2 * SLICE);
}

#[tokio::test(start_paused = true)]
async fn claims_at_once_go_one_slice_beyond_what_is_told() {
    let quota = quota(Some(0));
    let (held, ahead) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = async || {
        let claim = quota
            .claim(owner(), 1, || held.load(Ordering::Relaxed))
            .await;
        assert_eq!(claim.claimed(), 1);
        let count = 1 + held.fetch_add(1, Ordering::Relaxed);
        quota.changed(owner(), || count);
        let told = quota.held.get(&owner()).map_or(0, |held| held.told);
        ahead.fetch_max(count - told, Ordering::Relaxed);
    };
    join_all((0..MOST).map(|_| one())).await;
    assert_eq!(held.into_inner(), MOST);
    assert!(ahead.into_inner() <= SLICE);
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_counts_once_when_it_is_counted() {
    let quota = quota(Some(100));
    quota.changed(owner(), || 58);
    let first = quota.claim(owner(), 1, || 58).await;
    first.counted(|| 59);
    assert_eq!(first.claimed(), 0);
    // The first claim is still there.
    let last = quota.claim(owner(), 1, || 59).await;
    assert_eq!(last.claimed(), 1, "the last of the sixty that others leave");
    drop(first);
    let none = quota.claim(owner(), 1, || 59).await;
    assert_eq!(none.claimed(), 0);
    last.release();
    assert_eq!(quota.claim(owner(), 1, || 59).await.claimed(), 1);
}

#[tokio::test(start_paused = true)]
async fn share_of_others_is_asked_for_before_a_refusal() {
    let quota = quota(Some(100));
    quota.changed(owner(), || 60);
    let refused = quota.claim(owner(), 1, || 60).await;
    assert_eq!(refused.claimed(), 0);
    assert_eq!(quota.most(owner()), 60);
    assert_eq!(quota.most_known(owner()), 60);
    let large = quota.claim(owner(), 61, || 60).await;
    assert_eq!(large.claimed(), 0);
}

#[tokio::test(start_paused = true)]
async fn claim_goes_by_the_last_answer_where_there_is_none_for_a_second() {
    let quota = quota_in(Arc::new(Silent));
    quota.changed(owner(), || SLICE);
    let started = Instant::now();
    let claim = quota.claim(owner(), 1, || SLICE).await;
    assert_eq!((claim.claimed(), started.elapsed()), (1, CLAIM_WITHIN));
}

#[tokio::test(start_paused = true)]
async fn whole_quota_is_left_where_the_store_does_not_answer() {
    let quota = quota(None);
    quota.changed(owner(), || SLICE);
    let claim = quota.claim(owner(), 50, || SLICE).await;
    assert_eq!(claim.claimed(), 50);
    assert_eq!(quota.most(owner()), MOST);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_others_goes_on_where_the_store_fails() {
    let store = Arc::new(Others(Mutex::new(Some(160))));
    let quota = quota_in(Arc::clone(&store) as _);
    quota.changed(owner(), || SLICE);
    assert_eq!(quota.claim(owner(), 1, || SLICE).await.claimed(), 0, "full");
    *lock(&store.0) = None;
    let waiting = timeout(Duration::from_secs(2), quota.next_answer(owner()));
    assert!(waiting.await.is_ok(), "it is woken");
    assert_eq!(quota.most(owner()), MOST);
}
