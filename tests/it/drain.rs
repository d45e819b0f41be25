//! SIGTERM: accepted requests are finished. Spec: DESIGN §11.

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::connection::EventSession;
use crate::harness::gateway::nothing_left;
use crate::harness::http::BOTH;
use crate::harness::session::text_of;
use crate::harness::socket::Socket;
use crate::harness::{Setup, eventually, within};
use crate::modern::{Modern, VERSION};

// Issue: "every accepted call gets its reply; exit within the grace period".
#[tokio::test]
async fn every_accepted_call_gets_its_reply() {
    // Longer than `exit` waits: a drain that runs into its deadline fails the test.
    let setup = Setup::secured().server("drain = \"60s\"");
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
    nothing_left(&family).await;
}

// GNU `timeout` signals the process and then its group. Two signals of one number could arrive as one.
#[tokio::test]
async fn signal_repeated_at_once_leaves_calls_running() {
    let setup = Setup::open().server("drain = \"60s\"");
    let mut gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, exchange) = user.start_call("sleep", json!({"ms": 600})).await;
    gw.signal(Signal::TERM);
    gw.signal(Signal::INT);
    let reply = exchange.finish().await.1.expect("a result");
    assert_eq!(text_of(&reply), "slept");
    assert_eq!(gw.exit().await, Some(0));
}

#[tokio::test]
async fn later_signal_ends_the_drain() {
    let setup = Setup::open().server("drain = \"60s\"");
    let mut gw = setup.stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, running) = user.start_call("sleep", json!({"ms": 60_000})).await;
    gw.signal(Signal::TERM);
    // Those of the first second are passed over.
    eventually("the line", async || {
        gw.signal(Signal::INT);
        let records = gw.log_records();
        let is_told = |record: &Value| record["message"] == "stopping at once";
        records.iter().any(is_told).then_some(())
    })
    .await;
    assert_eq!(gw.exit().await, Some(0));
    drop(running);
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
    eventually("no new connection is taken", async || {
        gw.anonymous().try_get("/mcp/stub").await.err()
    })
    .await;
    assert_eq!(
        text_of(&exchange.finish().await.1.expect("a result")),
        "slept"
    );
    assert_eq!(gw.exit().await, Some(0));
}

/// A modern `tools/call` of `echo` as it goes over a connection.
fn echo_call(user: &Modern, id: usize) -> String {
    let params = json!({"name": "echo", "arguments": {"id": id}});
    let body = user.request(&json!(id), "tools/call", params).to_string();
    format!(
        "POST /mcp/stub HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {BOTH}\r\n\
         content-type: application/json\r\nmcp-protocol-version: {VERSION}\r\n\
         mcp-method: tools/call\r\nmcp-name: echo\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

// Half go over new connections, half over ones that were used before. Each has left before the signal.
#[tokio::test]
async fn requests_sent_before_the_signal_are_answered() {
    for _ in 0..8 {
        let mut gw = Setup::open().stub("stub", &[]).start().await;
        let user = Modern::new(gw.anonymous(), "/mcp/stub");
        let connect = async || {
            let address = gw.url.trim_start_matches("http://");
            TcpStream::connect(address).await.unwrap()
        };
        let mut served = Vec::new();
        for _ in 0..20 {
            let mut stream = connect().await;
            let call = echo_call(&user, 1);
            stream.write_all(call.as_bytes()).await.unwrap();
            within("an answer", stream.read(&mut [0; 8192]))
                .await
                .unwrap();
            served.push(stream);
        }
        let mut sent = Vec::new();
        for mut stream in served {
            sent.push(connect().await);
            let newest = sent.last_mut().unwrap();
            let call = echo_call(&user, 2);
            newest.write_all(call.as_bytes()).await.unwrap();
            stream.write_all(call.as_bytes()).await.unwrap();
            sent.push(stream);
        }
        gw.signal(Signal::TERM);
        for mut stream in sent {
            let mut answer = Vec::new();
            let read = within("the end", stream.read_to_end(&mut answer)).await;
            let answer = String::from_utf8_lossy(&answer);
            let whole = answer.contains("200 OK") && answer.contains("\"id\":2");
            assert!(whole, "{read:?}: {answer:?}");
        }
        assert_eq!(gw.exit().await, Some(0));
    }
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
    gw.signal(Signal::TERM);
    gw.exit().await;
    nothing_left(&family).await;
    drop(held);
}

// Spec: SPEC O-04. A call cut off by the stop has an audit record as well.
#[tokio::test]
async fn a_call_that_is_cut_off_has_its_audit_line() {
    let gw = Setup::open().server("drain = \"0s\"").stub("stub", &[]);
    let mut gw = gw.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, held) = user.start_call("never", json!({})).await;
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
    drop(held);
    let audit = eventually("the audit line", async || {
        let records = gw.log_records().into_iter();
        let mut audit = records.filter(|r| r["target"] == "audit" && r["name"] == "never");
        audit.next()
    })
    .await;
    assert_eq!(audit["outcome"], "failed", "{audit}");
}

// A call cut off by the gateway's own stop is not logged as `client_gone`.
#[tokio::test]
async fn the_access_line_of_a_call_that_is_cut_off_names_the_stop() {
    let on = "drain = \"0s\"\n[server.websocket]\nenabled = true";
    let mut gw = Setup::open().server(on).stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, streaming) = user.start_call("never", json!({})).await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    let params = json!({"name": "never", "arguments": {}});
    let waiting = modern.request(&json!(7), "tools/call", params.clone());
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    socket.start("tools/call", params).await;
    socket.tell(&waiting).await;
    eventually("all calls run", async || {
        let running = gw.metric("drawbridge_calls_running", "").await;
        (running > 2.5).then_some(())
    })
    .await;
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
    drop((streaming, socket));
    let lines = eventually("all access lines", async || {
        let records = gw.log_records().into_iter();
        let access = records.filter(|r| r["target"] == "access" && r["name"] == "never");
        let access: Vec<_> = access.collect();
        (access.len() == 3).then_some(access)
    })
    .await;
    assert!(
        lines.iter().all(|line| line["outcome"] == "stopped"),
        "{lines:#?}"
    );
}

