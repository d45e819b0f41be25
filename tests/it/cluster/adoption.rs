//! Sessions whose owner is lost go on at another replica. Spec: DESIGN §8.1; `docs/adr/0027`.

use std::time::{Duration, Instant};

use http::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SECRET, forwards, knows, pair, tables};
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};

/// The shortest lease that leaves a busy machine time for heartbeats.
pub(super) const LEASE: Duration = Duration::from_secs(2);
/// Within this a request is answered whose owner is lost.
const PATIENCE: Duration = Duration::from_secs(2 + 2);

/// A replica of a cluster with `LEASE`.
pub(super) fn setup(redis: &RedisServer) -> Setup {
    Setup::open().toml(&tables(redis, SECRET, "lease = \"2s\""))
}

/// A replica before a stub over HTTP, whose sessions another replica can continue.
pub(super) fn over_http(redis: &RedisServer, stub: &HttpStub) -> Setup {
    setup(redis).http("stub", stub, "")
}

/// Two replicas with leases old enough to adopt sessions.
pub(super) async fn settled(make: impl Fn() -> Setup) -> [Gateway; 2] {
    let both = pair(make).await;
    // Redis has to have been there for a lease.
    tokio::time::sleep(LEASE).await;
    both
}

pub(super) fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 77, "method": "ping"})
}

/// Stores a value in the session at the stub.
pub(super) async fn put_state(user: &Session) {
    let state = json!({"key": "k", "value": "kept"});
    user.text("state_set", state).await;
}

/// The value in the session at the stub: contains `kept` after [`put_state`].
pub(super) async fn keeps(user: &Session) -> String {
    user.text("state_get", json!({"key": "k"})).await
}

pub(super) async fn adopted(gateway: &Gateway) -> f64 {
    let name = "drawbridge_cluster_sessions_adopted_total";
    gateway.metric(name, "").await
}

#[tokio::test]
async fn session_at_an_http_upstream_is_continued() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    assert!(keeps(&there).await.contains("kept"));
    one.kill().await;
    let started = Instant::now();
    assert!(keeps(&there).await.contains("kept"), "the same session");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert!((adopted(&two).await - 1.0).abs() < 0.5);
    // The session lives at this replica from now on.
    let before = forwards(&two, "").await;
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    assert!((forwards(&two, "").await - before).abs() < 0.5);
    assert_eq!(there.delete().await, 204);
    assert_eq!(there.post(&ping()).await.status(), 404);
    two.stop().await;
}

#[tokio::test]
async fn adopted_session_hears_of_changes_without_a_call() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let uri = json!({"uri": "stub://static/1"});
    let followed = here.request("resources/subscribe", uri.clone()).await;
    followed.expect("subscribed");
    let before = here.listen().await;
    stub.heard().await;
    one.kill().await;
    drop(before);
    eventually("the stream of the lost owner has ended", async || {
        (stub.stats().await["open_get_streams"] == 0).then_some(())
    })
    .await;
    let there = here.at(two.anonymous());
    let mut stream = there.listen().await;
    stub.heard().await;
    assert_eq!(there.text("touch_resource", uri).await, "announced");
    let notice = stream.message().await.expect("a notice");
    assert_eq!(notice["method"], "notifications/resources/updated");
    two.stop().await;
}

#[tokio::test]
async fn call_of_a_lost_owner_ends_with_an_unknown_outcome() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (id, call) = here.start_call("sleep", json!({"ms": 60_000})).await;
    let mut call = call.stream();
    let first = call.next().await.expect("a priming event");
    one.kill().await;
    let resumed = there.resume(&first.id.unwrap()).await;
    let mut rest = resumed.expect(StatusCode::OK).await.events();
    let reply = rest.message().await.expect("an error");
    assert_eq!(reply["id"], id, "{reply}");
    let text = reply["error"]["message"].as_str().unwrap();
    assert!(text.contains("outcome is unknown"), "{reply}");
    assert!(rest.message().await.is_none(), "the stream has ended");
    two.stop().await;
}

