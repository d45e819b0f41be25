//! Calls whose stream the upstream has closed for polling, where no more may run without a client.
//! Spec: SPEC T-27; DESIGN §3.

use http::StatusCode;
use serde_json::json;

use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Setup, eventually};

// Spec: SPEC T-27: a stream is closed for polling only where its call can go on meanwhile.
#[tokio::test]
async fn stream_stays_open_where_no_more_calls_may_run_on() {
    let stub = HttpStub::start(&["--poll", "20"]).await;
    let setup = Setup::open().toml("[sessions]\nmax_detached = 1");
    let gw = setup.http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, mut first) = user.start_call("never", json!({})).await;
    assert_eq!(first.next().await, None, "it is closed for polling");
    assert!(first.stream().retry.is_some());
    let detached = async || gw.metric("drawbridge_calls_detached_running", "").await;
    eventually("the call runs on", async || {
        (detached().await > 0.5).then_some(())
    })
    .await;
    // The only place is taken: these keep their stream until they have answered.
    for ms in [1, 300] {
        let (_, exchange) = user.start_call("sleep", json!({ "ms": ms })).await;
        let (_, reply) = exchange.finish().await;
        assert_eq!(text_of(&reply.expect("a result")), "slept");
    }
    let cancelled = json!({"requestId": id});
    user.notify("notifications/cancelled", cancelled).await;
    eventually("the place is free", async || {
        let (_, mut exchange) = user.start_call("sleep", json!({"ms": 300})).await;
        let is_closed = exchange.next().await.is_none();
        is_closed.then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn call_that_cannot_run_on_without_its_client_ends_with_an_error() {
    let stub = HttpStub::start(&[]).await;
    let setup = Setup::open()
        .toml("[sessions]\nmax_detached = 1")
        .server("sse_after = \"20ms\"");
    let gw = setup.http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let begin_and_leave = async |counter: &'static str| {
        let (id, call) = user.start_call("sleep", json!({"ms": 60_000})).await;
        let first = call.stream().next().await.expect("a priming event").id;
        eventually("the call is without its client", async || {
            (gw.metric(counter, "").await > 0.5).then_some(())
        })
        .await;
        (id, first.unwrap())
    };
    begin_and_leave("drawbridge_calls_detached_running").await;
    let (id, first) = begin_and_leave("drawbridge_calls_detach_refused_total").await;
    let resumed = user.resume(&first).await.expect(StatusCode::OK).await;
    let mut rest = resumed.events();
    let reply = rest.message().await.expect("an error");
    assert_eq!(reply["id"], id, "{reply}");
    let text = reply["error"]["message"].as_str().expect("an error");
    assert!(text.contains("its outcome is unknown"), "{text}");
    assert_eq!(rest.message().await, None, "the stream has ended");
    gw.stop().await;
}
