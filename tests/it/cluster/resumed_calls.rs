//! Streams of calls that were resumed at a replica which has passed the resumption on, where the owner is lost.
//! Spec: DESIGN §8.1; `docs/adr/0027`.

use std::time::Instant;

use http::StatusCode;
use rustix::process::Signal;
use serde_json::json;

use super::adoption::{over_http, settled, setup};
use super::pair;
use super::passed_calls::{AT_ONCE, calls_lost, is_unknown, replica};
use crate::harness::events::EventStream;
use crate::harness::redis;
use crate::harness::upstream::HttpStub;
use crate::harness::{Session, eventually};

/// Starts a call that lasts, leaves its stream, and resumes the stream: its id, the first id of the stream, and the
/// stream.
async fn resumed(user: &Session, ms: u64) -> (i64, String, EventStream) {
    let (id, call) = user.start_call("sleep", json!({ "ms": ms })).await;
    let first = call.stream().next().await.expect("a priming event");
    let first = first.id.unwrap();
    let resumed = user.resume(&first).await.expect(StatusCode::OK).await;
    (id, first, resumed.events())
}

#[tokio::test]
async fn resumed_stream_whose_owner_is_killed_ends_with_its_error_at_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = pair(|| replica(&redis, &stub)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let (id, _, mut rest) = resumed(&there, 60_000).await;
    let mut listening = there.listen().await;
    let killed = Instant::now();
    one.kill().await;
    let reply = rest.message().await.expect("an error");
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    assert_eq!(reply["id"], id, "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    assert!(rest.next().await.is_none(), "the stream has ended");
    assert_eq!(listening.message().await, None, "it is of no call");
    assert!((calls_lost(&two).await - 1.0).abs() < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn resumed_stream_whose_owner_is_stopped_ends_with_its_error() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let (id, _, mut rest) = resumed(&there, 60_000).await;
    one.signal(Signal::STOP);
    let reply = rest.message().await.expect("an error");
    assert_eq!(reply["id"], id, "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    one.signal(Signal::CONT);
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn resumed_stream_of_a_retry_safe_call_breaks_off_and_its_call_is_made_again() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let make = || setup(&redis).http("stub", &stub, "retry_safe = [\"sleep\"]");
    let [one, two] = settled(make).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let (id, first, mut rest) = resumed(&there, 3_000).await;
    one.kill().await;
    assert_eq!(rest.message().await, None, "it breaks off");
    let again = there.resume(&first).await.expect(StatusCode::OK).await;
    let reply = again.events().message().await.expect("a reply");
    assert_eq!(reply["id"], id, "{reply}");
    assert_eq!(reply["result"]["content"][0]["text"], "slept", "{reply}");
    assert_eq!(stub.counted("tools/call").await, 2);
    two.stop().await;
}

// 64 KiB are what a replica keeps of a request that it passes on.
#[tokio::test]
async fn call_whose_request_is_too_long_to_be_kept_gets_its_error_at_once() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = pair(|| replica(&redis, &stub)).await;
    let there = one.anonymous().open("/mcp/stub").await.at(two.anonymous());
    let arguments = json!({"ms": 60_000, "padding": "x".repeat(100_000)});
    let (id, call) = there.start_call("sleep", arguments).await;
    let mut call = call.stream();
    call.next().await.expect("a priming event");
    eventually("the upstream has the call", async || {
        (stub.counted("tools/call").await > 0).then_some(())
    })
    .await;
    let killed = Instant::now();
    one.kill().await;
    let reply = call.message().await.expect("an error");
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    assert_eq!(reply["id"], id, "{reply}");
    assert!(is_unknown(&reply), "{reply}");
    two.stop().await;
}
