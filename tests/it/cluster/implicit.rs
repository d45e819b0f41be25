//! The implicit session of a modern client before legacy upstreams: one replica has it for all. Spec: DESIGN §8.1;
//! `docs/adr/0024`, `docs/adr/0027`.

use std::time::{Duration, Instant};

use drawbridge::redis_client::cmd;
use futures_util::future::join_all;
use http::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::adoption::{LEASE, adopted, over_http, settled, setup};
use super::{SECRET, forwards, knows, pair, replica, replica_with, tables};
use crate::harness::events::EventStream;
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;
use crate::tasks::hosted::MODERN;

/// The key of each record in Redis. A record with only an epoch left does not count.
async fn records(redis: &RedisServer) -> Vec<String> {
    let client = redis.client().await;
    let mut keys = cmd("KEYS");
    keys.arg("drawbridge:*:record");
    let keys: Vec<String> = client.command("keys", &keys).await.unwrap();
    let mut whole = Vec::new();
    for key in keys {
        let mut length = cmd("STRLEN");
        length.arg(&key);
        let length: usize = client.command("length", &length).await.unwrap();
        if length > HEAD {
            whole.push(key);
        }
    }
    whole
}

/// Waits until a replica has begun to drain.
async fn drains(gateway: &Gateway) {
    eventually("the drain has begun", async || {
        let ready = gateway.admin_text("/ready").await;
        ready.is_none_or(|(status, _)| status != 200).then_some(())
    })
    .await;
}

/// Most bytes of a record without a session, such as the rest of a removed one.
const HEAD: usize = 20;

fn user(gateway: &Gateway, path: &str) -> Modern {
    Modern::new(gateway.anonymous(), path)
}

/// What a tool says.
async fn say(user: &Modern, tool: &str, arguments: Value) -> String {
    text_of(&user.call(tool, arguments).await.unwrap()).to_owned()
}

async fn pid(user: &Modern) -> String {
    say(user, "pid", json!({})).await
}

async fn set(user: &Modern, value: &str) {
    say(user, "state_set", json!({"key": "k", "value": value})).await;
}

/// A subscription of changed tools, after its acknowledgement.
async fn listening(user: &Modern) -> EventStream {
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let message = user.request(&json!("7"), "subscriptions/listen", wanted);
    let answer = user.post(&message).await.expect(StatusCode::OK).await;
    let mut events = answer.events();
    let ack = events.message().await.expect("an acknowledgement");
    assert_eq!(ack["params"]["notifications"]["toolsListChanged"], true);
    events
}

async fn get(user: &Modern) -> String {
    say(user, "state_get", json!({"key": "k"})).await
}

