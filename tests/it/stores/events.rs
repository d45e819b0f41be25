//! The event log: one contract over memory and Redis, and what replicas see of each other's logs.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drawbridge::ownership::{Fence, Ownership};
use drawbridge::redis_client::RedisClient;
use drawbridge::runtime::lifecycle::TaskSpawner;
use drawbridge::seal::Sealer;
use drawbridge::store::events::{
    Durability, EventStore, LogBounds, LoggedEvent, MemoryEvents, ReplayResult, RestoredStream,
    SessionKey, SharedEvents, SharedLogParts, StreamKey,
};
use drawbridge::store::fenced::FencedSessions;
use drawbridge::store::scripts::StoreKeys;
use rstest::rstest;
use rustix::process::Signal;

use super::{ask, dump, has, keys_with_life, redis, sealer};
use crate::harness::redis::RedisServer;
use crate::harness::{eventually, within};

const SESSION: SessionKey = [7; 16];
const LOG: &str = "test:{07070707070707070707070707070707}:events";
const RECORD: &str = "test:{07070707070707070707070707070707}:record";
const BOUNDS: LogBounds = LogBounds {
    max_age: Duration::from_mins(5),
    per_session: 64 * 1024,
    total: 1 << 20,
};

/// What keeps the events of a contract test.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    Redis,
}

/// A store under test, and the server that has to live as long.
struct World {
    store: Arc<dyn EventStore>,
    _server: Option<RedisServer>,
}

async fn world(kind: Kind) -> Option<World> {
    Some(match kind {
        Kind::Memory => World {
            store: Arc::new(MemoryEvents::new(BOUNDS)),
            _server: None,
        },
        Kind::Redis => {
            let (server, client) = redis().await?;
            World {
                store: replica(1, &client, &sealer()).events,
                _server: Some(server),
            }
        }
    })
}

pub(super) struct Replica {
    pub(super) events: Arc<SharedEvents>,
    fenced: Arc<FencedSessions>,
}

/// The log of a replica.
pub(super) fn replica(node: u32, client: &RedisClient, sealer: &Arc<Sealer>) -> Replica {
    let fenced = Arc::new(FencedSessions::default());
    let parts = SharedLogParts {
        bounds: BOUNDS,
        store: Arc::new(client.clone()),
        keys: StoreKeys::new("test"),
        sealer: Arc::clone(sealer),
        own: owner(node, 0),
        fenced: Arc::clone(&fenced),
        fence: Fence::default(),
    };
    Replica {
        events: SharedEvents::start(parts, &TaskSpawner::new()),
        fenced,
    }
}

fn owner(node: u32, epoch: u16) -> Ownership {
    Ownership { node, epoch }
}

fn at(stream: u32) -> StreamKey {
    StreamKey {
        session: SESSION,
        stream,
    }
}

/// Logs `texts` together; the position of the last one.
pub(super) fn append(store: &dyn EventStore, at: StreamKey, texts: &[&str]) -> u64 {
    let mut events: Vec<LoggedEvent> = texts
        .iter()
        .map(|text| LoggedEvent::of(Bytes::copy_from_slice(text.as_bytes())))
        .collect();
    store.append(at, &mut events);
    events.last().unwrap().seq
}

fn finish(store: &dyn EventStore, at: StreamKey, text: &'static str) -> u64 {
    let mut reply = [LoggedEvent {
        last: true,
        ..LoggedEvent::of(text.into())
    }];
    store.append(at, &mut reply);
    reply[0].seq
}

pub(super) async fn durable(store: &dyn EventStore, at: StreamKey, seq: u64) -> Durability {
    poll_fn(|cx| store.poll_durable(at, seq, cx)).await
}

fn texts(found: ReplayResult) -> Vec<String> {
    match found {
        ReplayResult::Events(events) | ReplayResult::Evicted(events) => events
            .into_iter()
            .map(|event| String::from_utf8(event.payload.to_vec()).unwrap())
            .collect(),
        ReplayResult::Unknown => panic!("unknown"),
    }
}

// The contract.

