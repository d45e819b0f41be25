//! A replica that stops gives its sessions up, and other replicas go on with them. Spec: DESIGN §8.1; `docs/adr/0028`.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::timeout;

use super::adoption::{adopted, keeps, ping, put_state};
use super::{SECRET, forwards, knows, pair, tables};
use crate::harness::http::{everything, initialize};
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually, within};

/// Far above the time in which a session goes on: no test waits for its end.
const LEASE: &str = "lease = \"30s\"";
/// Far below it.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A replica before a stub over HTTP, with lines of `[server]`.
fn setup(redis: &RedisServer, stub: &HttpStub, server: &str) -> Setup {
    let setup = Setup::open().toml(&tables(redis, SECRET, LEASE));
    setup.server(server).http("stub", stub, "")
}

async fn hand_overs(gateway: &Gateway, outcome: &str) -> f64 {
    let name = "drawbridge_cluster_hand_overs_total";
    gateway.metric(name, outcome).await
}

#[tokio::test]
async fn session_goes_on_at_another_replica_at_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [mut one, two] = pair(|| setup(&redis, &stub, "")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&there).await;
    one.signal(Signal::TERM);
    let asked = Instant::now();
    assert!(keeps(&there).await.contains("kept"), "the same session");
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    assert_eq!(one.exit().await, Some(0));
    assert!(keeps(&there).await.contains("kept"));
    assert!((hand_overs(&two, "taken_over").await - 1.0).abs() < 0.5);
    assert!(adopted(&two).await < 0.5, "no replica was lost");
    // It lives here.
    let before = forwards(&two, "").await;
    assert_eq!(there.post(&ping()).await.status(), 200);
    assert!((forwards(&two, "").await - before).abs() < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn stream_of_a_session_ends_and_resumes_without_a_loss() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = pair(|| setup(&redis, &stub, "")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let mut stream = here.listen().await;
    stub.heard().await;
    let level = here.request("logging/setLevel", json!({"level": "info"}));
    level.await.expect("a level");
    let log = json!({"level": "info", "n": 20, "via": "get"});
    here.text("log", log).await;
    one.signal(Signal::TERM);
    let mut heard = Vec::new();
    while let Some(message) = stream.message().await {
        heard.push(message["params"]["data"].as_str().unwrap().to_owned());
    }
    assert!((500..=3000).contains(&stream.retry.expect("when to come back")));
    let there = here.at(two.anonymous());
    let resumed = there.resume(&stream.last_id.unwrap()).await;
    let mut stream = resumed.expect(StatusCode::OK).await.events();
    stub.heard().await;
    let log = json!({"level": "info", "n": 20, "first": 21, "via": "get"});
    there.text("log", log).await;
    while heard.len() < 40 {
        let message = stream.message().await.expect("a message");
        heard.push(message["params"]["data"].as_str().unwrap().to_owned());
    }
    let expected: Vec<_> = (1..=40).map(|number| format!("entry {number}")).collect();
    assert_eq!(heard, expected);
    two.stop().await;
}

#[tokio::test]
async fn session_is_handed_over_when_its_call_ends() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [mut one, two] = pair(|| setup(&redis, &stub, "")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, call) = here.start_call("sleep", json!({"ms": 1500})).await;
    one.signal(Signal::TERM);
    // Served by the owner while the call runs.
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    let (_, reply) = call.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "slept");
    assert_eq!(there.text("echo", json!({"text": "ho"})).await, "ho");
    assert_eq!(one.exit().await, Some(0));
    assert_eq!(there.text("echo", json!({"text": "ho"})).await, "ho");
    two.stop().await;
}