#[tokio::test]
async fn principal_has_one_child_at_three_replicas() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || Setup::secured().toml(&tables(&redis, SECRET, ""));
    let mut all = vec![make().stub("stub", &[]).start().await];
    for _ in 0..2 {
        let next = make().stub("stub", &[]).trusting(&all[0]).start().await;
        all.push(next);
    }
    for gateway in &all {
        knows(gateway, 3).await;
    }
    let users = |name: &str| -> Vec<Modern> {
        let audiences: Vec<String> = all
            .iter()
            .map(|gw| format!("{}/mcp/stub", gw.url))
            .collect();
        let token = all[0].issuer().mint(name, &audiences, "mcp:tools");
        let of = |gw: &Gateway| Modern::new(gw.bearer(&token), "/mcp/stub");
        all.iter().map(of).collect()
    };
    let (alice, bob) = (users("alice"), users("bob"));
    let mut pids = Vec::new();
    for users in [&alice, &bob] {
        // All of them find no owner.
        let mut found = join_all(users.iter().chain(users).map(pid)).await;
        for user in users {
            found.push(pid(user).await);
        }
        found.dedup();
        assert_eq!(found.len(), 1, "one child: {found:?}");
        pids.extend(found);
    }
    assert_ne!(pids[0], pids[1], "two users never meet");
    set(&alice[0], "alice's").await;
    set(&bob[0], "bob's").await;
    for number in 0..3 {
        assert!(get(&alice[number]).await.contains("alice's"));
        assert!(get(&bob[number]).await.contains("bob's"));
    }
    for gateway in all {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn call_is_recorded_at_its_owner_alone() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    pid(&here).await;
    let call = json!({"name": "echo", "arguments": {"text": "hi"}});
    let message = there.request(&json!(5), "tools/call", call);
    let answer = there.post(&message).await.expect(StatusCode::OK).await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    let lines = |gateway: &Gateway| {
        let mut records = gateway.log_records();
        records.retain(|one| one["target"] == "access" && one["request_id"] == *id);
        records
    };
    eventually("the access line", async || lines(&one).pop()).await;
    two.anonymous().get("/nothing", &[]).await;
    eventually("a later line", async || {
        let mut records = two.log_records();
        records.retain(|one| one["target"] == "access" && one["path"] == "other");
        records.pop()
    })
    .await;
    assert!(lines(&two).is_empty(), "{:?}", lines(&two));
    // The owner sees a client leave.
    let running = async || one.metric("drawbridge_calls_running", "").await;
    let leaving = tokio::spawn(async move { there.call("sleep", json!({"ms": 60_000})).await });
    eventually("the call runs", async || {
        (running().await > 0.5).then_some(())
    })
    .await;
    leaving.abort();
    eventually("the call has ended", async || {
        (running().await < 0.5).then_some(())
    })
    .await;
    assert!(forwards(&one, "").await < 0.5, "the owner forwards nothing");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn subscription_hears_of_changes_at_another_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    pid(&here).await;
    let mut events = listening(&there).await;
    here.call("change_tools", json!({})).await.unwrap();
    let told = events.message().await.expect("a change");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    drop(events);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn requests_to_modern_upstreams_are_not_forwarded() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let modern = HttpStub::start(&MODERN).await;
    let make = || replica(&redis).http("newer", &modern, "era = \"modern\"");
    let [one, two] = pair(make).await;
    let (here, there) = (user(&one, "/mcp"), user(&two, "/mcp"));
    // The owner of what is legacy.
    say(&here, "stub__pid", json!({})).await;
    for _ in 0..3 {
        let said = say(&there, "newer__echo", json!({"text": "hi"})).await;
        assert_eq!(said, "hi");
    }
    let list = user(&two, "/mcp/newer").send("tools/list", json!({})).await;
    assert!(list.is_ok(), "{list:?}");
    assert!(forwards(&two, "").await < 0.5, "none needs an owner");
    assert_eq!(records(&redis).await.len(), 1, "of the legacy upstream");
    let before = say(&here, "stub__pid", json!({})).await;
    assert_eq!(say(&there, "stub__pid", json!({})).await, before);
    let forwarded = forwards(&two, "ok").await;
    assert!(forwarded > 0.5);
    // A merged list needs the session at the legacy upstream.
    let list = there.send("tools/list", json!({})).await.unwrap();
    assert!(list["tools"].as_array().unwrap().len() > 2);
    assert!(forwards(&two, "ok").await > forwarded + 0.5);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn replica_learns_from_the_owner_that_an_upstream_is_modern() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let modern = HttpStub::start(&MODERN).await;
    let make = || {
        Setup::open()
            .toml(&tables(&redis, SECRET, ""))
            .http("newer", &modern, "")
    };
    let [one, two] = pair(make).await;
    let (here, there) = (user(&one, "/mcp/newer"), user(&two, "/mcp/newer"));
    let echo = json!({"text": "hi"});
    assert_eq!(say(&here, "echo", echo.clone()).await, "hi");
    for _ in 0..4 {
        let call = json!({"name": "echo", "arguments": echo});
        let message = there.request(&json!(5), "tools/call", call);
        let answer = there.post(&message).await.expect(StatusCode::OK).await;
        assert_eq!(answer.header("drawbridge-ownerless"), None);
    }
    assert!(forwards(&two, "").await < 1.5, "none but the first");
    one.stop().await;
    two.stop().await;
}

// The replica that keeps a parked call says so too, in a header that is for replicas alone.
#[tokio::test]
async fn client_is_not_told_that_its_parked_call_needs_no_owner() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let modern = HttpStub::start(&["--era", "modern"]).await;
    let make = || {
        Setup::open()
            .toml(&tables(&redis, SECRET, ""))
            .http("newer", &modern, "")
    };
    let [one, two] = pair(make).await;
    let (here, there) = (user(&one, "/mcp/newer"), user(&two, "/mcp/newer"));
    // The upstream runs the tool as a task, so that the call that asks waits in one replica.
    let asked = here.call("errand", json!({"ask": 1})).await.unwrap();
    let (key, _) = asked["inputRequests"]
        .as_object()
        .and_then(|questions| questions.iter().next())
        .expect("a question");
    let retry = json!({
        "name": "errand", "arguments": {"ask": 1}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "ada"}}},
    });
    let retry = there.request(&json!(5), "tools/call", retry);
    let answer = there.post(&retry).await.expect(StatusCode::OK).await;
    assert_eq!(answer.header("drawbridge-ownerless"), None);
    assert!(answer.text().await.contains("ada"));
    assert!(
        forwards(&two, "ok").await > 0.5,
        "to the keeper of the call"
    );
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn implicit_session_at_an_http_upstream_is_continued() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    set(&here, "kept").await;
    assert!(get(&there).await.contains("kept"));
    one.kill().await;
    let started = Instant::now();
    assert!(get(&there).await.contains("kept"), "the same session");
    assert!(started.elapsed() < LEASE + Duration::from_secs(2));
    assert!((adopted(&two).await - 1.0).abs() < 0.5);
    assert!(get(&there).await.contains("kept"));
    two.stop().await;
}

