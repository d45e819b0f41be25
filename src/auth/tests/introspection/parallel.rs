//! Many questions at once: how they are shared, bounded, and taken in turn.

use std::sync::atomic::Ordering;

use tokio::sync::Semaphore;

use super::*;

#[tokio::test]
async fn many_who_present_one_token_at_once_cost_one_question() {
    let world = Arc::new(World::new().await);
    world.present("warm").await.expect("the place is known");
    world.server.gate.forget_permits(Semaphore::MAX_PERMITS);
    let present = || {
        let world = Arc::clone(&world);
        async move { world.present("opaque").await.map(|_| ()) }
    };
    let all = futures_util::future::join_all((0..20).map(|_| present()));
    let release = async {
        while world.server.open.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
        world.server.gate.add_permits(20);
    };
    let (results, ()) = tokio::join!(all, release);
    assert!(results.iter().all(Result::is_ok));
    // `warm` and `opaque`: one question each.
    assert_eq!(world.server.questions().len(), 2);
    let introspection = world.authenticator.issuers[0].introspection.as_ref();
    assert_eq!(introspection.expect("configured").flights(), 0);
}

#[tokio::test]
async fn a_crowd_of_tokens_is_no_failure_of_the_issuer() {
    let world = World::new().await;
    let introspection = world.authenticator.issuers[0].introspection.as_ref();
    let places = introspection.expect("configured").places();
    let taken: Vec<_> = std::iter::from_fn(|| places.try_permit()).collect();
    tokio::time::pause();
    assert_unavailable(world.present("late").await);
    tokio::time::resume();
    drop(taken);
    world.present("opaque").await.expect("it is asked at once");
}

// Places for questions are fair between callers.
#[tokio::test]
async fn tokens_of_another_address_do_not_wait_behind_a_crowd_of_one() {
    let world = Arc::new(World::new().await);
    world.present("warm").await.expect("the place is known");
    let introspection = world.authenticator.issuers[0].introspection.as_ref();
    let places = introspection.expect("configured").places();
    let mut taken: Vec<_> = std::iter::from_fn(|| places.try_permit()).collect();
    let tasks = TaskSpawner::new();
    for number in 0..200 {
        let world = Arc::clone(&world);
        let junk = format!("junk-{number}");
        tasks.spawn(async move { drop(world.present(&junk).await) });
    }
    let (answer, answered) = tokio::sync::oneshot::channel();
    tasks.spawn({
        let world = Arc::clone(&world);
        async move {
            let from = IpAddr::from([192, 0, 2, 2]);
            let principal = world.present_from(from, &endpoint(), "opaque").await;
            drop(answer.send(principal.map(|_| ())));
        }
    });
    while places.waiting() < 201 {
        tokio::task::yield_now().await;
    }
    // One question at a time from here on.
    drop(taken.pop());
    let other = answered.await.expect("it was answered");
    other.expect("an active token");
    let questions = world.server.questions();
    let asked = |token: &str| questions.iter().position(|form| form.contains(token));
    let before = asked("opaque").expect("it was asked about") - 1;
    assert!(before <= 2, "{before} of 200 were asked about before");
}

#[tokio::test]
async fn who_goes_away_leaves_the_question_to_the_others() {
    let world = World::new().await;
    world.present("warm").await.expect("the place is known");
    world.server.gate.forget_permits(Semaphore::MAX_PERMITS);
    let mut first = Box::pin(world.present("opaque"));
    let asked = async {
        while world.server.open.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut first => panic!("nobody answered"),
        () = asked => {}
    }
    drop(first);
    world.server.gate.add_permits(20);
    world.present("opaque").await.expect("asked again");
}
