//! The byte budget: memory for the messages of one caller, and refusals of those without room.
//! Spec: SPEC T-17, O-01.

mod partial;
mod replies;
mod sockets;

use std::fmt::Write as _;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::connection::EventSession;
use crate::harness::http::{BOTH, initialize};
use crate::harness::process::resident;
use crate::harness::session::reply_of;
use crate::harness::{Actor, Gateway, Session, Setup, eventually, within};
use crate::modern::Modern;

const MIB: u64 = 1 << 20;

async fn held_mib(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_bytes_held_bytes", "").await / 1_048_576.0
}

async fn until_nothing_is_held(gw: &Gateway) {
    eventually("all bytes are given back", async || {
        (held_mib(gw).await < 0.000_1).then_some(())
    })
    .await;
}

/// A call of `tool` with so many bytes of ballast.
fn large_call(id: i64, tool: &str, bytes: usize) -> Value {
    let arguments = json!({"ballast": "x".repeat(bytes)});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
           "params": {"name": tool, "arguments": arguments}})
}

/// The head of a POST that announces `length` bytes.
fn head(gw: &Gateway, actor: &Actor, session: &str, length: &str) -> String {
    let host = gw.url.strip_prefix("http://").unwrap();
    let mut head = format!(
        "POST /mcp/stub HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: {BOTH}\r\n\
         {length}\r\n{session}"
    );
    if let Some(token) = actor.token() {
        write!(head, "authorization: Bearer {token}\r\n").unwrap();
    }
    head + "\r\n"
}

/// The session as a line of a head.
fn session_line(user: &Session) -> String {
    let headers = user.headers();
    let (name, id) = headers
        .iter()
        .find(|(name, _)| *name == "mcp-session-id")
        .unwrap();
    format!("{name}: {id}\r\n")
}

