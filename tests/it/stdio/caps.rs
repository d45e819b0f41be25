//! Caps, eviction, waiting and back-off, and the removal of all state of ended children.

use std::time::{Duration, Instant};

use drawbridge::config::UpstreamConfig;
use drawbridge::process::holders::SessionHolders;
use drawbridge::process::{OpenError, WaitPolicy};

use super::world::{World, next, owner, sh, tuned};
use crate::harness::{eventually, within};

fn ready() -> UpstreamConfig {
    sh("echo '{}'; exec cat")
}

fn named(mut upstream: UpstreamConfig, name: &str) -> UpstreamConfig {
    name.clone_into(&mut upstream.name);
    upstream
}

#[tokio::test]
async fn over_the_cap_the_least_recently_used_idle_child_of_the_same_principal_goes() {
    let world = World::with(|settings| settings.max_children_per_principal = 3);
    let mut children = Vec::new();
    for _ in 0..3 {
        let (connection, mut lines) = world.open("alice", &ready()).await;
        next(&mut lines).await;
        children.push((connection, lines));
    }
    let busy = children[0].0.busy();
    let (_bob, _bobs_lines) = world.open("bob", &ready()).await;
    let (_fourth, _lines) = world.open("alice", &ready()).await;
    let closed: Vec<bool> = children
        .iter()
        .map(|child| child.0.closed().is_cancelled())
        .collect();
    assert_eq!(closed, [false, true, false]);
    assert!(children[1].0.last_words().unwrap().contains("place"));
    drop(busy);
    world.end().await;
}

#[tokio::test]
async fn nobody_elses_child_makes_room() {
    let world = World::with(|settings| {
        settings.max_children = 2;
        settings.spawn_wait = Duration::from_millis(200);
    });
    let mut children = Vec::new();
    for _ in 0..2 {
        let (connection, mut lines) = world.open("alice", &ready()).await;
        next(&mut lines).await;
        children.push((connection, lines));
    }
    let started = Instant::now();
    let refused = world.try_open("bob", &ready()).await.unwrap_err();
    assert!(matches!(refused, OpenError::AtCapacity { .. }), "{refused}");
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert!(
        children
            .iter()
            .all(|child| !child.0.closed().is_cancelled())
    );
    world.end().await;
}

#[tokio::test]
async fn whoever_waits_gets_the_next_free_place() {
    let world = World::with(|settings| settings.max_children = 1);
    let (first, mut lines) = world.open("alice", &ready()).await;
    next(&mut lines).await;
    let busy = first.busy();
    let upstream = ready();
    let waiting = world.open("bob", &upstream);
    let mut waiting = Box::pin(waiting);
    tokio::select! {
        _ = &mut waiting => panic!("there is no place"),
        () = eventually("somebody waits", async || {
            (world.runtime.counts().waiting == 1).then_some(())
        }) => {}
    }
    first.close().await;
    let (_second, mut lines) = waiting.await;
    assert_eq!(next(&mut lines).await.as_deref(), Some("{}"));
    drop(busy);
    world.end().await;
}

#[tokio::test]
async fn a_child_that_turns_idle_makes_room_for_its_principals_next() {
    let world = World::with(|settings| settings.max_children_per_principal = 1);
    let (first, mut lines) = world.open("alice", &ready()).await;
    next(&mut lines).await;
    let busy = first.busy();
    let upstream = ready();
    let opened = async { tokio::join!(world.open("alice", &upstream), async { drop(busy) }).0 };
    let (_second, _lines) = opened.await;
    assert!(first.closed().is_cancelled());
    world.end().await;
}

#[tokio::test]
async fn nothing_starts_after_the_shut_down() {
    let world = World::new();
    let upstream = ready();
    let nobody = SessionHolders::default();
    let opening = world.runtime.open(
        owner("alice"),
        &upstream,
        WaitPolicy::SpawnWait,
        &nobody,
        None,
    );
    let (opened, ()) = tokio::join!(
        opening,
        world.runtime.shut_down(crate::stdio::world::in_a_minute())
    );
    if let Ok((connection, mut lines)) = opened {
        while next(&mut lines).await.is_some() {}
        assert!(connection.closed().is_cancelled());
    }
    assert_eq!(world.runtime.counts().children, 0);
    let refused = world.try_open("alice", &upstream).await.unwrap_err();
    assert!(matches!(refused, OpenError::Stopping), "{refused}");
    world.end().await;
}

