//! WebSocket towards clients.

use rstest::rstest;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use crate::harness::session::text_of;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::{Gateway, Setup, eventually, within};
use crate::modern::Modern;

const ON: &str = "[server.websocket]\nenabled = true";

async fn secured() -> Gateway {
    let setup = Setup::secured().server(ON).stub("stub", &[]);
    setup.start().await
}

async fn open(gw: &Gateway, name: &str) -> Socket {
    let user = gw.principal(name);
    Socket::open(&gw.url, "/ws/stub", user.token()).await
}

#[tokio::test]
async fn a_session_over_a_socket_lists_calls_and_is_asked() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    for path in ["/ws/stub", "/ws"] {
        let mut socket = Socket::open(&gw.url, path, alice.token()).await;
        let id = socket.start("tools/list", json!({})).await;
        let tools = socket.reply(id).await.1.unwrap();
        assert!(tools["tools"].as_array().unwrap().len() > 5, "{tools}");
        let call = json!({"name": "ask_form", "arguments": {}});
        let id = socket.start("tools/call", call).await;
        let question = loop {
            let message = socket.message().await.expect("a question");
            if message["method"] == "elicitation/create" {
                break message;
            }
        };
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        socket.tell(&answer).await;
        let result = socket.reply(id).await.1.unwrap();
        assert!(text_of(&result).contains("Ada"), "{result}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn progress_and_notices_come_as_frames_before_the_reply() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    let call = json!({"name": "notices", "arguments": {"n": 3}, "_meta": {"progressToken": 7}});
    let id = socket.start("tools/call", call).await;
    let (before, reply) = socket.reply(id).await;
    reply.expect("a result");
    let progress = before
        .iter()
        .filter(|message| message["params"]["progressToken"] == 7);
    assert_eq!(progress.count(), 3, "{before:?}");
    gw.stop().await;
}

// Spec: SPEC T-02, T-03; DESIGN §4 (order of refusals).
#[rstest]
#[case::no_token(false, &[], 401)]
#[case::foreign_origin(true, &[("origin", "https://evil.example")], 403)]
#[case::foreign_host(true, &[("host", "evil.example")], 421)]
#[case::no_upgrade(true, &[("upgrade", "")], 426)]
#[case::old_version(true, &[("sec-websocket-version", "8")], 426)]
#[case::bad_key(true, &[("sec-websocket-key", "short")], 400)]
#[case::other_subprotocol(true, &[("sec-websocket-protocol", "chat")], 400)]
#[tokio::test]
async fn nothing_is_upgraded_that_should_not_be(
    #[case] with_token: bool,
    #[case] changes: &[(&str, &str)],
    #[case] status: u16,
) {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let token = alice.token().filter(|_| with_token);
    let (head, _) = upgrade(&gw.url, "/ws/stub", token, changes).await;
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    let challenged = head.contains("oauth-protected-resource/ws/stub");
    assert_eq!(challenged, status == 401, "{head}");
    let open = gw.metric("drawbridge_channels_open", "").await;
    assert!(open < 1.0, "{open}");
    gw.stop().await;
}

// Spec: RFC 6455 §4.2.2: LangChain4j offers no subprotocol.
#[tokio::test]
async fn socket_without_subprotocol_is_served() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let none = [("sec-websocket-protocol", "")];
    let (head, tcp) = upgrade(&gw.url, "/ws/stub", alice.token(), &none).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(!head.to_lowercase().contains("sec-websocket-protocol"));
    let mut socket = Socket::upgraded(tcp).await;
    socket.initialize().await;
    socket.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

#[tokio::test]
async fn switched_off_the_path_does_not_exist() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let (head, _) = upgrade(&gw.url, "/ws", None, &[]).await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    gw.stop().await;
}

/// The Close frame of a client that is done.
fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: "done".into(),
    }))
}

// Spec: RFC 6455 §5.5.1, §7.4.1.
#[rstest]
#[case::binary(Message::binary("{}"), 1003)]
#[case::oversize(Message::text("x".repeat(5 << 20)), 1009)]
#[case::polite(goodbye(), 1000)]
#[tokio::test]
async fn a_socket_is_closed_with_its_reason(#[case] frame: Message, #[case] code: u16) {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    socket.send(frame).await;
    assert_eq!(socket.closed().await, Some(code));
    eventually("the session is over", async || {
        (gw.metric("drawbridge_sessions_open", "").await < 1.0).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_the_socket_goes_on() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    socket.send(Message::text("{")).await;
    let error = socket.message().await.unwrap();
    assert_eq!(
        (&error["id"], &error["error"]["code"]),
        (&json!(null), &json!(-32700))
    );
    socket
        .tell(&json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]))
        .await;
    assert_eq!(socket.message().await.unwrap()["error"]["code"], -32600);
    socket.call("echo", json!({"text": "hi"})).await.unwrap();
    gw.stop().await;
}

