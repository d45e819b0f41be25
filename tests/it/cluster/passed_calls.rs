//! Calls that one replica has passed on, where their owner is lost or the replica stops. Spec: DESIGN §8.1;
//! `docs/adr/0027`, `docs/adr/0028`.

use std::time::{Duration, Instant};

use http::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::adoption::{LEASE, over_http, settled};
use super::{SECRET, pair, tables};
use crate::harness::redis::{self, RedisServer};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

/// Far above the time in which a lost owner is noticed by its connection: no test waits for its end.
const LONG_LEASE: &str = "lease = \"30s\"";
/// Far below it.
pub(super) const AT_ONCE: Duration = Duration::from_secs(2);

/// A replica before a stub over HTTP, whose sessions no other one adopts.
pub(super) fn replica(redis: &RedisServer, stub: &HttpStub) -> Setup {
    let setup = Setup::open().toml(&tables(redis, SECRET, LONG_LEASE));
    setup.http("stub", stub, "")
}

pub(super) fn is_unknown(reply: &Value) -> bool {
    let message = reply["error"]["message"].as_str();
    message.is_some_and(|text| text.contains("outcome is unknown"))
}

pub(super) async fn calls_lost(gateway: &Gateway) -> f64 {
    gateway
        .metric("drawbridge_cluster_calls_lost_total", "")
        .await
}

/// A modern client whose calls bring progress.
fn modern(gateway: &Gateway) -> Modern {
    let user = Modern::new(gateway.anonymous(), "/mcp/stub");
    user.meta(json!({"progressToken": 1}))
}

#[tokio::test]
async fn passed_on_call_whose_owner_is_killed_gets_its_error_at_once() {
    let stub = HttpStub::start(&[]).await;
    // Older clients get no event before the first message, and cannot resume.
    for revision in ["2025-11-25", "2025-06-18"] {
        let Some(redis) = redis::server(&[]).await else {
            return;
        };
        let [one, two] = pair(|| replica(&redis, &stub)).await;
        let here = one.anonymous();
        let here = here.open_as("/mcp/stub", revision, json!({})).await;
        let there = here.at(two.anonymous());
        let (id, call) = there.start_call("sleep", json!({"ms": 60_000})).await;
        let mut call = call.stream();
        let killed = Instant::now();
        one.kill().await;
        let reply = call.message().await.expect("an error");
        assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
        assert_eq!(reply["id"], id, "{reply}");
        assert!(is_unknown(&reply), "{reply}");
        assert!(call.next().await.is_none(), "the stream has ended");
        assert!((calls_lost(&two).await - 1.0).abs() < 0.5);
        let line = eventually("the access line", async || {
            let records = two.log_records().into_iter();
            let mut lines = records.filter(|one| one["outcome"] == "owner_unreachable");
            lines.next()
        })
        .await;
        assert_eq!(line["target"], "access", "{line}");
        two.stop().await;
    }
}

#[tokio::test]
async fn error_of_a_lost_call_is_the_same_when_its_stream_is_resumed() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, call) = there.start_call("sleep", json!({"ms": 60_000})).await;
    let mut call = call.stream();
    let first = call.next().await.expect("a priming event").id.unwrap();
    one.kill().await;
    let told = call.message().await.expect("an error");
    assert!(is_unknown(&told), "{told}");
    let resumed = there.resume(&first).await.expect(StatusCode::OK).await;
    let mut rest = resumed.events();
    assert_eq!(rest.message().await.as_ref(), Some(&told));
    assert_eq!(rest.message().await, None);
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    two.stop().await;
}

#[tokio::test]
async fn passed_on_call_whose_owner_is_stopped_gets_its_error_without_resuming() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let (id, call) = there.start_call("sleep", json!({"ms": 60_000})).await;
    let mut call = call.stream();
    one.signal(Signal::STOP);
    let stopped = Instant::now();
    let reply = call.message().await.expect("an error");
    assert_eq!(reply["id"], id, "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    let bound = LEASE + LEASE / 3 + Duration::from_secs(3);
    assert!(stopped.elapsed() < bound, "{:?}", stopped.elapsed());
    // It has given the session up before the error was said.
    one.signal(Signal::CONT);
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn passed_on_call_of_a_modern_client_gets_its_error_at_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = pair(|| replica(&redis, &stub)).await;
    let (here, there) = (modern(&one), modern(&two));
    here.call("pid", json!({})).await.expect("the owner");
    let arguments = json!({"n": 1000, "gap_ms": 100});
    let mut call = there.stream("notices", arguments).await;
    call.message().await.expect("a notice");
    let killed = Instant::now();
    one.kill().await;
    let reply = loop {
        let message = call.message().await.expect("an error");
        if message["method"].is_null() {
            break message;
        }
    };
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    assert_eq!(reply["id"], "s", "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    assert!(call.next().await.is_none(), "the stream has ended");
    two.stop().await;
}

#[tokio::test]
async fn modern_call_that_outlasts_the_drain_of_its_entry_replica_gets_an_error() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let modern_stub = HttpStub::start(&["--era", "modern"]).await;
    let make = || {
        let setup = replica(&redis, &stub).http("new", &modern_stub, "");
        setup.server("drain = \"1s\"")
    };
    let [one, mut two] = pair(make).await;
    modern(&one).call("pid", json!({})).await.expect("an owner");
    let streaming = modern(&two);
    let arguments = json!({"n": 1000, "gap_ms": 100});
    let mut streaming = streaming.stream("notices", arguments).await;
    streaming.message().await.expect("a notice");
    let waiting = ["/mcp/stub", "/mcp/new"].map(|path| {
        let user = Modern::new(two.anonymous(), path);
        tokio::spawn(async move { user.call("never", json!({})).await })
    });
    eventually("all calls run", async || {
        let at_one = one.metric("drawbridge_calls_running", "").await;
        let at_two = two.metric("drawbridge_calls_running", "").await;
        (at_one > 1.5 && at_two > 0.5).then_some(())
    })
    .await;
    two.signal(Signal::TERM);
    for call in waiting {
        let said = call.await.unwrap();
        let said = said.unwrap_or_else(|error| error).to_string();
        assert!(said.contains("outcome is unknown"), "{said}");
    }
    let reply = loop {
        let message = streaming.message().await.expect("an error");
        if message["method"].is_null() {
            break message;
        }
    };
    assert_eq!(reply["id"], "s", "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    assert_eq!(two.exit().await, Some(0));
    eventually("the owner has no call left", async || {
        let running = one.metric("drawbridge_calls_running", "").await;
        (running < 0.5).then_some(())
    })
    .await;
    one.stop().await;
}