#[rstest]
#[case::memory(Kind::Memory)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn replay_returns_later_events_of_that_stream(#[case] kind: Kind) {
    let Some(world) = world(kind).await else {
        return;
    };
    let store = &*world.store;
    append(store, at(1), &["a1", "a2"]);
    append(store, at(2), &["b1"]);
    let last = finish(store, at(1), "a3");
    assert_eq!(last, 3);
    assert_eq!(durable(store, at(1), last).await, Durability::Durable);
    assert_eq!(texts(store.after(at(1), 1, 100)), ["a2", "a3"]);
    assert_eq!(texts(store.after(at(1), 0, 2)), ["a1", "a2"]);
    assert_eq!(texts(store.after(at(2), 0, 100)), ["b1"]);
    assert_eq!(store.after(at(9), 0, 100), ReplayResult::Unknown);
    assert_eq!(store.after(at(1), 4, 100), ReplayResult::Unknown);
}

#[rstest]
#[case::memory(Kind::Memory)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn replaced_payload_is_replayed(#[case] kind: Kind) {
    let Some(world) = world(kind).await else {
        return;
    };
    let store = &*world.store;
    let seq = append(store, at(1), &["old"]);
    assert!(store.replace(at(1), seq, "new".into()));
    assert!(!store.replace(at(1), seq + 1, "new".into()));
    assert_eq!(texts(store.after(at(1), 0, 100)), ["new"]);
}

#[rstest]
#[case::memory(Kind::Memory)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn bytes_of_a_session_are_bounded(#[case] kind: Kind) {
    let Some(world) = world(kind).await else {
        return;
    };
    let store = &*world.store;
    let large = "x".repeat(20_000);
    for _ in 0..5 {
        append(store, at(1), &[&large]);
    }
    let found = store.after(at(1), 0, 100);
    assert!(matches!(&found, ReplayResult::Evicted(events) if events.len() == 3));
    assert!(store.size().1 <= BOUNDS.per_session);
}

#[rstest]
#[case::memory(Kind::Memory)]
#[case::redis(Kind::Redis)]
#[tokio::test]
async fn forgotten_session_has_no_events(#[case] kind: Kind) {
    let Some(world) = world(kind).await else {
        return;
    };
    let store = &*world.store;
    append(store, at(1), &["a"]);
    store.forget(SESSION);
    assert_eq!(store.after(at(1), 0, 100), ReplayResult::Unknown);
    assert_eq!(store.size(), (0, 0));
}

// Several replicas.

#[tokio::test]
async fn acknowledged_events_are_replayed_by_another_replica() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    append(&*one.events, at(1), &["a", "b"]);
    append(&*one.events, at(0), &["notice"]);
    let last = finish(&*one.events, at(1), "reply");
    assert_eq!(durable(&*one.events, at(0), 1).await, Durability::Durable);
    assert_eq!(
        durable(&*one.events, at(1), last).await,
        Durability::Durable
    );
    let streams = two.events.load(SESSION, owner(2, 1)).await.unwrap();
    let expected =
        [(0, 1, false), (1, 3, true)].map(|(stream, newest, is_finished)| RestoredStream {
            stream,
            newest,
            is_finished,
        });
    assert_eq!(streams, expected);
    assert_eq!(texts(two.events.after(at(1), 1, 100)), ["b", "reply"]);
    let ReplayResult::Events(events) = two.events.after(at(1), 2, 100) else {
        panic!("evicted");
    };
    assert!(events[0].last);
    // Positions of the next epoch.
    let next = append(&*two.events, at(0), &["later"]);
    assert_eq!(next, owner(2, 1).first_number() + 1);
    assert_eq!(
        durable(&*two.events, at(0), next).await,
        Durability::Durable
    );
    assert_eq!(texts(two.events.after(at(0), 0, 100)), ["notice", "later"]);
    let three = replica(3, &client, &sealer);
    three.events.load(SESSION, owner(3, 2)).await.unwrap();
    assert_eq!(
        texts(three.events.after(at(0), 0, 100)),
        ["notice", "later"]
    );
    assert_eq!(texts(three.events.after(at(0), 1, 100)), ["later"]);
}

#[tokio::test]
async fn resumed_stream_recalls_events_of_another_replica() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    let seq = append(&*one.events, at(1), &["a", "b"]);
    assert_eq!(durable(&*one.events, at(1), seq).await, Durability::Durable);
    assert!(one.events.recall(at(1), 1).is_none(), "it has them");
    assert_eq!(two.events.recall(at(1), 1).unwrap().await, 2);
    assert_eq!(texts(two.events.after(at(1), 1, 100)), ["b"]);
    assert!(two.events.recall(at(1), 1).is_none(), "now it has them too");
}

