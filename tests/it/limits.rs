//! Limits that a caller can reach: the status of the refusal, and its `Retry-After`. Spec: SPEC T-17.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::connection::EventSession;
use crate::harness::http::initialize;
use crate::harness::socket::Socket;
use crate::harness::{Setup, eventually, within};
use crate::modern::Modern;

#[tokio::test]
async fn over_the_rate_refuses_this_principal_alone() {
    let setup = Setup::secured()
        .toml("[limits]\nrate = \"5/h\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let answers = join_all((0..40).map(|_| alice.request("tools/list", json!({})))).await;
    let refused: Vec<_> = answers.iter().filter_map(|a| a.as_ref().err()).collect();
    assert_eq!(
        refused.len(),
        32,
        "ten at once, two of them for the handshake"
    );
    for error in &refused {
        let after = error["data"]["retryAfterMs"].as_u64();
        assert!(after > Some(0), "{error}");
    }
    assert!(bob.request("tools/list", json!({})).await.is_ok());
    // A GET carries no JSON-RPC id, so that it is refused by status.
    let stream = alice.actor.get("/mcp/stub", &alice.headers()).await;
    assert_eq!(stream.status(), 429);
    assert!(stream.header("retry-after").is_some());
    let hello = initialize(1, "2025-11-25", &json!({}));
    let second = gw.principal("alice").post("/mcp/stub", &[], &hello).await;
    assert_eq!(second.status(), 429);
    assert!(second.header("retry-after").is_some());
    let counted = gw
        .metric("drawbridge_requests_rate_limited_total", "")
        .await;
    assert_eq!(counted.to_string(), "34");
    gw.stop().await;
}

// A client that is refused its stream ends the session, or does without for good.
#[tokio::test]
async fn get_stream_waits_for_the_rate() {
    let setup = Setup::secured()
        .toml("[limits]\nrate = \"4/s\"\nstreams_per_session = 16")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    // Eight at once, two of them for the handshake: half of the streams wait.
    let headers = alice.headers();
    let streams = join_all((0..12).map(|_| alice.actor.get("/mcp/stub", &headers))).await;
    for answer in streams {
        answer.expect(StatusCode::OK).await;
    }
    let unknown = [("mcp-session-id", "none")];
    assert_eq!(alice.actor.get("/mcp/stub", &unknown).await.status(), 404);
    let counted = gw.metric("drawbridge_requests_rate_limited_total", "");
    assert_eq!(counted.await.to_string(), "0");
    gw.stop().await;
}

/// An array of `n` lists whose ids begin with `first`, a notification and two answers.
fn array(first: usize, n: usize) -> Value {
    let mut array: Vec<Value> = (first..first + n)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}))
        .collect();
    array.push(json!({"jsonrpc": "2.0", "method": "notifications/whatever"}));
    array.extend([98, 99].map(|id| json!({"jsonrpc": "2.0", "id": id, "result": {}})));
    Value::Array(array)
}

/// How many of these replies are results; the others say when to come again.
fn results<'a>(replies: impl Iterator<Item = &'a Value>) -> usize {
    let served = |reply: &&Value| {
        let after = reply["error"]["data"]["retryAfterMs"].as_u64();
        assert_ne!(reply.get("result").is_some(), after > Some(0), "{reply}");
        reply.get("result").is_some()
    };
    replies.filter(served).count()
}

