//! What is written of sessions to a shared store.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::call::LogLevel;
use crate::redis_client::Value;
use crate::session::ImplicitSessionCall;
use crate::store::fenced::FencedSessions;
use crate::store::quotas::{CallerQuota, QuotaShape};
use crate::store::records::SharedRecords;
use crate::store::scripts::{ScriptCall, ScriptResult, ScriptRunner, StoreKeys};

/// A store that accepts every request and records it.
#[derive(Debug, Default)]
pub(super) struct Agreeing(Mutex<Vec<&'static str>>);

impl Agreeing {
    /// The names of the scripts run since the last look.
    pub(super) async fn ran(&self) -> Vec<&'static str> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::mem::take(&mut *lock(&self.0))
    }
}

impl ScriptRunner for Agreeing {
    fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
        lock(&self.0).extend(calls.iter().map(|call| call.script.name()));
        let agreed = calls.iter().map(|_| Ok(Value::Int(1))).collect();
        Box::pin(ready(agreed))
    }
}

pub(super) fn with_records() -> (Fixture, Arc<Agreeing>) {
    let f = fixture(10, 10);
    let store = Arc::new(Agreeing::default());
    let records = SharedRecords::new(
        Arc::clone(&store) as _,
        StoreKeys::new("test"),
        Arc::new(Sealer::new(&[]).unwrap()),
        Duration::from_hours(1),
    );
    let fenced = Arc::new(FencedSessions::default());
    let writer = RecordWriter::start(Arc::new(records), fenced, &TaskSpawner::new());
    f.sessions.keep_records(writer);
    (f, store)
}

#[tokio::test(start_paused = true)]
async fn record_follows_its_session_to_its_end() {
    let (f, store) = with_records();
    let session = f.open("alice").unwrap();
    assert_eq!(store.ran().await, ["record_put"]);
    session.set_initialized();
    session.want_level(LogLevel::Debug);
    assert_eq!(store.ran().await, ["record_put"], "one for both");
    f.sessions.close(&session);
    assert_eq!(store.ran().await, ["record_finish"]);
}

#[tokio::test(start_paused = true)]
async fn records_are_written_again_within_the_time_given() {
    let (f, store) = with_records();
    let sessions: Vec<_> = (0..10).map(|_| f.open("alice").unwrap()).collect();
    assert_eq!(store.ran().await.len(), sessions.len());
    let began = Instant::now();
    let writer = f.sessions.records.get().unwrap();
    writer.write_again(Duration::from_millis(2)).await;
    let took = began.elapsed();
    assert!(took <= Duration::from_millis(4), "{took:?}");
    assert_eq!(store.ran().await, ["record_put"; 10]);
}

