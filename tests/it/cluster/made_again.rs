//! Calls of tools in `retry_safe` whose stream had begun when their owner was lost: the next owner makes them again once
//! their stream is resumed. Spec: DESIGN §8.1; `docs/adr/0027`.

use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::json;

use super::adoption::{settled, setup};
use super::passed_calls::is_unknown;
use crate::harness::redis::{self, RedisServer};
use crate::harness::session::{Exchange, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};

/// A replica before a stub whose tool `sleep` may be called twice.
fn safe(redis: &RedisServer, stub: &HttpStub) -> Setup {
    setup(redis).http("stub", stub, "retry_safe = [\"sleep\"]")
}

/// Starts a call of `sleep` that becomes a stream; its id, and the first id of the stream.
async fn begun(user: &Session, ms: u64) -> (i64, String) {
    let (id, call) = user.start_call("sleep", json!({ "ms": ms })).await;
    let first = call.stream().next().await.expect("a priming event");
    (id, first.id.unwrap())
}

async fn repeated(gateway: &Gateway) -> f64 {
    let name = "drawbridge_cluster_calls_repeated_total";
    gateway.metric(name, "").await
}

#[tokio::test]
async fn retry_safe_call_of_a_lost_owner_is_made_again_on_its_stream() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| safe(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let arguments = json!({"ms": 2000});
    // Of a client of the owner, and of one whose call was passed on.
    let (first, own) = here.start_call("sleep", arguments.clone()).await;
    let (second, passed_on) = there.start_call("sleep", arguments).await;
    let (third, not_safe) = here.start_call("never", json!({})).await;
    let mut streams = [own, passed_on, not_safe].map(Exchange::stream);
    let mut places = Vec::new();
    for stream in &mut streams {
        places.push(stream.next().await.expect("a priming event").id.unwrap());
    }
    one.kill().await;
    let killed = Instant::now();
    for stream in &mut streams {
        assert_eq!(stream.message().await, None, "the stream breaks off");
    }
    for (place, id) in places.iter().zip([first, second, third]) {
        let resumed = there.resume(place).await.expect(StatusCode::OK).await;
        let mut rest = resumed.events();
        let reply = rest.message().await.expect("a reply");
        assert_eq!(reply["id"], id, "{reply}");
        if id == third {
            assert!(is_unknown(&reply), "{reply}");
        } else {
            assert_eq!(reply["result"]["content"][0]["text"], "slept", "{reply}");
        }
        assert_eq!(rest.message().await, None, "the stream has ended");
        assert!(killed.elapsed() < Duration::from_secs(10));
    }
    assert!((repeated(&two).await - 2.0).abs() < 0.5);
    // Each of the two twice, and the third once.
    assert_eq!(stub.counted("tools/call").await, 5);
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    two.stop().await;
}

#[tokio::test]
async fn repeated_calls_take_no_place_of_detached_ones_while_their_streams_are_read() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let make = || safe(&redis, &stub).toml("[sessions]\nmax_detached = 1");
    let [one, two] = settled(make).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let begun = async || {
        // Long enough that neither ends before its owner is killed, also on a loaded machine.
        let (id, call) = here.start_call("sleep", json!({"ms": 5000})).await;
        let mut call = call.stream();
        let first = call.next().await.expect("a priming event").id.unwrap();
        (id, first, call)
    };
    let calls = [begun().await, begun().await];
    one.kill().await;
    let resumed = calls.map(async |(id, first, _)| {
        let resumed = there.resume(&first).await.expect(StatusCode::OK).await;
        let mut rest = resumed.events();
        let reply = rest.message().await.expect("a reply");
        assert_eq!(reply["id"], id, "{reply}");
        assert_eq!(text_of(&reply["result"]), "slept", "{reply}");
    });
    futures_util::future::join_all(resumed).await;
    assert!((repeated(&two).await - 2.0).abs() < 0.5);
    let detached = two.metric("drawbridge_calls_detached_total", "").await;
    assert!(detached < 0.5, "{detached}");
    two.stop().await;
}

#[tokio::test]
async fn deleted_session_makes_no_lost_call_again() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| safe(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, first) = begun(&here, 60_000).await;
    one.kill().await;
    assert_eq!(there.delete().await, 204, "it was adopted for that");
    assert_eq!(there.resume(&first).await.status(), 404);
    assert!(repeated(&two).await < 0.5);
    assert_eq!(stub.counted("tools/call").await, 1);
    two.stop().await;
}