// Spec: SPEC O-01, T-33.
#[tokio::test]
async fn an_array_costs_what_its_messages_cost_alone() {
    let setup = Setup::secured()
        .server("[server.sse]\nenabled = true\n[server.websocket]\nenabled = true")
        .toml("[limits]\nrate = \"8/h\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    // Of sixteen two are for the handshake; each element beyond the rest is refused by itself.
    let alice = gw.principal("alice");
    let alice = alice.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    let replies = alice.post(&array(100, 15)).await.expect(StatusCode::OK);
    let replies = replies.await.json().await;
    let replies = replies.as_array().expect("an array");
    assert_eq!((replies.len(), results(replies.iter())), (15, 14));

    let bob = gw.principal("bob");
    let nothing = json!({});
    let (mut bob, _) = EventSession::open_as(&bob, "/sse/stub", "2025-03-26", &nothing).await;
    bob.tell(&array(100, 15)).await;
    let mut replies = Vec::new();
    for _ in 0..15 {
        replies.push(bob.stream.message().await.expect("a reply"));
    }
    assert_eq!(results(replies.iter()), 13, "one for the stream");

    let carol = gw.principal("carol");
    let mut carol = Socket::connect(&gw.url, "/ws/stub", carol.token()).await;
    carol.tell(&initialize(1, "2025-03-26", &json!({}))).await;
    carol.reply(1).await.1.expect("initialize succeeds");
    carol.tell(&array(100, 15)).await;
    let mut replies = Vec::new();
    for _ in 0..15 {
        replies.push(carol.message().await.expect("a reply"));
    }
    assert_eq!(results(replies.iter()), 14);
    gw.stop().await;
}

// Spec: SPEC O-01, T-17: to come again would never help.
#[tokio::test]
async fn array_longer_than_any_allowance_is_refused_for_good() {
    let setup = Setup::open().server("[server.sse]\nenabled = true");
    let setup = setup.toml("[limits]\nrate = \"8/h\"").stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous();
    let user = user.open_as("/mcp/stub", "2025-03-26", json!({})).await;
    // Twice the rate is the allowance; the notification counts, answers do not.
    let answer = user.post(&array(100, 16)).await;
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.header("retry-after"), None);
    let refusal = answer.json().await;
    assert_eq!(refusal["error"]["code"], -32600);
    assert_eq!(refusal["error"]["data"]["maxMessages"], 16);
    // The refused array was not charged.
    assert_eq!(
        user.request("tools/list", json!({})).await.map(drop),
        Ok(())
    );
    gw.stop().await;
}

#[tokio::test]
async fn running_calls_are_capped_per_session_and_per_principal() {
    let setup = Setup::secured()
        .server("sse_after = \"20ms\"")
        .toml("[limits]\ncalls_per_session = 2\ncalls_per_principal = 3\ncall_wait = \"50ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice");
    let (first, second) = (alice.open("/mcp/stub").await, alice.open("/mcp/stub").await);
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let mut held = Vec::new();
    let call = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call",
                      "params": {"name": "never", "arguments": {}}});
    for _ in 0..2 {
        held.push(first.start_call("never", json!({})).await);
    }
    let refused = first.post(&call).await.expect(StatusCode::OK).await;
    let refused = refused.message().await;
    assert_eq!(
        refused["error"]["data"]["retryAfterMs"], 1000,
        "per session"
    );
    held.push(second.start_call("never", json!({})).await);
    let refused = second.post(&call).await.expect(StatusCode::OK).await;
    let refused = refused.message().await;
    assert_eq!(refused["id"], 77);
    assert_eq!(
        refused["error"]["data"]["retryAfterMs"], 1000,
        "per principal"
    );
    assert_eq!(bob.text("echo", json!({})).await, "{}");
    gw.stop().await;
}

#[tokio::test]
async fn streams_are_capped_per_session() {
    let setup = Setup::open()
        .toml("[limits]\nstreams_per_session = 2")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let streams = [user.listen().await, user.listen().await];
    let third = gw.anonymous().get("/mcp/stub", &user.headers()).await;
    assert_eq!(third.status(), 429);
    assert!(third.header("retry-after").is_some());
    drop(streams);
    gw.stop().await;
}