#[tokio::test]
async fn event_that_comes_while_a_log_is_recalled_is_logged() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(1, &client, &sealer);
    let recalled = one.events.recall(at(1), 0).unwrap();
    server.kill();
    let seq = append(&*one.events, at(1), &["a"]);
    assert_eq!(
        durable(&*one.events, at(1), seq).await,
        Durability::Unlogged
    );
    server.start().await;
    eventually("Redis is back", async || {
        client.is_connected().then_some(())
    })
    .await;
    recalled.await;
    eventually("the event is logged", async || {
        let entries: usize = ask(&client, &["XLEN", LOG]).await;
        (entries == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn long_log_is_read_in_pages() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    for number in 0..600_u32 {
        // Streams take turns, so that each event is an entry.
        let text = number.to_string();
        let seq = append(&*one.events, at(number % 2), &[&text]);
        if number % 100 == 99 {
            durable(&*one.events, at(number % 2), seq).await;
        }
    }
    let entries: usize = ask(&client, &["XLEN", LOG]).await;
    assert!(entries > 256, "{entries}");
    two.events.load(SESSION, owner(2, 1)).await.unwrap();
    for stream in [0, 1] {
        let own = texts(one.events.after(at(stream), 0, 1000));
        assert_eq!(texts(two.events.after(at(stream), 0, 1000)), own);
    }
}

#[tokio::test]
async fn former_owner_is_fenced_and_writes_nothing() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    let seq = append(&*one.events, at(1), &["a"]);
    durable(&*one.events, at(1), seq).await;
    two.events.load(SESSION, owner(2, 1)).await.unwrap();
    let seq = append(&*two.events, at(1), &["b"]);
    durable(&*two.events, at(1), seq).await;
    let late = append(&*one.events, at(1), &["late"]);
    assert_eq!(durable(&*one.events, at(1), late).await, Durability::Fenced);
    assert_eq!(
        within("the session is fenced", one.fenced.next()).await,
        (SESSION, owner(1, 0))
    );
    one.events.forget(SESSION);
    let three = replica(3, &client, &sealer);
    three.events.load(SESSION, owner(3, 2)).await.unwrap();
    assert_eq!(texts(three.events.after(at(1), 0, 100)), ["a", "b"]);
}

#[tokio::test]
async fn flushed_log_of_a_session_that_was_given_up_stays() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    append(&*one.events, at(1), &["a", "b"]);
    assert!(one.events.flush(SESSION).await);
    let entries: usize = ask(&client, &["XLEN", LOG]).await;
    assert_eq!(entries, 1);
    let given_up = owner(1, 0).given_up().unwrap();
    let head = [&b"\x01"[..], &given_up.to_bytes(), b"\0\0\0\x01\0"].concat();
    let mut set = drawbridge::redis_client::cmd("SET");
    set.arg(RECORD).arg(&head[..]).arg("PX").arg(60_000);
    client.command::<()>("test", &set).await.unwrap();
    append(&*one.events, at(1), &["late"]);
    assert!(!one.events.flush(SESSION).await);
    one.events.forget(SESSION);
    two.events.load(SESSION, owner(2, 2)).await.unwrap();
    assert_eq!(texts(two.events.after(at(1), 0, 9)), ["a", "b"]);
}

#[tokio::test]
async fn record_of_another_owner_fences_before_it_writes_events() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(1, &client, &sealer());
    let head = b"\x01\x00\x00\x00\x02\x00\x01\x00\x00\x00\x00\x00";
    let mut set = drawbridge::redis_client::cmd("SET");
    set.arg(RECORD).arg(&head[..]).arg("PX").arg(60_000);
    client.command::<()>("test", &set).await.unwrap();
    append(&*one.events, at(1), &["late"]);
    assert_eq!(
        within("the session is fenced", one.fenced.next()).await,
        (SESSION, owner(1, 0))
    );
    let entries: usize = ask(&client, &["XLEN", LOG]).await;
    assert_eq!(entries, 0);
}

#[tokio::test]
async fn highest_stream_is_noted_in_the_record() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(1, &client, &sealer());
    let head = b"\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x02\x00";
    let mut set = drawbridge::redis_client::cmd("SET");
    set.arg(RECORD).arg(&head[..]).arg("PX").arg(60_000);
    client.command::<()>("test", &set).await.unwrap();
    for stream in [1, 0x0102] {
        let seq = append(&*one.events, at(stream), &["a"]);
        durable(&*one.events, at(stream), seq).await;
        let highest: Vec<u8> = ask(&client, &["GETRANGE", RECORD, "7", "10"]).await;
        assert_eq!(highest, stream.max(2).to_be_bytes());
    }
    keys_with_life(&client).await;
}