#[tokio::test]
async fn session_whose_calls_overlap_without_a_gap_is_handed_over() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [mut one, two] = pair(|| setup(&redis, &stub, "drain = \"4s\"")).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let until = Instant::now() + Duration::from_secs(5);
    let calls = (0..3).map(async |number: u32| {
        tokio::time::sleep(number * Duration::from_millis(200)).await;
        while Instant::now() < until {
            assert_eq!(there.text("sleep", json!({"ms": 600})).await, "slept");
        }
    });
    let stops = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        one.signal(Signal::TERM);
        assert_eq!(one.exit().await, Some(0));
    };
    tokio::join!(join_all(calls), stops);
    assert!((hand_overs(&two, "taken_over").await - 1.0).abs() < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn call_that_outlasts_the_drain_ends_with_an_unknown_outcome() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [mut one, two] = pair(|| setup(&redis, &stub, "drain = \"1s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&there).await;
    let (id, call) = here.start_call("sleep", json!({"ms": 60_000})).await;
    let mut call = call.stream();
    let first = call.next().await.expect("a priming event").id.unwrap();
    one.signal(Signal::TERM);
    let reply = call.message().await.expect("the end of the call");
    assert_eq!(reply["id"], id);
    assert!(reply.to_string().contains("outcome is unknown"), "{reply}");
    assert_eq!(one.exit().await, Some(0));
    assert!(keeps(&there).await.contains("kept"), "the session goes on");
    let resumed = there.resume(&first).await.expect(StatusCode::OK).await;
    assert_eq!(resumed.events().message().await, Some(reply));
    two.stop().await;
}

#[tokio::test]
async fn new_session_is_opened_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let linger = "drain_linger = \"3s\"";
    let [mut one, two] = pair(|| setup(&redis, &stub, linger)).await;
    let user = one.anonymous();
    // Leaves a connection.
    let handed = user.open("/mcp/stub").await;
    one.signal(Signal::TERM);
    eventually("the drain has begun", async || {
        let ready = one.admin_text("/ready").await;
        ready.is_none_or(|(status, _)| status != 200).then_some(())
    })
    .await;
    // The answer closes the connection, and the port is closed.
    let hello = initialize(1, "2025-11-25", &everything());
    let answer = user.post("/mcp/stub", &[], &hello).await;
    assert_eq!(answer.header("connection"), Some("close"));
    let opened = Session::begin(two.anonymous(), "/mcp/stub", answer).await;
    assert_eq!(one.exit().await, Some(0));
    let before = forwards(&two, "").await;
    assert_eq!(opened.post(&ping()).await.status(), 200);
    assert!(
        (forwards(&two, "").await - before).abs() < 0.5,
        "it lives here"
    );
    assert_eq!(handed.at(two.anonymous()).post(&ping()).await.status(), 200);
    // The one that was open before.
    assert!((hand_overs(&two, "taken_over").await - 1.0).abs() < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn session_of_the_only_replica_goes_on_at_the_next_one() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let mut one = setup(&redis, &stub, "").start().await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    one.signal(Signal::TERM);
    assert_eq!(one.exit().await, Some(0));
    let two = setup(&redis, &stub, "").start().await;
    knows(&two, 1).await;
    let there = here.at(two.anonymous());
    let asked = Instant::now();
    assert!(keeps(&there).await.contains("kept"));
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    two.stop().await;
}

/// Waits until a replica has begun to drain.
async fn drains(gateway: &Gateway) {
    eventually("the drain has begun", async || {
        let ready = gateway.admin_text("/ready").await;
        ready.is_none_or(|(status, _)| status != 200).then_some(())
    })
    .await;
}

/// A call of `ms` at each replica, for which a drain waits.
async fn hold_drains(replicas: [&Gateway; 2], ms: u64) -> Vec<Exchange> {
    let mut calls = Vec::new();
    for replica in replicas {
        let session = replica.anonymous().open("/mcp/stub").await;
        calls.push(session.start_call("sleep", json!({"ms": ms})).await.1);
    }
    calls
}

/// Waits for the `calls` of [`hold_drains`] and for the ends of the replicas.
async fn end_drains(calls: Vec<Exchange>, replicas: [&mut Gateway; 2]) {
    for call in calls {
        assert_eq!(text_of(&call.finish().await.1.unwrap()), "slept");
    }
    for replica in replicas {
        assert_eq!(replica.exit().await, Some(0));
    }
}

#[tokio::test]
async fn replicas_that_drain_together_serve_their_sessions() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let linger = "drain_linger = \"3s\"";
    let [mut one, mut two] = pair(|| setup(&redis, &stub, linger)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&there).await;
    let calls = hold_drains([&one, &two], 4000).await;
    one.signal(Signal::TERM);
    two.signal(Signal::TERM);
    drains(&one).await;
    drains(&two).await;
    let asked = Instant::now();
    assert!(keeps(&there).await.contains("kept"));
    assert!(keeps(&here).await.contains("kept"));
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    end_drains(calls, [&mut one, &mut two]).await;
    // A replica that starts later goes on with it.
    let three = setup(&redis, &stub, "").start().await;
    knows(&three, 1).await;
    assert!(keeps(&here.at(three.anonymous())).await.contains("kept"));
    three.stop().await;
}

#[tokio::test]
async fn session_that_was_given_up_is_adopted_where_all_replicas_drain() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let linger = "drain_linger = \"3s\"";
    let [mut one, mut two] = pair(|| setup(&redis, &stub, linger)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    put_state(&there).await;
    let calls = hold_drains([&one, &two], 8000).await;
    one.signal(Signal::TERM);
    eventually("the session is given up", async || {
        (hand_overs(&one, "given_up").await > 0.5).then_some(())
    })
    .await;
    two.signal(Signal::TERM);
    drains(&two).await;
    assert!(keeps(&there).await.contains("kept"), "no other can have it");
    assert!((hand_overs(&two, "taken_over").await - 1.0).abs() < 0.5);
    end_drains(calls, [&mut one, &mut two]).await;
}

#[tokio::test]
async fn what_begins_no_work_reaches_the_owner_in_the_last_part_of_a_drain() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [mut one, two] = pair(|| setup(&redis, &stub, "drain = \"12s\"")).await;
    let begun = Instant::now();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let here = one.anonymous().open("/mcp/stub").await;
        let (id, call) = here.start_call("sleep", json!({"ms": 60_000})).await;
        sessions.push((here.at(two.anonymous()), id, call));
    }
    one.signal(Signal::TERM);
    eventually("requests are held", async || {
        let ping = ping();
        let held = timeout(Duration::from_millis(300), sessions[0].0.post(&ping));
        held.await.err()
    })
    .await;
    let asked = Instant::now();
    let (there, id, _call) = &sessions[0];
    there
        .notify("notifications/cancelled", json!({"requestId": id}))
        .await;
    assert_eq!(sessions[1].0.delete().await, 204);
    // Nothing runs any more: the first session is handed over, the second one is over.
    assert_eq!(there.post(&ping()).await.status(), 200);
    assert_eq!(sessions[1].0.post(&ping()).await.status(), 404);
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    assert_eq!(one.exit().await, Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "before the end of the drain"
    );
    two.stop().await;
}