#[tokio::test]
async fn message_with_repeated_members_names_its_id() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    for (members, id) in [
        (r#""id":"a","params":{"x":1,"x":2}"#, json!("a")),
        (r#""id":1,"ID":2"#, json!(null)),
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"ping",{members}}}"#);
        socket.send(Message::text(text)).await;
        let error = socket.message().await.unwrap();
        assert_eq!(error["error"]["code"], -32700, "{members}");
        assert_eq!(error["id"], id, "{members}");
    }
    gw.stop().await;
}

#[tokio::test]
async fn before_initialize_nothing_is_served() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let mut socket = Socket::connect(&gw.url, "/ws/stub", alice.token()).await;
    let id = socket.start("tools/list", json!({})).await;
    assert_eq!(socket.reply(id).await.1.unwrap_err()["code"], -32600);
    gw.stop().await;
}

// Spec: SPEC L-07.
#[tokio::test]
async fn before_initialize_a_ping_is_answered() {
    let gw = secured().await;
    let alice = gw.principal("alice");
    let mut socket = Socket::connect(&gw.url, "/ws/stub", alice.token()).await;
    let id = socket.start("ping", json!({})).await;
    assert_eq!(socket.reply(id).await.1, Ok(json!({})));
    gw.stop().await;
}

#[tokio::test]
async fn a_broken_socket_cancels_its_calls() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    let call = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    socket.start("tools/call", call).await;
    eventually("the call runs", async || {
        (gw.metric("drawbridge_calls_running", "").await > 0.0).then_some(())
    })
    .await;
    drop(socket);
    eventually("nothing is left", async || {
        let calls = gw.metric("drawbridge_calls_running", "").await;
        let channels = gw.metric("drawbridge_channels_open", "").await;
        (calls + channels < 1.0 && gw.children().len() <= 1).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn quiet_sockets_are_pinged_and_silent_ones_are_closed() {
    let keep_alive = format!("keep_alive = \"500ms\"\n{ON}");
    let setup = Setup::open().server(&keep_alive).stub("stub", &[]);
    let gw = setup.start().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    while !matches!(socket.frame().await, Some(Message::Ping(_))) {}
    // The test stops reading here, so pings get no pong.
    eventually("the silent socket is closed", async || {
        (gw.metric("drawbridge_channels_open", "").await < 1.0).then_some(())
    })
    .await;
    assert_eq!(socket.closed().await, None);
    gw.stop().await;
}

// DESIGN §5: one minute after the token.
#[tokio::test]
async fn a_socket_ends_after_its_token() {
    let gw = secured().await;
    let audiences = [format!("{}/mcp/stub", gw.url)];
    let mut claims = gw.issuer().claims("alice", &audiences, "mcp:tools");
    let now = claims["iat"].as_i64().unwrap();
    claims["exp"] = json!(now - 57);
    let header = crate::harness::issuer::Issuer::header();
    let token = gw.issuer().sign(&header, &claims);
    let mut socket = Socket::open(&gw.url, "/ws/stub", Some(&token)).await;
    assert_eq!(socket.closed().await, Some(1008));
    gw.stop().await;
}

// Spec: SPEC O-02.
#[tokio::test]
async fn a_drain_lets_calls_finish_and_then_closes_the_socket() {
    let mut gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    let call = json!({"name": "sleep", "arguments": {"ms": 700}});
    let id = socket.start("tools/call", call).await;
    eventually("the call runs", async || {
        (gw.metric("drawbridge_calls_running", "").await > 0.0).then_some(())
    })
    .await;
    gw.signal(rustix::process::Signal::TERM);
    socket.reply(id).await.1.expect("a result");
    assert_eq!(socket.closed().await, Some(1001));
    assert_eq!(gw.exit().await, Some(0));
}

#[tokio::test]
async fn the_rate_of_requests_holds_for_messages() {
    let setup = Setup::open().server(ON).stub("stub", &[]);
    let gw = setup.toml("[limits]\nrate = \"5/h\"").start().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    for _ in 0..30 {
        socket.start("tools/list", json!({})).await;
    }
    let mut refused = 0;
    for _ in 0..30 {
        let reply = socket.message().await.expect("a reply");
        refused += i32::from(reply["error"].is_object());
    }
    assert!((20..30).contains(&refused), "{refused} of 30");
    gw.stop().await;
}

/// A raw frame, with no check of the protocol's rules.
fn raw(opcode: Data, payload: &'static [u8]) -> Message {
    Message::Frame(Frame::message(payload, OpCode::Data(opcode), true))
}

/// Outcome and answer bytes of each access line that `is_meant`, once there are `count`.
async fn access_lines(
    gw: &Gateway,
    count: usize,
    is_meant: impl Fn(&serde_json::Value) -> bool,
) -> Vec<(String, u64)> {
    eventually("all lines", async || {
        let records = gw.log_records().into_iter();
        let lines = records.filter(|line| line["target"] == "access" && is_meant(line));
        let told = |line: serde_json::Value| {
            let outcome = line["outcome"].as_str().unwrap().to_owned();
            (outcome, line["bytes_out"].as_u64().unwrap())
        };
        let told: Vec<_> = lines.map(told).collect();
        (told.len() >= count).then_some(told)
    })
    .await
}

/// The access lines of messages that went wrong, once there are `count`.
async fn refused(gw: &Gateway, count: usize) -> Vec<(String, u64)> {
    let is_refused =
        |line: &serde_json::Value| line.get("status").is_none() && line["outcome"] != "ok";
    access_lines(gw, count, is_refused).await
}

// Operators see why a client is cut off. Spec: DESIGN §10.
#[tokio::test]
async fn a_frame_that_is_no_message_has_an_access_line() {
    let gw = secured().await;
    for (frame, code) in [
        (Message::binary("{}"), 1003),
        (Message::text("x".repeat(5 << 20)), 1009),
        (raw(Data::Text, b"\xff"), 1007),
        (raw(Data::Reserved(3), b"{}"), 1002),
    ] {
        let mut socket = open(&gw, "alice").await;
        socket.send(frame).await;
        assert_eq!(socket.closed().await, Some(code));
    }
    // A client that only disconnects has no message to refuse.
    drop(open(&gw, "alice").await);
    eventually("the last socket is gone", async || {
        (gw.metric("drawbridge_channels_open", "").await < 1.0).then_some(())
    })
    .await;
    let words = ["bad_request", "too_large", "bad_request", "bad_request"];
    let expected: Vec<_> = words.map(|word| (word.to_owned(), 0)).into();
    assert_eq!(refused(&gw, 4).await, expected);
    gw.stop().await;
}

#[tokio::test]
async fn the_access_line_of_a_refused_message_counts_what_was_answered() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    socket.send(Message::text("{")).await;
    socket.message().await.expect("an error");
    let again = socket.start("initialize", json!({})).await;
    socket.reply(again).await.1.expect_err("it is initialized");
    let modern = Modern::new(gw.principal("alice"), "/ws/stub");
    let listen = json!({"notifications": "all"});
    let listen = modern.request(&json!(71), "subscriptions/listen", listen);
    socket.tell(&listen).await;
    socket.reply(71).await.1.expect_err("no filter");
    let mut unversioned = modern.request(&json!(72), "tools/list", json!({}));
    unversioned["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    socket.tell(&unversioned).await;
    socket.reply(72).await.1.expect_err("no such revision");
    let lines = refused(&gw, 4).await;
    let good = |(word, bytes): &(String, u64)| word == "bad_request" && *bytes > 50;
    assert!(lines.len() == 4 && lines.iter().all(good), "{lines:?}");
    gw.stop().await;
}

#[tokio::test]
async fn every_message_has_an_access_line_and_every_call_an_audit_line() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let id = socket.start("tools/call", call("echo")).await;
    socket.reply(id).await.1.expect("a result");
    let unknown = socket.start("nonsense", json!({})).await;
    socket.reply(unknown).await.1.expect_err("no such method");
    let modern = Modern::new(gw.principal("alice"), "/ws/stub");
    for (id, name) in [(71, "seen_meta"), (72, "ask_form")] {
        let request = modern.request(&json!(id), "tools/call", call(name));
        socket.tell(&request).await;
        socket.reply(id).await.1.expect("a result");
    }
    socket.start("tools/call", call("never")).await;
    eventually("it runs", async || {
        let running = gw.metric("drawbridge_calls_running", "").await;
        // The other call is parked.
        (running > 1.5).then_some(())
    })
    .await;
    drop(socket);
    let lines = eventually("all lines", async || {
        let records = gw.log_records();
        let lines: Vec<_> = records
            .into_iter()
            .filter(|line| line["target"] == "access" && line.get("status").is_none())
            .collect();
        (lines.len() >= 7).then_some(lines)
    })
    .await;
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            [word("rpc_method"), word("name"), word("outcome")]
        })
        .collect();
    let expected = [
        ["initialize", "", "ok"],
        ["notifications/initialized", "", "ok"],
        ["tools/call", "echo", "ok"],
        ["nonsense", "", "-32601"],
        ["tools/call", "seen_meta", "ok"],
        ["tools/call", "ask_form", "ok"],
        ["tools/call", "never", "cancelled"],
    ];
    assert_eq!(told, expected, "{lines:#?}");
    for line in &lines {
        assert_eq!(line["path"], "/ws/{endpoint}");
        assert_eq!(line["principal"], lines[0]["principal"]);
        assert!(line["bytes_in"].as_u64() > Some(0), "{line}");
    }
    assert!(lines[2]["bytes_out"].as_u64() > Some(0), "{lines:#?}");
    assert!(lines[4]["bytes_out"].as_u64() > Some(0), "{lines:#?}");
    eventually("the audit of each call", async || {
        let records = gw.log_records();
        let audited = |name: &str| {
            let mut audits = records.iter().filter(|line| line["target"] == "audit");
            audits.any(|line| line["name"] == name)
        };
        ["echo", "seen_meta", "never"]
            .into_iter()
            .all(audited)
            .then_some(())
    })
    .await;
    gw.stop().await;
}