#[tokio::test]
async fn an_upstreams_own_cap_is_met_by_its_own_children() {
    let world = World::new();
    let capped = tuned(ready(), |carrier| carrier.max_children = 1);
    let (other, mut lines) = world.open("alice", &named(ready(), "other")).await;
    next(&mut lines).await;
    let (first, mut first_lines) = world.open("alice", &capped).await;
    next(&mut first_lines).await;
    let (_second, _lines) = world.open("alice", &capped).await;
    assert!(first.closed().is_cancelled());
    assert!(!other.closed().is_cancelled());
    world.end().await;
}

#[tokio::test]
async fn without_patience_only_an_own_idle_child_is_waited_for() {
    let world = World::with(|settings| settings.max_children = 2);
    let (alices, mut lines) = world.open("alice", &ready()).await;
    next(&mut lines).await;
    let (bobs, mut bobs_lines) = world.open("bob", &ready()).await;
    next(&mut bobs_lines).await;
    let busy = alices.busy();
    let (upstream, nobody) = (ready(), SessionHolders::default());
    let another = || {
        world
            .runtime
            .open(owner("alice"), &upstream, WaitPolicy::None, &nobody, None)
    };
    let refused = within("a refusal", another()).await;
    assert!(matches!(refused, Err(OpenError::AtCapacity { .. })));
    drop(busy);
    let (_opened, _lines) = within("a place", another()).await.unwrap();
    assert!(alices.closed().is_cancelled() && !bobs.closed().is_cancelled());
    world.end().await;
}

#[tokio::test]
async fn a_waiter_that_gave_up_leaves_nothing() {
    let world = World::with(|settings| settings.max_children = 1);
    let (first, mut lines) = world.open("alice", &ready()).await;
    next(&mut lines).await;
    let (busy, nobody) = (first.busy(), SessionHolders::default());
    let waiting = world
        .runtime
        .open(owner("bob"), &ready(), WaitPolicy::SpawnWait, &nobody, None)
        .await_for(50)
        .await;
    assert!(waiting.is_none());
    assert_eq!(world.runtime.counts().waiting, 0);
    drop(busy);
    drop((first, lines));
    let (_again, _lines) = world.open("carol", &ready()).await;
    world.end().await;
}

trait AwaitFor: Future + Sized {
    async fn await_for(self, millis: u64) -> Option<Self::Output> {
        tokio::time::timeout(Duration::from_millis(millis), self)
            .await
            .ok()
    }
}

impl<F: Future> AwaitFor for F {}

#[tokio::test]
async fn a_crash_loop_is_slowed_down_and_says_so() {
    let world = World::new();
    let crashing = sh("echo 'no database' >&2; exit 1");
    let refused = eventually("a refusal", async || {
        match world.try_open("alice", &crashing).await {
            Ok((_connection, mut lines)) => {
                assert_eq!(next(&mut lines).await, None);
                None
            }
            Err(refused) => Some(refused),
        }
    })
    .await;
    let OpenError::Backoff {
        retry_after,
        last_words,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert!(*retry_after > Duration::from_secs(1));
    assert_eq!(last_words.as_deref(), Some("exit status: 1: no database"));
    assert!(refused.to_string().contains("keeps crashing"));
    let (_bob, _lines) = world.open("bob", &ready()).await;
    world.end().await;
}

#[tokio::test]
async fn two_hundred_abandoned_children_leave_nothing() {
    let world = World::with(|settings| {
        settings.max_children = 8;
        settings.max_children_per_principal = 4;
        settings.spawn_wait = Duration::from_mins(1);
    });
    let upstream = ready();
    let open = async |number: usize| {
        let who = ["alice", "bob", "carol"][number % 3];
        let (_connection, mut lines) = world.open(who, &upstream).await;
        next(&mut lines).await;
    };
    for batch in 0..20 {
        let numbers = batch * 10..(batch + 1) * 10;
        futures_util::future::join_all(numbers.map(open)).await;
    }
    eventually("nothing left", async || {
        let counts = world.runtime.counts();
        (counts.children == 0 && counts.entries == 0).then_some(())
    })
    .await;
    let homes = world.state.join("0/homes/up");
    assert_eq!(std::fs::read_dir(homes).unwrap().count(), 0);
    world.end().await;
}