// No heartbeat is answered any more, and no replica can go on with the session.
#[tokio::test]
async fn stream_ends_where_redis_is_lost_during_the_drain() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = pair(|| setup(&redis, &stub, "drain = \"60s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let mut stream = here.listen().await;
    // Keeps the session here.
    let (_, _call) = here.start_call("sleep", json!({"ms": 60_000})).await;
    one.signal(Signal::TERM);
    drains(&one).await;
    let mut ended = Box::pin(async { while stream.next().await.is_some() {} });
    let soon = timeout(Duration::from_millis(500), &mut ended).await;
    assert!(soon.is_err(), "there is another replica");
    redis.kill();
    within("the end of the stream", ended).await;
    one.kill().await;
    two.stop().await;
}

#[tokio::test]
async fn session_on_a_child_goes_on_where_it_is_restartable() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    for (keys, status) in [("", 404), ("restartable = true", 200)] {
        let make = || {
            let setup = Setup::open().toml(&tables(&redis, SECRET, LEASE));
            setup.stub_with("stub", &[], keys)
        };
        let [mut one, two] = pair(make).await;
        let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
        assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
        one.signal(Signal::TERM);
        assert_eq!(one.exit().await, Some(0));
        assert_eq!(there.post(&ping()).await.status(), status, "{keys}");
        two.stop().await;
    }
}