// Spec: SPEC T-30. The error of a refused element is sent behind the replies, and waits for them.
#[tokio::test]
async fn array_of_a_lost_owner_ends_with_an_error_for_each_call_and_each_refused_element() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let user = one.anonymous();
    let here = user.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    let params = json!({
        "name": "notices", "arguments": {"n": 600, "gap_ms": 100}, "_meta": {"progressToken": 1},
    });
    let array = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        {"jsonrpc": "1.0", "id": 2, "method": "ping"},
    ]);
    let mut stream = here.post(&array).await.events();
    let position = loop {
        // A comment opens the stream.
        let event = stream.next().await.expect("a notice");
        if let Some(id) = event.id {
            break id;
        }
    };
    one.kill().await;
    let there = here.at(two.anonymous());
    let resumed = there.resume(&position).await;
    let mut rest = resumed.expect(StatusCode::OK).await.events();
    let mut refused = Vec::new();
    while let Some(message) = rest.message().await {
        if message.get("error").is_some() {
            refused.push(
                message["id"]
                    .as_i64()
                    .unwrap_or_else(|| panic!("{message}")),
            );
        }
    }
    refused.sort_unstable();
    assert_eq!(refused, [1, 2]);
    two.stop().await;
}

#[tokio::test]
async fn finished_stream_is_replayed_by_the_next_owner() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let (_, call) = here.start_call("sleep", json!({"ms": 700})).await;
    let mut call = call.stream();
    let first = call.next().await.expect("a priming event").id.unwrap();
    while call.next().await.is_some() {}
    one.kill().await;
    let there = here.at(two.anonymous());
    let resumed = there.resume(&first).await.expect(StatusCode::OK).await;
    let reply = resumed.events().message().await.expect("the reply");
    assert_eq!(text_of(&reply["result"]), "slept");
    two.stop().await;
}

#[tokio::test]
async fn session_on_a_child_ends_with_its_replica_unless_restartable() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    for (keys, status) in [("", 404), ("restartable = true", 200)] {
        let [one, two] = settled(|| setup(&redis).stub_with("stub", &[], keys)).await;
        let here = one.anonymous().open("/mcp/stub").await;
        let there = here.at(two.anonymous());
        assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
        one.kill().await;
        let started = Instant::now();
        assert_eq!(there.post(&ping()).await.status(), status, "{keys}");
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
        if status == 200 {
            assert_eq!(there.text("echo", json!({"text": "ho"})).await, "ho");
        }
        two.stop().await;
    }
}

#[tokio::test]
async fn session_on_a_stream_of_the_old_transport_ends_with_its_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start_as("sse", 0, &[]).await;
    // The other replica has never spoken to the upstream.
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    one.kill().await;
    let there = here.at(two.anonymous());
    assert_eq!(there.post(&ping()).await.status(), 404);
    two.stop().await;
}

#[tokio::test]
async fn owner_that_lives_keeps_its_session_through_an_empty_redis() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    redis.kill();
    redis.start().await;
    let until = Instant::now() + 2 * LEASE;
    while Instant::now() < until {
        assert!(keeps(&there).await.contains("kept"));
    }
    assert!(adopted(&two).await < 0.5, "it was not adopted");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn one_of_many_that_ask_adopts() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let three = over_http(&redis, &stub).start().await;
    knows(&three, 3).await;
    knows(&two, 3).await;
    tokio::time::sleep(LEASE).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    one.kill().await;
    let users: Vec<_> = (0..12)
        .map(|n| here.at([&two, &three][n % 2].anonymous()))
        .collect();
    let kept = futures_util::future::join_all(users.iter().map(keeps)).await;
    assert!(kept.iter().all(|text| text.contains("kept")), "{kept:?}");
    let all = adopted(&two).await + adopted(&three).await;
    assert!((all - 1.0).abs() < 0.5, "{all}");
    two.stop().await;
    three.stop().await;
}