/// What the reply to a call says, as an error or as the result of its tool.
fn said(reply: Result<Value, Value>) -> String {
    reply.unwrap_or_else(|error| error).to_string()
}

#[tokio::test]
async fn call_that_outlasts_the_drain_gets_an_error_on_every_transport() {
    let on = "drain = \"1s\"\n[server.websocket]\nenabled = true\n[server.sse]\nenabled = true";
    let mut gw = Setup::open().server(on).stub("stub", &[]).start().await;
    let params = json!({"name": "never", "arguments": {}});
    let legacy = gw.anonymous().open("/mcp/stub").await;
    let (_, streaming) = legacy.start_call("never", json!({})).await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    let mut events = EventSession::open(&gw.anonymous(), "/sse/stub").await;
    let on_events = events.start("tools/call", params.clone()).await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    let on_socket = socket.start("tools/call", params.clone()).await;
    let sessionless = modern.request(&json!(77), "tools/call", params);
    socket.tell(&sessionless).await;
    let waiting = tokio::spawn(async move { modern.call("never", json!({})).await });
    eventually("all calls run", async || {
        let running = gw.metric("drawbridge_calls_running", "").await;
        (running > 4.5).then_some(())
    })
    .await;
    gw.signal(Signal::TERM);
    let mut replies = vec![
        said(streaming.finish().await.1),
        said(waiting.await.unwrap()),
        said(events.reply(on_events).await.1),
    ];
    for _ in [on_socket, 77] {
        let message = socket.message().await.expect("a reply");
        assert!([on_socket, 77].map(Value::from).contains(&message["id"]));
        replies.push(message.to_string());
    }
    for reply in replies {
        assert!(reply.contains("outcome is unknown"), "{reply}");
    }
    assert_eq!(gw.exit().await, Some(0));
}

// SIGHUP: sent by an operator who expects a reload, or by a closing terminal.
#[tokio::test]
async fn a_hangup_is_logged_and_changes_nothing() {
    let mut gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    gw.signal(Signal::HUP);
    eventually("the line", async || {
        let records = gw.log_records();
        let is_said = |record: &&Value| record["signal"] == "SIGHUP";
        let line = records.iter().find(is_said)?;
        let message = line["message"].as_str().unwrap();
        assert!(message.contains("not read again"), "{line}");
        Some(())
    })
    .await;
    let (status, _) = gw.admin_text("/ready").await.expect("an answer");
    assert_eq!(status, 200);
    user.text("echo", json!({})).await;
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
}

// The ladder of the child alone would take forty seconds.
#[tokio::test]
async fn a_child_that_will_not_end_is_killed_within_two_seconds_of_the_drain() {
    let mut gw = Setup::open()
        .server("drain = \"1s\"")
        .stub_with(
            "stub",
            &["--ignore-eof", "--ignore-sigterm"],
            "stop = { eof = \"20s\", term = \"20s\" }",
        )
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (_, running) = user.start_call("sleep", json!({"ms": 60_000})).await;
    let family = gw.children();
    gw.signal(Signal::TERM);
    assert_eq!(gw.exit().await, Some(0));
    drop(running);
    nothing_left(&family).await;
}

// A child is not idle while a session follows one of its resources, even without requests.
#[tokio::test]
async fn a_child_whose_notices_somebody_waits_for_is_not_idle() {
    let gw = Setup::open()
        .toml("[stdio]\nidle = \"200ms\"")
        .stub("stub", &[])
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let uri = json!({"uri": "stub://static/1"});
    let answer = user.request("resources/subscribe", uri.clone()).await;
    answer.expect("subscribed");
    let pid = user.text("pid", json!({})).await;
    // Another upstream process goes by the same clock, and shows that its time has come.
    let other = gw.anonymous().open("/mcp/stub").await;
    other.text("pid", json!({})).await;
    let running = async || gw.metric("drawbridge_children_running", "").await;
    eventually("the idle one is stopped", async || {
        (running().await < 1.5).then_some(())
    })
    .await;
    assert_eq!(user.text("pid", json!({})).await, pid);
    let answer = user.request("resources/unsubscribe", uri).await;
    answer.expect("unsubscribed");
    eventually("it is idle now", async || {
        (running().await < 0.5).then_some(())
    })
    .await;
    gw.stop().await;
}
