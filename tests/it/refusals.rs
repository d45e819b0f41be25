//! Refusals of requests that cannot be served now: a request waits, and is then refused in a way that ends no session.
//! The client here is as strict as Python's: a status of 4xx or 5xx ends its session. Spec: SPEC T-17, O-01.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::connection::EventSession;
use crate::harness::http::{everything, initialize};
use crate::harness::session::{Reply, reply_of, text_of};
use crate::harness::socket::Socket;
use crate::harness::{Session, Setup, eventually, within};
use crate::modern::Modern;

/// A session that is over with the first status of 4xx or 5xx.
struct Strict(Session);

impl Strict {
    async fn request(&self, id: i64, method: &str, params: Value) -> Reply {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.post(message).await
    }

    async fn call(&self, id: i64, tool: &str, arguments: Value) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        self.request(id, "tools/call", params).await
    }

    async fn post(&self, message: Value) -> Reply {
        let answer = self.0.post(&message).await;
        assert!(
            answer.status() < 400,
            "the session ends: {}",
            answer.status()
        );
        reply_of(answer.message().await)
    }

    async fn stats(&self, id: i64) -> Value {
        let stats = self.call(id, "stats", json!({})).await.unwrap();
        serde_json::from_str(text_of(&stats)).unwrap()
    }
}

/// The refusal of a request that may come again.
fn assert_refused(reply: Reply) {
    let error = reply.expect_err("a refusal");
    let after = error["data"]["retryAfterMs"].as_u64();
    assert!(after > Some(0), "{error}");
}

#[tokio::test]
async fn every_parallel_call_of_a_session_is_answered() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = Strict(gw.anonymous().open("/mcp/stub").await);
    let begun = Instant::now();
    let quick = join_all((1000..1256).map(|id| user.call(id, "echo", json!({"n": id})))).await;
    assert_eq!(quick.iter().filter(|reply| reply.is_ok()).count(), 256);
    let waited = gw.metric("drawbridge_calls_waited_total", "").await;
    // On a slow machine the rate of 100 in a second is enough for what passes the burst of 200.
    assert!(waited > 0.5 || begun.elapsed() > Duration::from_millis(500));
    let slow = (2000..2100).map(|id| user.call(id, "sleep", json!({"ms": 1000})));
    let slow = join_all(slow).await;
    assert_eq!(slow.iter().filter(|reply| reply.is_ok()).count(), 100);
    assert!(gw.metric("drawbridge_calls_refused_total", "").await < 0.5);
    gw.stop().await;
}