#[tokio::test]
async fn owner_that_was_stopped_gives_its_session_up() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    one.signal(Signal::STOP);
    let there = here.at(two.anonymous());
    let started = Instant::now();
    assert!(keeps(&there).await.contains("kept"), "adopted");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    one.signal(Signal::CONT);
    // The former owner leads to the next one.
    assert!(keeps(&here).await.contains("kept"));
    eventually("the former owner has no session", async || {
        let open = one.metric("drawbridge_sessions_open", "").await;
        (open < 0.5).then_some(())
    })
    .await;
    assert!(keeps(&there).await.contains("kept"));
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn request_that_a_stopped_owner_has_taken_breaks_off() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    // Leaves a connection to the owner.
    there.text("echo", json!({"text": "hi"})).await;
    one.signal(Signal::STOP);
    let started = Instant::now();
    assert_eq!(there.post(&ping()).await.status(), 502);
    // Until the heartbeat after its lease, and a second for its word.
    let bound = LEASE + LEASE / 3 + Duration::from_secs(2);
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    assert_eq!(there.post(&ping()).await.status(), 200);
    two.stop().await;
}

#[tokio::test]
async fn retry_safe_call_that_a_lost_owner_has_taken_is_made_again() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let make = || setup(&redis).http("stub", &stub, "retry_safe = [\"echo\"]");
    let [one, two] = settled(make).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    // Leave two connections to the owner.
    let sleep = || there.text("sleep", json!({"ms": 100}));
    tokio::join!(sleep(), sleep());
    one.signal(Signal::STOP);
    let safe = there.text("echo", json!({"text": "hi"}));
    let unsafe_call = json!({
        "jsonrpc": "2.0", "id": "other", "method": "tools/call",
        "params": {"name": "state_get", "arguments": {"key": "k"}},
    });
    let (text, other) = tokio::join!(safe, there.post(&unsafe_call));
    assert_eq!(text, "hi");
    assert_eq!(other.status(), 502);
    one.signal(Signal::CONT);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn session_of_a_lost_owner_is_503_while_redis_is_away() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    redis.kill();
    one.kill().await;
    let there = here.at(two.anonymous());
    let started = Instant::now();
    let answer = there.post(&ping()).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.header("retry-after").is_some());
    assert!(started.elapsed() < PATIENCE + Duration::from_secs(1));
    two.stop().await;
}

#[tokio::test]
async fn sessions_survive_replicas_that_are_killed_in_turn() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(over_http(&redis, &stub).start().await);
    }
    let mut users = Vec::new();
    for number in 0..12 {
        let user = replicas[number % 3].anonymous().open("/mcp/stub").await;
        let value = json!({"key": "k", "value": format!("kept {number}.")});
        user.text("state_set", value).await;
        users.push(user);
    }
    for _ in 0..4 {
        for replica in &replicas {
            knows(replica, 3).await;
        }
        tokio::time::sleep(LEASE).await;
        replicas.remove(0).kill().await;
        let started = Instant::now();
        let asked = users.iter().enumerate().map(async |(number, user)| {
            let there = user.at(replicas[number % 2].anonymous());
            eventually("the session goes on", async || {
                let status = there.post(&ping()).await.status();
                // What is on its way to the owner when it is killed breaks off.
                assert!([200, 502, 503].contains(&status), "{status}");
                (status == 200).then_some(())
            })
            .await;
            let text = keeps(&there).await;
            assert!(text.contains(&format!("kept {number}.")), "{text}");
        });
        futures_util::future::join_all(asked).await;
        assert!(started.elapsed() < Duration::from_secs(15));
        replicas.push(over_http(&redis, &stub).start().await);
    }
    for replica in replicas {
        replica.stop().await;
    }
}