// Bounds and secrets.

#[tokio::test]
async fn shared_log_is_bounded_and_expires() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let one = replica(1, &client, &sealer());
    let large = "x".repeat(10_000);
    for _ in 0..20 {
        let seq = append(&*one.events, at(1), &[&large]);
        durable(&*one.events, at(1), seq).await;
    }
    let entries: usize = ask(&client, &["XLEN", LOG]).await;
    assert_eq!(entries, 6, "64 KiB");
    assert_eq!(keys_with_life(&client).await, [LOG]);
    one.events.forget(SESSION);
    eventually("the log is removed", async || {
        let keys: Vec<String> = ask(&client, &["KEYS", "*"]).await;
        keys.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_payload_stands_in_redis_in_clear() {
    let Some((server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    let seq = append(&*one.events, at(1), &["MARKED-SECRET", "MARKED-SECRET"]);
    durable(&*one.events, at(1), seq).await;
    let dump = dump(&server, &client).await;
    assert!(has(&dump, ":events") && !has(&dump, "MARKED"));
    two.events.load(SESSION, owner(2, 1)).await.unwrap();
    assert_eq!(texts(two.events.after(at(1), 1, 9)), ["MARKED-SECRET"]);
    let stranger = replica(3, &client, &super::sealer());
    assert_eq!(
        stranger.events.load(SESSION, owner(3, 1)).await.unwrap(),
        []
    );
}

// Redis in trouble.

#[tokio::test]
async fn events_of_an_outage_go_out_without_ids_and_are_logged_later() {
    let Some((mut server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let one = replica(1, &client, &sealer);
    let seq = append(&*one.events, at(1), &["before"]);
    assert_eq!(durable(&*one.events, at(1), seq).await, Durability::Durable);
    server.kill();
    let seq = append(&*one.events, at(1), &["during"]);
    assert_eq!(
        durable(&*one.events, at(1), seq).await,
        Durability::Unlogged
    );
    // Empty: what was logged before is logged once more.
    server.start().await;
    eventually("the log is written again", async || {
        // Each one reads the log once. The event of the outage may be there before those that are logged once more.
        let two = replica(2, &client, &sealer);
        let streams = two.events.load(SESSION, owner(2, 1)).await.ok()?;
        let is_there = streams.iter().any(|stream| stream.newest == 2);
        (is_there && texts(two.events.after(at(1), 0, 9)) == ["before", "during"]).then_some(())
    })
    .await;
    let seq = append(&*one.events, at(1), &["after"]);
    eventually("events have ids again", async || {
        let durability = durable(&*one.events, at(1), seq).await;
        (durability == Durability::Durable).then_some(())
    })
    .await;
}

#[tokio::test]
async fn log_is_written_again_on_request() {
    let Some((_server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    let seq = append(&*one.events, at(1), &["a", "b"]);
    durable(&*one.events, at(1), seq).await;
    ask::<()>(&client, &["FLUSHALL"]).await;
    one.events.write_again(Duration::ZERO).await;
    assert_eq!(durable(&*one.events, at(1), seq).await, Durability::Durable);
    two.events.load(SESSION, owner(2, 1)).await.unwrap();
    assert_eq!(texts(two.events.after(at(1), 0, 9)), ["a", "b"]);
}

#[tokio::test]
async fn paused_redis_delays_events_and_doubles_none() {
    let Some((server, client)) = redis().await else {
        return;
    };
    let sealer = sealer();
    let (one, two) = (replica(1, &client, &sealer), replica(2, &client, &sealer));
    let seq = append(&*one.events, at(1), &["a"]);
    durable(&*one.events, at(1), seq).await;
    server.signal(Signal::STOP);
    let seq = append(&*one.events, at(1), &["b"]);
    assert_eq!(
        durable(&*one.events, at(1), seq).await,
        Durability::Unlogged
    );
    server.signal(Signal::CONT);
    eventually("the log is written again", async || {
        let durability = durable(&*one.events, at(1), seq).await;
        (durability == Durability::Durable).then_some(())
    })
    .await;
    two.events.load(SESSION, owner(2, 1)).await.unwrap();
    assert_eq!(texts(two.events.after(at(1), 0, 9)), ["a", "b"]);
}
