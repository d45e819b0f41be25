//! SIGTERM: what was accepted is finished. Spec: DESIGN §11.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;

use crate::harness::gateway::nothing_left;
use crate::harness::session::text_of;
use crate::harness::{Setup, eventually};

// Issue: "every accepted call gets its reply; exit within the grace period".
#[tokio::test]
async fn every_accepted_call_gets_its_reply() {
    let setup = Setup::secured().server("drain = \"10s\"");
    let mut gw = setup
        .stub_with("stub", &[], "isolation = \"principal\"")
        .start()
        .await;
    let family = gw.children();
    let users =
        join_all((0..10).map(async |n| gw.principal(&format!("user-{n}")).open("/mcp/stub").await))
            .await;
    let calls = users.iter().flat_map(|user| {
        (0..3).map(move |n| user.start_call("sleep", json!({"ms": 400 + n * 300})))
    });
    let calls = join_all(calls).await;
    let stream = users[0].listen().await;
    let started = Instant::now();
    gw.signal(Signal::TERM);
    let replies = join_all(
        calls
            .into_iter()
            .map(async |(_, exchange)| exchange.finish().await.1),
    );
    for reply in replies.await {
        assert_eq!(text_of(&reply.expect("a result")), "slept");
    }
    let mut stream = stream;
    while stream.message().await.is_some() {}
    assert_eq!(gw.exit().await, Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    nothing_left(&family).await;
}

#[tokio::test]
async fn a_draining_gateway_is_not_ready_and_takes_no_new_sessions() {
    let mut gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, exchange) = user.start_call("sleep", json!({"ms": 1500})).await;
    gw.signal(Signal::TERM);
    eventually("/ready fails", async || {
        gw.admin_text("/ready")
            .await
            .is_none_or(|(status, _)| status != 200)
            .then_some(())
    })
    .await;
    let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
    let mut actor = gw.anonymous().try_get("/mcp/stub").await;
    if actor.is_ok() {
        let answer = gw.anonymous().post("/mcp/stub", &[], &hello).await;
        assert_eq!(answer.status(), 503);
        assert!(answer.header("retry-after").is_some());
        actor = gw.anonymous().try_get("/mcp/stub").await;
    }
    drop(actor);
    assert_eq!(
        text_of(&exchange.finish().await.1.expect("a result")),
        "slept"
    );
    assert_eq!(gw.exit().await, Some(0));
}

#[tokio::test]
async fn a_call_that_never_ends_does_not_hold_the_gateway_past_its_grace() {
    let mut gw = Setup::open()
        .server("drain = \"1s\"")
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let held = user.start_call("never", json!({})).await;
    let family = gw.children();
    let started = Instant::now();
    gw.signal(Signal::TERM);
    gw.exit().await;
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
    nothing_left(&family).await;
    drop(held);
}