#[tokio::test]
async fn child_of_a_lost_replica_is_begun_again_at_one_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    for keys in ["", "restartable = true"] {
        let make = || setup(&redis).stub_with("stub", &[], keys);
        let [one, two] = settled(make).await;
        let three = make().start().await;
        knows(&three, 3).await;
        knows(&two, 3).await;
        tokio::time::sleep(LEASE).await;
        let here = user(&one, "/mcp/stub");
        let left = [user(&two, "/mcp/stub"), user(&three, "/mcp/stub")];
        let lost = pid(&here).await;
        assert_eq!(pid(&left[0]).await, lost);
        one.kill().await;
        let first = left[0].call("pid", json!({})).await;
        if keys.is_empty() {
            let said = first.expect_err("its state is lost").to_string();
            assert!(said.contains("lost with its replica"), "{said}");
        } else {
            assert_ne!(text_of(&first.unwrap()), lost);
        }
        let next = pid(&left[0]).await;
        assert_ne!(next, lost);
        for user in &left {
            assert_eq!(pid(user).await, next, "{keys}");
        }
        two.stop().await;
        three.stop().await;
    }
}

#[tokio::test]
async fn stopped_replica_leaves_its_implicit_sessions_to_others() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    let first = pid(&here).await;
    assert_eq!(pid(&there).await, first);
    one.stop().await;
    let started = Instant::now();
    assert_ne!(pid(&there).await, first);
    // Its lease need not end first.
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    two.stop().await;
}

#[tokio::test]
async fn draining_replica_leaves_its_implicit_sessions_between_calls() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [mut one, two] = pair(|| replica(&redis)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    let first = pid(&here).await;
    let calling = user(&two, "/mcp/stub");
    let call = tokio::spawn(async move { say(&calling, "sleep", json!({"ms": 3000})).await });
    eventually("the call runs", async || {
        let running = one.metric("drawbridge_calls_running", "").await;
        (running > 0.5).then_some(())
    })
    .await;
    one.signal(Signal::TERM);
    // At once or a little later: the signal is on its way.
    let next = eventually("another replica has the next child", async || {
        let next = pid(&there).await;
        (next != first).then_some(next)
    })
    .await;
    assert_eq!(pid(&there).await, next);
    assert_eq!(call.await.unwrap(), "slept", "running calls go on");
    assert_eq!(one.exit().await, Some(0));
    assert_eq!(pid(&there).await, next);
    two.stop().await;
}

#[tokio::test]
async fn implicit_session_at_an_http_upstream_is_handed_over() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let make = || {
        let setup = Setup::open().toml(&tables(&redis, SECRET, "lease = \"30s\""));
        setup.http("stub", &stub, "")
    };
    let [mut one, two] = pair(make).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    set(&here, "kept").await;
    let mut events = listening(&here).await;
    one.signal(Signal::TERM);
    let asked = Instant::now();
    assert!(get(&there).await.contains("kept"), "the same session");
    while events.message().await.is_some() {}
    listening(&there).await;
    assert!(get(&there).await.contains("kept"));
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(one.exit().await, Some(0));
    assert!(get(&there).await.contains("kept"));
    let name = "drawbridge_cluster_hand_overs_total";
    assert!((two.metric(name, "taken_over").await - 1.0).abs() < 0.5);
    assert!(adopted(&two).await < 0.5, "no replica was lost");
    two.stop().await;
}

// The subscription does not delay the drain of the entry replica.
#[tokio::test]
async fn forwarded_subscription_ends_with_the_drain_of_its_entry_replica() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, mut two] = pair(|| replica(&redis).server("drain = \"60s\"")).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    pid(&here).await;
    let mut events = listening(&there).await;
    two.signal(Signal::TERM);
    assert_eq!(events.message().await, None);
    assert!((500..=3000).contains(&events.retry.expect("when to come back")));
    assert_eq!(two.exit().await, Some(0));
    one.stop().await;
}