/// Bytes of a result that, twice, is more than all buffers on the way hold.
const LARGE: usize = 15 << 20;

/// Asks for two large results.
async fn start_two(socket: &mut Socket) {
    for _ in 0..2 {
        let call = json!({"name": "big", "arguments": {"bytes": LARGE}});
        socket.start("tools/call", call).await;
    }
}

/// The access lines of calls with a large result, once there are `count`.
async fn large(gw: &Gateway, count: usize) -> Vec<(String, u64)> {
    access_lines(gw, count, |line| line["name"] == "big").await
}

// Progress counts, as with `server.stall_timeout`; pings stay unanswered meanwhile.
#[tokio::test]
async fn slow_socket_reader_gets_large_replies() {
    let keep_alive = format!("keep_alive = \"500ms\"\n{ON}");
    let setup = Setup::open().server(&keep_alive).stub("stub", &[]);
    let gw = setup.start().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    start_two(&mut socket).await;
    let mut chunk = vec![0; 512 << 10];
    let mut left = 2 * LARGE;
    while left > 0 {
        // Slower than three pings in all.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let read = within("more of the reply", socket.raw().read(&mut chunk)).await;
        let read = read.unwrap();
        assert_ne!(read, 0, "cut off with {left} bytes to go");
        left = left.saturating_sub(read);
    }
    let lines = large(&gw, 2).await;
    let good = |(outcome, bytes): &(String, u64)| outcome == "ok" && *bytes > LARGE as u64;
    assert!(lines.iter().all(good), "{lines:?}");
    gw.stop().await;
}

#[tokio::test]
async fn unwritten_reply_is_not_logged_as_answered() {
    let gw = secured().await;
    let mut socket = open(&gw, "alice").await;
    start_two(&mut socket).await;
    let modern = Modern::new(gw.principal("alice"), "/ws/stub");
    let call = json!({"name": "big", "arguments": {"bytes": LARGE}});
    let call = modern.request(&json!(71), "tools/call", call);
    socket.tell(&call).await;
    eventually("all calls are answered", async || {
        let records = gw.log_records().into_iter();
        let audited = records.filter(|line| line["target"] == "audit" && line["name"] == "big");
        (audited.count() == 3).then_some(())
    })
    .await;
    drop(socket);
    let lines = large(&gw, 3).await;
    assert!(
        lines.iter().all(|(outcome, _)| outcome == "client_gone"),
        "{lines:?}"
    );
    assert!(lines.iter().all(|(_, bytes)| *bytes == 0), "{lines:?}");
    gw.stop().await;
}