/// Sends a body of `size` bytes except its last ten, at the gateway's pace.
async fn half_sent(gw: &Gateway, head: String, size: usize) -> tokio::task::JoinHandle<TcpStream> {
    let mut tcp = TcpStream::connect(gw.url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    tcp.write_all(head.as_bytes()).await.unwrap();
    tokio::spawn(async move {
        let body = vec![b' '; size - 10];
        // The body may be refused meanwhile.
        drop(tcp.write_all(&body).await);
        tcp
    })
}

#[tokio::test]
async fn half_sent_bodies_of_one_caller_stay_within_its_share() {
    const BODY: usize = 4 << 20;
    let setup = Setup::secured()
        .toml("[limits]\nbytes_per_principal = \"32MiB\"\nbytes_total = \"128MiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let before = resident(gw.pid());
    let head = |length: &str| head(&gw, &alice.actor, &session_line(&alice), length);
    let mut sending = Vec::new();
    for _ in 0..30 {
        let length = format!("content-length: {BODY}");
        sending.push(half_sent(&gw, head(&length), BODY).await);
    }
    eventually("her share is used up", async || {
        (held_mib(&gw).await > 31.0).then_some(())
    })
    .await;
    // Another caller is served meanwhile, with large messages too.
    assert!(
        bob.call("echo", json!({"a": "x".repeat(1 << 20)}))
            .await
            .is_ok()
    );
    assert!(held_mib(&gw).await < 33.0);
    // Alice's small requests are served, too.
    assert_eq!(alice.request("ping", json!({})).await, Ok(json!({})));
    let sent = |sending: &[tokio::task::JoinHandle<TcpStream>]| {
        sending.iter().filter(|one| one.is_finished()).count()
    };
    // Four bodies have room in the share, and one in the reserve.
    eventually("bodies come", async || (sent(&sending) >= 5).then_some(())).await;
    let kept = resident(gw.pid()) - before;
    assert!(kept < 64 * MIB, "{} MiB", kept / MIB);
    for one in &sending {
        one.abort();
    }
    drop(sending);
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

#[tokio::test]
async fn half_sent_bodies_keep_at_most_256_mib_by_default() {
    const BODY: usize = 4 << 20;
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let length = format!("content-length: {BODY}");
    let head = head(&gw, &alice.actor, &session_line(&alice), &length);
    let mut sending = Vec::new();
    for _ in 0..150 {
        sending.push(half_sent(&gw, head.clone(), BODY).await);
    }
    // Sixteen have room in the share, and one in the reserve.
    eventually("her share is used up", async || {
        (held_mib(&gw).await > 127.0).then_some(())
    })
    .await;
    eventually("bodies come", async || {
        let sent = sending.iter().filter(|one| one.is_finished()).count();
        (sent >= 17).then_some(())
    })
    .await;
    let kept = resident(gw.pid());
    assert!(kept <= 256 * MIB, "{} MiB", kept / MIB);
    for one in &sending {
        one.abort();
    }
    drop(sending);
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

#[tokio::test]
async fn bodies_without_a_length_stay_within_the_share() {
    let setup = Setup::secured()
        .toml("[limits]\nbytes_per_principal = \"32MiB\"\nbytes_total = \"128MiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let before = resident(gw.pid());
    let mut sockets = Vec::new();
    for _ in 0..30 {
        let head = head(&gw, &alice.actor, "", "transfer-encoding: chunked");
        // A single chunk that never ends.
        let head = format!("{head}400000\r\n");
        sockets.push(half_sent(&gw, head, 4 << 20).await);
    }
    eventually("one is refused", async || {
        let refused = gw.metric("drawbridge_bytes_share_refused_total", "").await;
        (refused > 0.5).then_some(())
    })
    .await;
    eventually("what is refused is over", async || {
        let waiting = sockets.iter().filter(|one| !one.is_finished()).count();
        (waiting == 0).then_some(())
    })
    .await;
    assert!(held_mib(&gw).await < 33.0);
    let kept = resident(gw.pid()) - before;
    assert!(kept < 64 * MIB, "{} MiB", kept / MIB);
    sockets.clear();
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

/// A gateway whose callers have room for one message of 900 KiB each, and three in all.
async fn small_budget() -> Gateway {
    let setup = Setup::secured()
        .server("[server.sse]\nenabled = true\n[server.websocket]\nenabled = true")
        .toml("[limits]\nbody = \"1MiB\"\nbytes_per_principal = \"2MiB\"\nbytes_total = \"8MiB\"")
        .stub("stub", &[]);
    setup.start().await
}

const LARGE: usize = 900 << 10;

#[tokio::test]
async fn request_over_the_share_is_refused_alone() {
    let gw = small_budget().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let ballast = "x".repeat(LARGE);
    let (id, never) = alice.start_call("never", json!({"a": ballast})).await;
    assert!(held_mib(&gw).await > 1.5);
    // A request of a live session, without a status.
    let refused = alice.post(&large_call(77, "echo", LARGE)).await;
    let refused = refused.expect(StatusCode::OK).await.json().await;
    assert_eq!(refused["id"], 77);
    let error = reply_of(refused).expect_err("a refusal");
    assert_eq!(error["data"]["retryAfterMs"], 1000, "{error}");
    // Messages without a live session, or of the modern revision, are refused by status.
    let sessionless = alice
        .actor
        .post("/mcp/stub", &[], &large_call(78, "echo", LARGE))
        .await;
    assert_eq!(sessionless.status(), 429);
    assert!(sessionless.header("retry-after").is_some());
    let modern = Modern::with(gw.principal("alice"), "/mcp/stub", json!({}));
    let params = json!({"name": "echo", "arguments": {"a": ballast}});
    let refused = modern
        .post(&modern.request(&json!(1), "tools/call", params))
        .await;
    assert_eq!(refused.status(), 429);
    assert!(refused.header("retry-after").is_some());
    let counted = gw.metric("drawbridge_bytes_share_refused_total", "").await;
    assert_eq!(counted.to_string(), "3");
    // Small messages, and another caller's, are served.
    assert!(alice.call("echo", json!({"a": "small"})).await.is_ok());
    assert!(bob.call("echo", json!({"a": ballast})).await.is_ok());
    // A notification is dropped, without a status that would end the session.
    alice
        .notify("notifications/roots/list_changed", json!({"a": ballast}))
        .await;
    let dropped = gw.metric("drawbridge_messages_dropped_total", "").await;
    assert_eq!(dropped.to_string(), "1");
    // A cancellation is taken, however large.
    let cancelled = json!({"requestId": id, "reason": ballast});
    alice.notify("notifications/cancelled", cancelled).await;
    assert_eq!(never.stream().message().await, None, "cancelled");
    until_nothing_is_held(&gw).await;
    assert!(alice.call("echo", json!({"a": ballast})).await.is_ok());
    gw.stop().await;
}

// A host with one address of an IPv6 network can use all of them.
#[tokio::test]
async fn addresses_of_one_network_have_one_share() {
    let limits =
        "[limits]\nbody = \"1MiB\"\nbytes_per_principal = \"2MiB\"\nbytes_total = \"8MiB\"";
    let setup = Setup::open().server("trusted_proxies = [\"127.0.0.0/8\"]");
    let gw = setup.toml(limits).stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let from = format!("x-forwarded-for: 2001:db8::1\r\ncontent-length: {LARGE}");
    let head = head(&gw, &user.actor, &session_line(&user), &from);
    let unfinished = half_sent(&gw, head, LARGE).await;
    eventually("the share is used up", async || {
        (held_mib(&gw).await > 1.5).then_some(())
    })
    .await;
    let status = async |from: &str| {
        let headers = [("x-forwarded-for", from)];
        let call = large_call(1, "echo", LARGE);
        let answer = user.actor.post("/mcp/stub", &headers, &call).await;
        answer.status()
    };
    assert_eq!(status("2001:db8::2:9").await, 429);
    // A body with room is read: it lacks its session.
    assert_eq!(status("2001:db8:0:1::1").await, 400);
    unfinished.abort();
    gw.stop().await;
}

#[tokio::test]
async fn budget_used_up_by_all_is_503() {
    let gw = small_budget().await;
    let mut running = Vec::new();
    for name in ["alice", "bob", "carol"] {
        let user = gw.principal(name).open("/mcp/stub").await;
        running.push(
            user.start_call("never", json!({"a": "x".repeat(LARGE)}))
                .await,
        );
    }
    let dave = gw.principal("dave");
    let hello = initialize(
        1,
        "2025-11-25",
        &json!({"experimental": {"a": "x".repeat(LARGE)}}),
    );
    let refused = dave.post("/mcp/stub", &[], &hello).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    let user = dave.open("/mcp/stub").await;
    let refused = user.post(&large_call(5, "echo", LARGE)).await;
    let refused = refused.expect(StatusCode::OK).await.json().await;
    let error = reply_of(refused).expect_err("a refusal");
    assert_eq!(error["data"]["retryAfterMs"], 1000, "{error}");
    let counted = gw.metric("drawbridge_bytes_total_refused_total", "").await;
    assert_eq!(counted.to_string(), "2");
    drop(running);
    gw.stop().await;
}

#[tokio::test]
async fn answer_to_a_question_is_taken_over_the_share() {
    let gw = small_budget().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let (_, mut asking) = alice.start_call("ask_form", json!({})).await;
    let question = asking.next().await.expect("a question");
    let (_, _never) = alice
        .start_call("never", json!({"a": "x".repeat(LARGE)}))
        .await;
    let content = json!({"name": "x".repeat(LARGE)});
    alice
        .answer(&question, json!({"action": "accept", "content": content}))
        .await;
    asking.finish().await.1.expect("the call goes on");
    gw.stop().await;
}

/// A refused answer ends the session of some clients, with all its calls.
#[tokio::test]
async fn answer_waits_for_the_reserve_behind_a_slow_body_of_its_caller() {
    const BODY: usize = 16 << 20;
    let limits = "body = \"16MiB\"\nbytes_per_principal = \"32MiB\"\ncall_wait = \"100ms\"";
    let setup = Setup::secured().toml(&format!("[limits]\n{limits}"));
    let gw = setup.stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let (_, mut asking) = alice.start_call("ask_form", json!({})).await;
    let question = asking.next().await.expect("a question");
    let mut running = Vec::new();
    for _ in 0..2 {
        let ballast = json!({"a": "x".repeat(BODY / 2 - (256 << 10))});
        running.push(alice.start_call("never", ballast).await);
    }
    // More than socket buffers take: the gateway has begun to read it once it is written.
    let head = head(
        &gw,
        &alice.actor,
        &session_line(&alice),
        &format!("content-length: {BODY}"),
    );
    let mut slow = within("a begun body", half_sent(&gw, head, BODY).await)
        .await
        .unwrap();

    let content = json!({"name": "x".repeat(LARGE)});
    let answer = alice.answer(&question, json!({"action": "accept", "content": content}));
    let mut answer = std::pin::pin!(answer);
    let waits = tokio::time::timeout(Duration::from_secs(1), &mut answer).await;
    assert!(
        waits.is_err(),
        "the slow body has the caller's place in the reserve"
    );
    slow.write_all(&[b' '; 10]).await.unwrap();
    within("202", answer).await;
    asking.finish().await.1.expect("the call goes on");
    gw.stop().await;
}

#[tokio::test]
async fn refusal_of_an_event_stream_session_comes_on_its_stream() {
    let gw = small_budget().await;
    let alice = gw.principal("alice");
    let mut events = EventSession::open(&alice, "/sse/stub").await;
    events.tell(&large_call(50, "never", LARGE)).await;
    eventually("it is held", async || {
        (held_mib(&gw).await > 1.5).then_some(())
    })
    .await;
    events.tell(&large_call(51, "echo", LARGE)).await;
    let refused = events.stream.message().await.expect("a refusal");
    assert_eq!(refused["id"], 51, "{refused}");
    let error = reply_of(refused).expect_err("a refusal");
    assert_eq!(error["data"]["retryAfterMs"], 1000, "{error}");
    let cancelled = json!({"requestId": 50, "reason": "x".repeat(LARGE)});
    events.notify("notifications/cancelled", cancelled).await;
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

#[tokio::test]
async fn message_with_too_many_members_is_refused_by_name() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let members = |count: usize| {
        let members: Vec<String> = (0..count).map(|n| format!(r#""m{n}":0"#)).collect();
        members.join(",")
    };
    let body = format!(
        r#"{{"method":"tools/call","params":{{"name":"echo","arguments":{{}},{}}},"jsonrpc":"2.0","id":9}}"#,
        members(100_000)
    );
    let refused = user.post_raw(body).await;
    // A client takes a 400 in a live session for the loss of the session.
    assert_eq!(refused.status(), 200);
    let refused = refused.json().await;
    assert_eq!(refused["id"], 9);
    let text = refused["error"]["message"].as_str().unwrap();
    assert!(text.contains("more than 1024 members"), "{text}");
    // The arguments of a tool may have any number of members.
    let body = format!(
        r#"{{"method":"tools/call","params":{{"name":"echo","arguments":{{{}}}}},"jsonrpc":"2.0","id":10}}"#,
        members(100_000)
    );
    let answer = user.post_raw(body).await.expect(StatusCode::OK).await;
    assert_eq!(answer.message().await["id"], 10);
    gw.stop().await;
}

#[tokio::test]
async fn twelve_calls_with_many_members_keep_at_most_120_mib() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let members: Vec<String> = (0..410_000).map(|n| format!(r#""{n:x}":0"#)).collect();
    let members = members.join(",");
    let mut calls = Vec::new();
    for id in 100..112 {
        let body = format!(
            r#"{{"method":"tools/call","params":{{"name":"never","arguments":{{{members}}}}},"jsonrpc":"2.0","id":{id}}}"#
        );
        assert!((3_900_000..4 << 20).contains(&body.len()), "{}", body.len());
        let answer = within("the head of a stream", user.post_raw(body)).await;
        assert!(answer.is_stream(), "it runs");
        calls.push(answer);
    }
    let kept = resident(gw.pid());
    assert!(kept < 120 * MIB, "{} MiB", kept / MIB);
    assert!(held_mib(&gw).await > 90.0, "all of them run");
    gw.stop().await;
}