#[tokio::test(start_paused = true)]
async fn session_of_another_replica_ends_without_a_word_to_the_store() {
    let (f, store) = with_records();
    let session = f.open("alice").unwrap();
    assert_eq!(store.ran().await, ["record_put"]);
    f.sessions.give_up(session.key(), f.sessions.ownership());
    assert!(session.closed().is_cancelled());
    assert!(store.ran().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sessions_without_an_id_have_no_record() {
    let (f, store) = with_records();
    drop(f.implicit(None));
    let connection = NewSession {
        delivery: DeliveryMode::Connection {
            unread: 1024,
            fallback: Revision::V2024_11_05,
            overflow: CancellationToken::new(),
        },
        ..new("alice")
    };
    drop(f.sessions.open(connection, None).unwrap());
    assert!(store.ran().await.is_empty());
}

const HOME: ImplicitHome = ImplicitHome {
    record: [7; 16],
    by: Ownership { node: 3, epoch: 2 },
};

#[tokio::test(start_paused = true)]
async fn implicit_session_with_a_home_has_a_record() {
    let (f, store) = with_records();
    let key = f
        .sessions
        .implicit_key(&principal("alice"), &endpoint("files"), "{}");
    assert_eq!(f.sessions.home(&key), None);
    let session = f.implicit(Some(HOME));
    assert_eq!(store.ran().await, ["record_put"]);
    assert!(Arc::ptr_eq(&f.implicit(Some(HOME)), &session));
    assert!(Arc::ptr_eq(&f.implicit(None), &session), "it is joined");
    assert_eq!(f.sessions.home(&key), Some(HOME));
    assert_eq!(f.sessions.owner_of_record(HOME.record), Some(HOME.by));
    session.record_changed();
    assert_eq!(store.ran().await, ["record_put"]);
    f.sessions.close(&session);
    assert_eq!(f.sessions.home(&key), None);
    assert_eq!(f.sessions.owner_of_record(HOME.record), None);
    assert_eq!(store.ran().await, ["record_remove"]);
}

#[tokio::test(start_paused = true)]
async fn implicit_session_of_another_replica_is_given_up() {
    let (f, store) = with_records();
    let session = f.implicit(Some(HOME));
    store.ran().await;
    f.sessions.give_up(HOME.record, HOME.by);
    assert!(session.closed().is_cancelled());
    assert!(store.ran().await.is_empty());
}

// A call runs in the former one, which is over age.
#[tokio::test(start_paused = true)]
async fn record_goes_on_with_the_next_implicit_session() {
    let (f, store) = with_records();
    let former = f.implicit(Some(HOME));
    let call = ImplicitSessionCall::begin(&former);
    tokio::time::advance(Duration::from_secs(601)).await;
    store.ran().await;
    let next = f.implicit(Some(HOME));
    assert!(!Arc::ptr_eq(&former, &next));
    assert_eq!(former.record_key(), None, "a drain does not give it up");
    assert_eq!(next.record_key().unwrap().0, HOME.record);
    assert_eq!(store.ran().await, ["record_put"]);
    drop(call);
    f.sessions.reap_once();
    assert!(former.closed().is_cancelled());
    assert!(
        store.ran().await.is_empty(),
        "the record is that of the next"
    );
    f.sessions.give_up(HOME.record, HOME.by);
    assert!(next.closed().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn implicit_session_that_is_idle_is_followed_by_one_with_its_record() {
    let (f, store) = with_records();
    let former = f.implicit(Some(HOME));
    store.ran().await;
    tokio::time::advance(Duration::from_secs(61)).await;
    let next = f.implicit(Some(HOME));
    assert!(former.closed().is_cancelled() && !next.closed().is_cancelled());
    assert_eq!(store.ran().await.last(), Some(&"record_put"));
    f.sessions.close(&next);
    assert_eq!(store.ran().await, ["record_remove"]);
}

#[tokio::test(start_paused = true)]
async fn session_that_was_claimed_counts_once() {
    let (f, store) = with_records();
    share_quotas(&f, &store);
    let alice = principal("alice");
    let first = f.sessions.owners.claim_place(alice.owner()).await.unwrap();
    let _opened = f.sessions.open(new("alice"), Some(&first)).unwrap();
    let most = f.sessions.owners.most_sessions(alice.owner());
    assert_eq!(most, 1, "as without a claim");
    drop(first);
    let (files, declares) = (endpoint("files"), "{}");
    let claim = f.sessions.claim_implicit((&alice, &files), declares, false);
    let claim = claim.await;
    let implicit_session = || {
        let new = (|| new("alice"), claim.as_ref());
        f.sessions
            .implicit_session(&alice, &files, declares, None, new)
    };
    implicit_session().unwrap();
    let most = f.sessions.owners.most_sessions(alice.owner());
    assert_eq!(most, 2);
}

#[tokio::test(start_paused = true)]
async fn claim_is_released_where_the_session_lives() {
    let (f, store) = with_records();
    share_quotas(&f, &store);
    let (alice, files) = (principal("alice"), endpoint("files"));
    let claim = f.sessions.claim_implicit((&alice, &files), "{}", false);
    let claim = claim.await;
    // Another request of the same client is faster.
    for claim in [None, claim.as_ref()] {
        let new = (|| new("alice"), claim);
        let session = f.sessions.implicit_session(&alice, &files, "{}", None, new);
        session.unwrap();
    }
    let most = f.sessions.owners.most_sessions(alice.owner());
    assert_eq!(most, 1, "one session, and nothing is claimed");
}

/// Shares quotas of ten with other replicas.
fn share_quotas(f: &Fixture, store: &Arc<Agreeing>) {
    let shape = QuotaShape {
        kind: "sessions",
        most: 10,
    };
    let tasks = TaskSpawner::new();
    let quota = || {
        CallerQuota::start(
            Arc::clone(store) as _,
            StoreKeys::new("test"),
            shape,
            1,
            &tasks,
        )
    };
    f.sessions.owners.share_quotas(SharedQuotas {
        sessions: quota(),
        results: quota(),
    });
}

#[tokio::test(start_paused = true)]
async fn implicit_session_makes_no_room_that_the_quota_leaves() {
    let (f, store) = with_records();
    share_quotas(&f, &store);
    let (alice, files) = (principal("alice"), endpoint("files"));
    let mut opened = Vec::new();
    for declares in ["{}", r#"{"roots":{}}"#, r#"{"sampling":{}}"#] {
        let claim = f.sessions.claim_implicit((&alice, &files), declares, false);
        let claim = claim.await;
        assert!(claim.is_some());
        let session =
            f.sessions
                .implicit_session(&alice, &files, declares, None, (|| new("alice"), None));
        opened.push(session.unwrap());
        let again = f.sessions.claim_implicit((&alice, &files), declares, false);
        assert!(again.await.is_none(), "it lives");
    }
    assert!(
        opened
            .iter()
            .all(|session| !session.closed().is_cancelled())
    );
}

#[tokio::test(start_paused = true)]
async fn implicit_session_that_is_handed_over_admits_nothing() {
    let (f, _store) = with_records();
    let key = f
        .sessions
        .implicit_key(&principal("alice"), &endpoint("files"), "{}");
    let session = f.implicit(Some(HOME));
    let (home, used) = f.sessions.enter_home(&key, true).unwrap();
    assert_eq!(home, HOME);
    f.sessions.hand_over(true, false);
    assert!(
        f.sessions.close_for_requests(false).is_empty(),
        "it is used"
    );
    assert!(
        f.sessions.enter_home(&key, true).is_none(),
        "a listener waits"
    );
    let call = ImplicitSessionCall::begin(&session);
    drop(used);
    assert!(
        f.sessions.close_for_requests(false).is_empty(),
        "a call runs"
    );
    let (_, used) = f.sessions.enter_home(&key, false).unwrap();
    drop(used);
    assert_eq!(
        f.sessions.live_home(HOME.record),
        LiveHome::Joinable(HOME.by)
    );
    drop(call);
    assert_eq!(f.sessions.take_ready().len(), 1, "at rest");
    assert!(f.sessions.enter_home(&key, false).is_none());
    assert_eq!(f.sessions.live_home(HOME.record), LiveHome::Leaving);
    assert!(
        !Arc::ptr_eq(&f.implicit(None), &session),
        "it is not joined"
    );
    session.stay();
    assert_eq!(
        f.sessions.live_home(HOME.record),
        LiveHome::Joinable(HOME.by)
    );
}