// Spec: SPEC T-23, T-25: every call has a stream, and each that broke can be resumed.
#[tokio::test]
async fn streams_of_calls_take_no_place_of_the_get_stream() {
    let setup = Setup::open()
        .server("sse_after = \"20ms\"")
        .toml("[limits]\nstreams_per_session = 1\ncalls_per_session = 3")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut places = Vec::new();
    for _ in 0..3 {
        let (_, exchange) = user.start_call("sleep", json!({"ms": 2_000})).await;
        let mut stream = exchange.stream();
        stream.next().await.expect("a priming event");
        places.push(stream.last_id.clone().expect("its id"));
    }
    let _listening = user.listen().await;
    let resumed = join_all(places.iter().map(|place| user.resume(place))).await;
    for answer in resumed {
        let answer = answer.expect(StatusCode::OK).await;
        let reply = answer.events().message().await.expect("the reply");
        assert_eq!(reply["result"]["content"][0]["text"], "slept");
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_request_head_over_the_limit_is_431() {
    let setup = Setup::open()
        .toml("[limits]\nheaders = \"8KiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let padding = "x".repeat(20_000);
    let mut headers = user.headers();
    headers.push(("x-padding", &padding));
    assert_eq!(
        gw.anonymous()
            .post("/mcp/stub", &headers, &ping)
            .await
            .status(),
        431
    );
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let setup = Setup::open()
        .server("header_timeout = \"1s\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let address = gw.url.strip_prefix("http://").unwrap();
    for start in ["", "P", "POST /mcp HTTP/1.1\r\nHost: x"] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(start.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        within("the connection is closed", socket.read_to_end(&mut rest))
            .await
            .ok();
    }
    gw.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let setup = Setup::open()
        .server("body_timeout = \"200ms\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let address = gw.url.strip_prefix("http://").unwrap();
    let head = format!(
        "POST /mcp/stub HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: 100\r\n\r\n{{"
    );
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    within("an answer", socket.read_exact(&mut start))
        .await
        .unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
    gw.stop().await;
}

#[tokio::test]
async fn connections_over_the_cap_wait_or_are_refused_and_are_counted() {
    let setup = Setup::open()
        .server("max_connections = 4")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let address = gw.url.strip_prefix("http://").unwrap().to_owned();
    let held = join_all((0..4).map(|_| TcpStream::connect(&address))).await;
    let stranger = gw.anonymous();
    let fifth = stranger.try_get("/mcp/stub");
    let fifth = tokio::time::timeout(std::time::Duration::from_secs(2), fifth).await;
    assert!(!matches!(fifth, Ok(Ok(ref answer)) if answer.status() == 200));
    drop(held);
    eventually("it serves again", async || {
        gw.anonymous().try_get("/mcp/stub").await.ok().map(drop)
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn a_socket_keeps_the_place_of_its_connection() {
    let setup = Setup::open()
        .server("max_connections = 2\n[server.websocket]\nenabled = true")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let mut sockets = Vec::new();
    for _ in 0..2 {
        sockets.push(Socket::open(&gw.url, "/ws/stub", None).await);
    }
    // A refusal may come before the request is written.
    eventually("a third connection is refused", async || {
        let third = gw.anonymous().try_get("/mcp/stub").await.ok()?;
        (third.status() == 503).then_some(())
    })
    .await;
    drop(sockets);
    eventually("there is room again", async || {
        let next = gw.anonymous().try_get("/mcp/stub").await.ok()?;
        (next.status() != 503).then_some(())
    })
    .await;
    gw.stop().await;
}

// `clientInfo` and capabilities are stored per session, and one principal may have a thousand sessions.
#[tokio::test]
async fn what_a_client_says_of_itself_has_a_bound_in_both_eras() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let actor = gw.anonymous();
    let long = "x".repeat(64 * 1024);
    let open = async |info: &Value, capabilities: &Value| {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
                            "clientInfo": info});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        actor.post("/mcp", &[], &message).await.json().await
    };
    let info = json!({"name": "harness", "version": "1"});
    for (info, capabilities) in [
        (&json!({"name": long, "version": "1"}), &json!({})),
        (&info, &json!({"experimental": {&long: {}}})),
    ] {
        let refused = open(info, capabilities).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    assert!(gw.metric("drawbridge_sessions_open", "").await < 0.1);
    let icons = json!({"name": "harness", "version": "1", "icons": [{"src": long}]});
    let opened = open(&icons, &json!({})).await;
    assert!(opened["result"].is_object(), "{opened}");
    let modern = Modern::with(actor, "/mcp", json!({"experimental": {&long: {}}}));
    let refused = modern.send("tools/list", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], -32602, "{refused}");
    gw.stop().await;
}