#[tokio::test]
async fn a_refused_request_leaves_its_session_alive() {
    let setup = Setup::open()
        .toml("[limits]\ncalls_per_session = 1\nrate = \"9/h\"\ncall_wait = \"50ms\"\nbody = \"4KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = Strict(gw.anonymous().open("/mcp/stub").await);
    let (id, held) = user.0.start_call("never", json!({})).await;
    assert_refused(user.call(id, "echo", json!({})).await);
    assert_refused(user.call(20, "echo", json!({})).await);
    for id in 21..40 {
        assert_refused(user.call(id, "echo", json!({})).await);
    }
    assert_refused(
        user.call(41, "echo", json!({"text": "x".repeat(9000)}))
            .await,
    );
    // A ping never waits, and is answered above the rate limit too.
    assert_eq!(user.request(42, "ping", json!({})).await, Ok(json!({})));
    drop(held);
    gw.stop().await;
}

#[tokio::test]
async fn messages_without_an_id_are_taken_above_the_rate() {
    let setup = Setup::open()
        .toml("[limits]\nrate = \"3/h\"\ncall_wait = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    // The burst is six requests, and the handshake took two.
    let (_, mut asking) = user.start_call("ask_form", json!({})).await;
    let question = asking.next().await.expect("a question");
    let (id, never) = user.start_call("never", json!({})).await;
    for _ in 0..2 {
        user.request("tools/list", json!({})).await.unwrap();
    }
    user.notify("notifications/roots/list_changed", json!({}))
        .await;
    let dropped = gw.metric("drawbridge_messages_dropped_total", "").await;
    assert!((dropped - 1.0).abs() < 0.1, "{dropped}");
    user.answer(&question, json!({"action": "decline"})).await;
    asking.finish().await.1.expect("the call goes on");
    user.notify("notifications/cancelled", json!({"requestId": id}))
        .await;
    assert_eq!(never.stream().message().await, None, "cancelled");
    gw.stop().await;
}

// Spec: SPEC L-03. Else the client could not be asked for as long as its session lives.
#[tokio::test]
async fn client_is_initialized_above_the_rate() {
    let setup = Setup::open()
        .toml("[limits]\nrate = \"1/h\"\ncall_wait = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let actor = gw.anonymous();
    // The burst is two requests.
    let hello = initialize(1, "2025-11-25", &everything());
    let opened = actor.post("/mcp/stub", &[], &hello).await;
    let opened = opened.expect(StatusCode::OK).await;
    let id = opened.header("mcp-session-id").expect("a session id");
    let headers = [("mcp-session-id", id)];
    let params = json!({"name": "ask_form", "arguments": {}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let asking = actor.post("/mcp/stub", &headers, &call).await;
    let mut asking = asking.expect(StatusCode::OK).await.events();
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let taken = actor.post("/mcp/stub", &headers, &initialized).await;
    taken.expect(StatusCode::ACCEPTED).await;
    let question = asking.message().await.expect("a question");
    assert_eq!(question["method"], "elicitation/create", "{question}");
    gw.stop().await;
}

#[tokio::test]
async fn a_cancelled_request_leaves_the_line_unsent() {
    let setup = Setup::open()
        .toml("[limits]\ncalls_per_session = 1")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = Strict(
        gw.anonymous()
            .open_as("/mcp/stub", "2025-06-18", json!({}))
            .await,
    );
    let (first, never) = user.0.start_call("never", json!({})).await;
    // Its head comes while it waits.
    let (id, waiting) = user
        .0
        .start_call("state_set", json!({"key": "a", "value": "b"}))
        .await;
    let cancelled = json!({"requestId": id});
    user.0.notify("notifications/cancelled", cancelled).await;
    assert_eq!(waiting.stream().message().await, None, "no reply");
    let cancelled = json!({"requestId": first});
    user.0.notify("notifications/cancelled", cancelled).await;
    assert_eq!(never.stream().message().await, None);
    let stats = user.stats(50).await;
    assert_eq!(
        stats["counts"]["tools/call"], 2,
        "the first, and this: {stats}"
    );
    gw.stop().await;
}

#[tokio::test]
async fn a_drain_refuses_what_waits() {
    let setup = Setup::open()
        .server("drain = \"1s\"")
        .toml("[limits]\ncalls_per_session = 1\ncall_wait = \"1h\"")
        .stub("stub", &[]);
    let mut gw = setup.start().await;
    let user = Strict(gw.anonymous().open("/mcp/stub").await);
    let (_, _never) = user.0.start_call("never", json!({})).await;
    let (_, mut waiting) = user.0.start_call("echo", json!({})).await;
    gw.signal(Signal::TERM);
    let refused = within("an answer", waiting.next()).await.expect("a reply");
    assert_refused(reply_of(refused));
    gw.exit().await;
}

#[tokio::test]
async fn a_session_that_ends_takes_its_requests_along() {
    let setup = Setup::open()
        .toml("[limits]\ncalls_per_session = 1\ncall_wait = \"1h\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, _never) = user.start_call("never", json!({})).await;
    let (_, waiting) = user.start_call("echo", json!({})).await;
    assert!((gw.metric("drawbridge_calls_waiting", "").await - 1.0).abs() < 0.1);
    assert_eq!(user.delete().await, 204);
    assert_eq!(waiting.stream().message().await, None);
    eventually("the line is empty", async || {
        (gw.metric("drawbridge_calls_waiting", "").await < 0.5).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC M-23: its client comes again after 429.
#[tokio::test]
async fn a_modern_call_waits_and_is_then_429() {
    let setup = Setup::open()
        .toml("[limits]\ncalls_per_principal = 1\ncall_wait = \"300ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = Modern::with(gw.anonymous(), "/mcp/stub", json!({}));
    let call = |tool: &str| {
        let params = json!({"name": tool, "arguments": {"ms": 1}});
        user.request(&json!(1), "tools/call", params)
    };
    let (holder, never) = (user.actor.clone(), call("never"));
    let holder = Modern::with(holder, "/mcp/stub", json!({}));
    let held = tokio::spawn(async move { holder.post(&never).await.message().await });
    eventually("it runs", async || {
        (gw.metric("drawbridge_calls_running", "").await > 0.5).then_some(())
    })
    .await;
    let refused = user.post(&call("sleep")).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.header("retry-after").is_some());
    held.abort();
    eventually("a place", async || {
        let answer = user.post(&call("sleep")).await;
        (answer.status() == 200).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn over_sse_and_websocket_requests_wait_too() {
    let setup = Setup::secured()
        .server("[server.sse]\nenabled = true\n[server.websocket]\nenabled = true")
        .toml("[limits]\nrate = \"20/s\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let mut user = EventSession::open(&gw.principal("alice"), "/sse/stub").await;
    for _ in 0..60 {
        user.start("tools/list", json!({})).await;
    }
    for _ in 0..60 {
        let reply = user.stream.message().await.expect("a reply");
        assert!(reply.get("result").is_some(), "{reply}");
    }
    drop(user);
    let bob = gw.principal("bob");
    let mut socket = Socket::open(&gw.url, "/ws/stub", bob.token()).await;
    for _ in 0..60 {
        socket.start("tools/list", json!({})).await;
    }
    for _ in 0..60 {
        let reply = socket.message().await.expect("a reply");
        assert!(reply.get("result").is_some(), "{reply}");
    }
    gw.stop().await;
}

// Python puts the id behind the params, and sends arrays of 2025-03-26.
#[tokio::test]
async fn ids_of_a_large_body_are_found_as_it_comes() {
    let setup = Setup::open()
        .server("[server.sse]\nenabled = true")
        .toml("[limits]\nbody = \"64KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let actor = gw.anonymous();
    let user = actor.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    let padding = "{[\\\"".repeat(20_000);
    let late = format!(r#"{{"method":"tools/list","params":{{"a":"{padding}"}},"id":"late"}}"#);
    let refused = user
        .post_raw(late.clone())
        .await
        .expect(StatusCode::OK)
        .await;
    let refused = refused.json().await;
    assert_eq!(refused["id"], "late", "{refused}");
    assert_refused(reply_of(refused));
    let array = format!(r#"[{late},{{"method":"x"}},{{"id":7,"method":"ping"}}]"#);
    let refused = user.post_raw(array).await.expect(StatusCode::OK).await;
    let refused = refused.json().await;
    let refused = refused.as_array().expect("an array");
    let ids: Vec<_> = refused.iter().map(|error| &error["id"]).collect();
    assert_eq!(ids, [&json!("late"), &json!(7)]);
    let mut events = EventSession::open(&actor, "/sse/stub").await;
    let posted = actor.post_raw(&events.post_to, &[], late).await;
    assert_eq!(posted.status(), 202);
    let refused = events.stream.message().await.expect("a refusal");
    assert_eq!(refused["id"], "late", "{refused}");
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// The TypeScript SDK fails to close where DELETE is refused.
#[tokio::test]
async fn session_is_deleted_above_the_rate() {
    let setup = Setup::open()
        .toml("[limits]\nrate = \"9/h\"\ncall_wait = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = Strict(gw.anonymous().open("/mcp/stub").await);
    let mut id = 100;
    while user.request(id, "tools/list", json!({})).await.is_ok() {
        id += 1;
    }
    assert_eq!(user.0.delete().await, StatusCode::NO_CONTENT.as_u16());
    assert_eq!(user.0.delete().await, StatusCode::NOT_FOUND.as_u16());
    gw.stop().await;
}
