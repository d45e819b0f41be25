//! A Redis Cluster with a silent master: what it has waits, and the rest goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge::ownership::Ownership;
use drawbridge::store::events::{Durability, SessionKey, StreamKey};
use drawbridge::store::records::{RecordSource, RecordState};
use drawbridge::store::scripts::StoreKeys;
use rustix::process::Signal;

use super::{events, rates, records, sealer};
use crate::harness::eventually;
use crate::harness::redis::{self, RedisCluster};

/// Masters; the last one falls silent.
const MASTERS: usize = 3;
const SILENT: usize = MASTERS - 1;

/// One of `found` on each master, by the key that it has in the store.
async fn one_on_each<T: Copy>(
    cluster: &RedisCluster,
    found: impl Fn(u8) -> T,
    key: impl Fn(&StoreKeys, T) -> String,
) -> [T; MASTERS] {
    let keys = StoreKeys::new("test");
    let mut places = [None; MASTERS];
    for number in 0.. {
        let one = found(number);
        let place = cluster.place_of(&key(&keys, one)).await;
        places[place].get_or_insert(one);
        if let [Some(first), Some(second), Some(third)] = places {
            return [first, second, third];
        }
    }
    unreachable!("some key has each slot")
}

async fn sessions(cluster: &RedisCluster) -> [SessionKey; MASTERS] {
    one_on_each(cluster, |number| [number; 16], StoreKeys::events).await
}

#[tokio::test]
async fn events_of_other_shards_are_logged_meanwhile() {
    let Some(cluster) = redis::cluster(MASTERS).await else {
        return;
    };
    let one = events::replica(1, &cluster.client().await, &sealer());
    let streams = sessions(&cluster)
        .await
        .map(|session| StreamKey { session, stream: 1 });
    let logged = async |place: usize| {
        let seq = events::append(&*one.events, streams[place], &["a"]);
        events::durable(&*one.events, streams[place], seq).await
    };
    for place in 0..MASTERS {
        assert_eq!(logged(place).await, Durability::Durable);
    }
    cluster.nodes[SILENT].signal(Signal::STOP);
    let silent = events::append(&*one.events, streams[SILENT], &["b"]);
    let started = Instant::now();
    for _ in 0..30 {
        events::append(&*one.events, streams[SILENT], &["more"]);
        for place in 0..SILENT {
            assert_eq!(logged(place).await, Durability::Durable);
        }
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    let unlogged = events::durable(&*one.events, streams[SILENT], silent).await;
    assert_eq!(unlogged, Durability::Unlogged);
    cluster.nodes[SILENT].signal(Signal::CONT);
    eventually("the shard is written again", async || {
        (logged(SILENT).await == Durability::Durable).then_some(())
    })
    .await;
}

#[tokio::test]
async fn records_of_other_shards_are_written_meanwhile() {
    let Some(cluster) = redis::cluster(MASTERS).await else {
        return;
    };
    let life = Duration::from_hours(1);
    let one = records::replica(&cluster.client().await, &sealer(), life);
    let by = Ownership { node: 1, epoch: 0 };
    let sessions = sessions(&cluster).await;
    let sources = sessions.map(|session| {
        let source = records::Source::of(by, records::record());
        one.writer
            .track(session, Arc::clone(&source) as Arc<dyn RecordSource>);
        source
    });
    let opened = |place: usize, seconds: u64| {
        let mut changed = records::record();
        changed.opened = Duration::from_secs(seconds);
        *sources[place].record.lock().unwrap() = Some(changed);
        one.writer.change(sessions[place]);
    };
    let written = async |place: usize, seconds: u64| {
        eventually("the record is written", async || {
            let state = one.records.read(sessions[place]).await.ok()?;
            matches!(state, RecordState::Owned { record: Some(record), .. }
                if record.opened.as_secs() == seconds)
            .then_some(())
        })
        .await;
    };
    for place in 0..MASTERS {
        opened(place, 1);
        written(place, 1).await;
    }
    cluster.nodes[SILENT].signal(Signal::STOP);
    let started = Instant::now();
    for seconds in 2..12 {
        for place in 0..MASTERS {
            opened(place, seconds);
        }
        for place in 0..SILENT {
            written(place, seconds).await;
        }
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    cluster.nodes[SILENT].signal(Signal::CONT);
    written(SILENT, 11).await;
}

#[tokio::test]
async fn callers_of_a_silent_shard_have_their_own_allowance() {
    let Some(cluster) = redis::cluster(MASTERS).await else {
        return;
    };
    let rates = rates::replica(&cluster.client().await, rates::FAST);
    let owner = |number: u8| rates::owner(&number.to_string());
    let owners = one_on_each(&cluster, owner, StoreKeys::rate).await;
    for owner in owners {
        assert_eq!(rates.take(owner, 1), Some(Ok(())));
    }
    cluster.nodes[SILENT].signal(Signal::STOP);
    let started = Instant::now();
    eventually("the silent shard is missed", async || {
        rates.take(owners[SILENT], 1).is_none().then_some(())
    })
    .await;
    for owner in &owners[..SILENT] {
        assert!(rates.take(*owner, 1).is_some(), "another shard");
    }
    // More than is borrowed ahead: the store is asked.
    let mut taken = 0;
    while taken < 1_000 {
        match rates.take(owners[0], 1).expect("its shard answers") {
            Ok(()) => taken += 1,
            Err(wait) => tokio::time::sleep(wait).await,
        }
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    cluster.nodes[SILENT].signal(Signal::CONT);
    eventually("it is asked again", async || {
        rates.take(owners[SILENT], 1).map(drop)
    })
    .await;
}