#[tokio::test]
async fn implicit_sessions_are_served_where_all_replicas_drain() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [mut one, mut two] = pair(|| replica(&redis)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    let first = pid(&here).await;
    assert_eq!(pid(&there).await, first);
    // Hold both drains.
    let busy = [&one, &two].map(|gateway| {
        let caller = Modern::with(gateway.anonymous(), "/mcp/stub", json!({"roots": {}}));
        tokio::spawn(async move { say(&caller, "sleep", json!({"ms": 4000})).await })
    });
    // Their session is another one, at either replica.
    eventually("both calls run", async || {
        let at_one = one.metric("drawbridge_calls_running", "").await;
        let at_two = two.metric("drawbridge_calls_running", "").await;
        (at_one + at_two > 1.5).then_some(())
    })
    .await;
    for gateway in [&one, &two] {
        gateway.signal(Signal::TERM);
    }
    drains(&one).await;
    drains(&two).await;
    let asked = Instant::now();
    pid(&there).await;
    assert!(
        asked.elapsed() < Duration::from_secs(3),
        "{:?}",
        asked.elapsed()
    );
    for call in busy {
        assert_eq!(call.await.unwrap(), "slept");
    }
    assert_eq!(one.exit().await, Some(0));
    assert_eq!(two.exit().await, Some(0));
}

#[tokio::test]
async fn draining_replica_begins_no_implicit_session() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [mut one, two] = pair(|| replica(&redis)).await;
    let here = user(&one, "/mcp/stub");
    pid(&here).await;
    // Leaves a connection: none is accepted once the drain has begun.
    let known = one.anonymous();
    known.get("/nothing", &[]).await.text().await;
    // Holds the drain.
    let call = tokio::spawn(async move { say(&here, "sleep", json!({"ms": 4000})).await });
    eventually("the call runs", async || {
        let running = one.metric("drawbridge_calls_running", "").await;
        (running > 0.5).then_some(())
    })
    .await;
    one.signal(Signal::TERM);
    drains(&one).await;
    // Of another declaration no replica has a session yet.
    let stranger = |actor| Modern::with(actor, "/mcp/stub", json!({"roots": {}}));
    let child = pid(&stranger(known)).await;
    let before = forwards(&two, "").await;
    let there = stranger(two.anonymous());
    assert_eq!(pid(&there).await, child);
    let after = forwards(&two, "").await;
    assert!((after - before).abs() < 0.5, "it lives here");
    assert_eq!(call.await.unwrap(), "slept");
    assert_eq!(one.exit().await, Some(0));
    assert_eq!(pid(&there).await, child);
    two.stop().await;
}

// Its client comes back at another replica.
#[tokio::test]
async fn subscription_of_an_implicit_session_ends_with_the_drain() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [mut one, two] = pair(|| replica(&redis).server("drain = \"60s\"")).await;
    let here = user(&one, "/mcp/stub");
    pid(&here).await;
    let mut events = listening(&here).await;
    let begun = Instant::now();
    one.signal(Signal::TERM);
    let end = events.message().await.expect("the end of the subscription");
    assert_eq!(end["result"]["resultType"], "complete", "{end}");
    assert_eq!(one.exit().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(30));
    two.stop().await;
}

#[tokio::test]
async fn idle_implicit_session_has_no_owner_any_more() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis).toml("[sessions]\nidle = \"1s\"")).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    pid(&here).await;
    assert_eq!(records(&redis).await.len(), 1);
    eventually("the record is gone", async || {
        records(&redis).await.is_empty().then_some(())
    })
    .await;
    // Either may have the next one, which both use.
    let next = pid(&there).await;
    assert_eq!(pid(&here).await, next);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn known_owner_is_asked_while_redis_is_away() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"2s\"")).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    let child = pid(&here).await;
    assert_eq!(pid(&there).await, child);
    redis.kill();
    assert_eq!(pid(&here).await, child, "what one owns goes on");
    assert_eq!(pid(&there).await, child, "what is known is asked");
    // Of another declaration nothing is known.
    let stranger = Modern::with(two.anonymous(), "/mcp/stub", json!({"roots": {}}));
    let call = json!({"name": "pid", "arguments": {}});
    let message = stranger.request(&json!(1), "tools/call", call);
    let answer = stranger.post(&message).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.header("retry-after").is_some());
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn owner_of_an_implicit_session_that_was_paused_gives_it_up() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let (here, there) = (user(&one, "/mcp/stub"), user(&two, "/mcp/stub"));
    set(&here, "kept").await;
    one.signal(Signal::STOP);
    assert!(get(&there).await.contains("kept"), "adopted");
    one.signal(Signal::CONT);
    // The former owner leads to the next one.
    assert!(get(&here).await.contains("kept"));
    eventually("the former owner has none", async || {
        let open = one.metric("drawbridge_implicit_sessions_open", "").await;
        (open < 0.5).then_some(())
    })
    .await;
    assert!(get(&there).await.contains("kept"));
    one.stop().await;
    two.stop().await;
}
