//! How an upstream does is known, shown, and spares its callers waiting in vain.
//! Spec: DESIGN §6 (health); SPEC G-03.

use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::response::IntoResponse as _;
use futures_util::future::join_all;
use http::{Method, StatusCode};
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::net::TcpListener;

use crate::harness::http::initialize;
use crate::harness::session::text_of;
use crate::harness::upstream::{HttpStub, serve, stub_program};
use crate::harness::{Gateway, Setup, eventually};

/// Values of `drawbridge.upstream.state`: reached, and unreachable.
const UP: f64 = 1.0;
const DOWN: f64 = 3.0;

/// A port that accepts connections and never sends a byte.
async fn silence() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn reaches(gw: &Gateway, upstream: &str, state: f64) {
    let labels = format!("drawbridge_upstream=\"{upstream}\"");
    eventually(&format!("{upstream} is {state}"), async || {
        let now = gw.metric("drawbridge_upstream_state", &labels).await;
        ((now - state).abs() < 0.5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_hangs_is_down_and_not_waited_for_until_it_is_back() {
    let silent = silence().await;
    let port = silent.local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let gw = Setup::open()
        .stub("fine", &[])
        .url("hung", &url, "connect_timeout = \"1500ms\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    reaches(&gw, "fine", UP).await;
    // Each attempt takes longer than a second: after several failures a call is refused at once.
    eventually("a call that does not wait", async || {
        let reply = user.call("hung__echo", json!({})).await.unwrap();
        assert_eq!(reply["isError"], true);
        text_of(&reply)
            .contains("it did not answer lately (no answer in time); it is tried again")
            .then_some(())
    })
    .await;
    reaches(&gw, "hung", DOWN).await;
    // Lists do not wait either, and have the tools of the reachable upstream.
    eventually("a list that does not wait", async || {
        let tools = user.tools().await;
        assert!(tools.contains(&"fine__echo".to_owned()), "{tools:?}");
        went_on_without_waiting(&gw).then_some(())
    })
    .await;
    drop(silent);
    let _back = HttpStub::start_on(port, &[]).await;
    eventually("the upstream is listed", async || {
        let tools = user.tools().await;
        tools.contains(&"hung__echo".to_owned()).then_some(())
    })
    .await;
    reaches(&gw, "hung", UP).await;
    assert_eq!(user.text("hung__echo", json!({})).await, "{}");
    gw.stop().await;
}

/// Whether a list was shown without an upstream that was not ready.
fn went_on_without_waiting(gw: &Gateway) -> bool {
    let left_out =
        |line: &String| line.contains("left out of a list") && line.contains("not ready yet");
    gw.log().iter().any(left_out)
}

// A refused connection fails at once, so there is no back-off in which a returned server is overlooked.
#[tokio::test]
async fn an_upstream_that_refuses_is_down_and_answers_the_first_call_after_its_return() {
    let gone = HttpStub::start(&[]).await;
    let (port, url) = (gone.port(), gone.url.clone());
    gone.stop().await;
    let gw = Setup::open()
        .stub("fine", &[])
        .url("gone", &url, "")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp").await;
    for _ in 0..4 {
        let reply = user.call("gone__echo", json!({})).await.unwrap();
        assert!(text_of(&reply).contains("refused"), "{reply}");
    }
    reaches(&gw, "gone", DOWN).await;
    let _back = HttpStub::start_on(port, &[]).await;
    assert_eq!(user.text("gone__echo", json!({})).await, "{}");
    reaches(&gw, "gone", UP).await;
    gw.stop().await;
}

// An unreachable upstream does not end the sessions already open on it.
#[tokio::test]
async fn an_open_session_is_used_also_while_nobody_else_gets_through() {
    let stub = HttpStub::start(&[]).await;
    let (port, url) = (stub.port(), stub.url.clone());
    let keys = "connect_timeout = \"1500ms\"\nidle_timeout = \"1s\"";
    let gw = Setup::open().url("hung", &url, keys).start().await;
    let early = gw.anonymous().open("/mcp/hung").await;
    assert_eq!(early.text("echo", json!({})).await, "{}");
    stub.stop().await;
    let _silent = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let late = gw.anonymous().open("/mcp").await;
    eventually("a call that does not wait", async || {
        let reply = late.call("hung__echo", json!({})).await.unwrap();
        text_of(&reply)
            .contains("it did not answer lately")
            .then_some(())
    })
    .await;
    let reply = early.call("echo", json!({})).await.unwrap();
    assert!(
        text_of(&reply).contains("did not answer in time"),
        "{reply}"
    );
    gw.stop().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_says_nothing_of_its_upstream() {
    let gw = Setup::open()
        .stub_with("stub", &[], "idle_timeout = \"300ms\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for _ in 0..3 {
        let reply = user.call("never", json!({})).await.unwrap();
        assert_eq!(reply["isError"], true, "{reply}");
    }
    reaches(&gw, "stub", UP).await;
    // Operators see why the calls failed.
    let (_, status) = gw.admin_text("/status").await.unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let stub = &status["upstreams"][0];
    assert_eq!(stub["state"], "up", "{status}");
    assert_eq!(stub["cause"]["text"], "no answer in time", "{status}");
    let remedy = stub["cause"]["remedy"].as_str().unwrap();
    assert!(remedy.contains("`idle_timeout`"), "{remedy}");
    gw.stop().await;
}

#[tokio::test]
async fn a_child_that_says_nothing_is_left_out_at_once_after_the_first_lists() {
    let gw = Setup::open()
        .toml("[mcp]\nconnect_wait = \"300ms\"")
        .stub("fine", &[])
        .stdio("mute", "sleep", &["1000"], "connect_timeout = \"30s\"")
        .start()
        .await;
    // Two that waited: the third session need not.
    for _ in 0..2 {
        let user = gw.anonymous().open("/mcp").await;
        assert!(user.tools().await.contains(&"fine__echo".to_owned()));
    }
    reaches(&gw, "mute", DOWN).await;
    eventually("a session that does not wait", async || {
        let user = gw.anonymous().open("/mcp").await;
        let tools = user.tools().await;
        assert!(tools.contains(&"fine__echo".to_owned()), "{tools:?}");
        went_on_without_waiting(&gw).then_some(())
    })
    .await;
    gw.stop().await;
}

// Each attempt takes as long as `connect_timeout`: one after another, the last caller would wait for
// as many of them as there are callers.
#[rstest]
#[case::to_one_child_of_all("era = \"legacy\"\nisolation = \"shared\"", false)]
#[case::to_one_link_of_an_unknown_era("isolation = \"shared\"", true)]
#[case::to_links_of_an_unknown_era("isolation = \"session\"", true)]
#[tokio::test]
async fn who_waits_while_an_attempt_to_open_an_upstream_fails_makes_no_other(
    #[case] keys: &str,
    #[case] over_http: bool,
) {
    const CALLERS: usize = 12;
    let silent = silence().await;
    let url = format!("http://{}/mcp", silent.local_addr().unwrap());
    let keys = format!("connect_timeout = \"3s\"\n{keys}");
    let setup = if over_http {
        Setup::open().url("hung", &url, &keys)
    } else {
        Setup::open().stdio("hung", "sleep", &["1000"], &keys)
    };
    let gw = setup.start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let callers: Vec<_> = (0..CALLERS).map(|_| gw.anonymous()).collect();
    let greetings = callers.iter().map(|caller| async {
        let answer = caller.post("/mcp/hung", &[], &hello).await;
        answer.error().await
    });
    for error in join_all(greetings).await {
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("did not answer in time"), "{error}");
    }
    let failed = gw.metric("drawbridge_upstream_failed_total", "hung").await;
    assert!((1.0..4.0).contains(&failed), "{failed} attempts failed");
    gw.stop().await;
}

/// A look each second.
const EVERY_SECOND: &str = "[health]\ninterval = \"1s\"";

#[tokio::test]
async fn an_upstream_that_nobody_calls_is_seen_down_and_up_again() {
    let stub = HttpStub::start(&[]).await;
    let (port, url) = (stub.port(), stub.url.clone());
    let gw = Setup::open()
        .url("up", &url, "")
        .toml(EVERY_SECOND)
        .start()
        .await;
    reaches(&gw, "up", UP).await;
    stub.stop().await;
    reaches(&gw, "up", DOWN).await;
    let back = HttpStub::start_on(port, &[]).await;
    reaches(&gw, "up", UP).await;
    assert_eq!(back.counted("initialize").await, 0, "no session was opened");
    gw.stop().await;
}

// Spec: SPEC U-04: the health check is an `OPTIONS` request with an unknown session id, which opens no session.
#[rstest]
#[case::wants_a_token(401, UP)]
#[case::knows_no_such_path(404, UP)]
#[case::refuses_the_method(405, UP)]
#[case::has_no_such_method(501, UP)]
#[case::is_broken(500, DOWN)]
#[case::stands_before_one_that_is_gone(502, DOWN)]
#[case::is_overloaded(503, DOWN)]
#[tokio::test]
async fn an_answer_to_a_look_says_whether_a_server_is_there(
    #[case] status: u16,
    #[case] state: f64,
    #[values("auto", "streamable", "sse", "websocket")] transport: &str,
) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let origin = serve(move |request: Request| {
        let session = request.headers().contains_key("mcp-session-id");
        log.lock()
            .unwrap()
            .push((request.method().clone(), session));
        std::future::ready(StatusCode::from_u16(status).unwrap().into_response())
    })
    .await;
    let gw = Setup::open()
        .url(
            "up",
            &format!("{origin}/mcp"),
            &format!("transport = {transport:?}"),
        )
        .toml(EVERY_SECOND)
        .start()
        .await;
    reaches(&gw, "up", state).await;
    let asked = asked.lock().unwrap().clone();
    assert!(
        asked.iter().all(|one| *one == (Method::OPTIONS, true)),
        "{asked:?}"
    );
    gw.stop().await;
}

/// The process id of the only stub.
fn stub_of(gw: &Gateway) -> u32 {
    let program = stub_program();
    let children = gw.children().into_iter().map(|child| child.pid);
    let is_stub = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with(program.as_bytes())
    };
    let stubs: Vec<_> = children.filter(is_stub).collect();
    assert_eq!(stubs.len(), 1, "{stubs:?}");
    stubs[0]
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

// A hung child keeps its pipe open: only a ping detects the hang.
#[tokio::test]
async fn an_idle_child_that_hangs_is_seen_down_and_up_again() {
    let gw = Setup::open()
        .stub_with("stub", &[], "connect_timeout = \"3s\"")
        .toml(EVERY_SECOND)
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    reaches(&gw, "stub", UP).await;
    let child = stub_of(&gw);
    signal(child, Signal::STOP);
    reaches(&gw, "stub", DOWN).await;
    signal(child, Signal::CONT);
    reaches(&gw, "stub", UP).await;
    assert_eq!(stub_of(&gw), child, "none was started");
    assert_eq!(user.text("echo", json!({})).await, "{}");
    gw.stop().await;
}

#[tokio::test]
async fn a_look_neither_starts_a_child_nor_keeps_one() {
    let gw = Setup::open()
        .stub("stub", &[])
        .toml(EVERY_SECOND)
        .toml("[stdio]\nidle = \"3s\"")
        .start()
        .await;
    let user = gw.anonymous().open("/mcp/stub").await;
    assert_eq!(user.text("echo", json!({})).await, "{}");
    eventually("the idle child is stopped", async || {
        let running = gw.metric("drawbridge_children_running", "").await;
        (running < 0.5).then_some(())
    })
    .await;
    reaches(&gw, "stub", UP).await;
    let spawned = gw.metric("drawbridge_children_spawned_total", "").await;
    eventually("some looks later", async || {
        let status = gw.admin_text("/status").await.unwrap().1;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        (status["uptime_s"].as_u64() >= Some(8)).then_some(())
    })
    .await;
    let now = gw.metric("drawbridge_children_spawned_total", "").await;
    assert!((spawned - now).abs() < 0.5, "{spawned} {now}");
    gw.stop().await;
}
