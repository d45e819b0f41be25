//! Upstreams over HTTP+SSE of 2024-11-05 and over WebSocket. Spec: SPEC §5, U-05, U-11, X-01.

use std::fmt::Write as _;
use std::future::ready;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::http::{everything, initialize};
use crate::harness::session::text_of;
use crate::harness::tunnel::{ConnectProxy, TlsFront};
use crate::harness::upstream::{HttpStub, serve};
use crate::harness::{Actor, Gateway, Setup, eventually, peers};

/// Keys that say the transport, and how the stub is started.
const WAYS: [(&str, &str); 3] = [("sse", "transport = \"sse\""), ("sse", ""), ("ws", "")];

async fn behind(way: usize) -> (Gateway, HttpStub) {
    let (mode, keys) = WAYS[way];
    let stub = HttpStub::start_as(mode, 0, &[]).await;
    let keys = format!("headers = {{ \"X-Team\" = \"platform\" }}\n{keys}");
    let gw = Setup::secured().http("stub", &stub, &keys).start().await;
    (gw, stub)
}

/// The stub's counters.
async fn stats(stub: &HttpStub) -> Value {
    let base = stub.url.replace("ws://", "http://");
    let url: url::Url = base.parse().unwrap();
    let stub = Actor::new(&url.origin().ascii_serialization(), None);
    serde_json::from_str(&stub.try_get_any("/stats").await).unwrap()
}

#[rstest]
#[tokio::test]
async fn lists_calls_progress_and_questions_go_through(#[values(0, 1, 2)] way: usize) {
    let (gw, stub) = behind(way).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    assert!(user.names("tools/list", "tools", "name").await.len() > 5);
    assert!(
        user.text("echo", json!({"text": "hi"}))
            .await
            .contains("hi")
    );
    let params = json!({"name": "notices", "arguments": {"n": 3}, "_meta": {"progressToken": "p"}});
    let (_, exchange) = user.start("tools/call", params).await;
    let (before, reply) = exchange.finish().await;
    reply.expect("a result");
    assert_eq!(before.len(), 3, "{before:?}");
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    assert_eq!(question["method"], "elicitation/create");
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    user.answer(&question, answer).await;
    let result = exchange.finish().await.1.unwrap();
    assert!(text_of(&result).contains("Ada"), "{result}");
    let stats = stats(&stub).await;
    assert_eq!(stats["headers"]["x-team"], "platform", "{stats}");
    assert_eq!(stats["headers"].get("authorization"), None, "{stats}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn notices_outside_calls_reach_the_client(#[values(0, 2)] way: usize) {
    let (gw, _stub) = behind(way).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let mut general = user.listen().await;
    user.text("change_tools", json!({})).await;
    general.until("notifications/tools/list_changed").await;
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_cancelled_call_is_cancelled_upstream(#[values(0, 2)] way: usize) {
    let (gw, stub) = behind(way).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    let id = user.next_id();
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                      "params": {"name": "sleep", "arguments": {"ms": 60_000}}});
    let waiting = user.post(&call);
    let cancelling = async {
        eventually("the call runs", async || {
            (stats(&stub).await["running"] == 1).then_some(())
        })
        .await;
        let params = json!({"requestId": id, "reason": "enough"});
        user.notify("notifications/cancelled", params).await;
    };
    tokio::join!(waiting, cancelling);
    eventually("the cancellation", async || {
        let cancels = stats(&stub).await["cancels"].clone();
        (cancels[0]["known"] == true && cancels[0]["params"]["reason"] == "enough").then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC H-07: reconnect, and initialize again.
#[rstest]
#[tokio::test]
async fn a_broken_connection_fails_its_calls_and_the_next_call_opens_another(
    #[values(0, 1, 2)] way: usize,
) {
    let (gw, stub) = behind(way).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    user.text("state_set", json!({"key": "a", "value": "b"}))
        .await;
    let broken = user.call("break_stream", json!({})).await.unwrap();
    assert_eq!(broken["isError"], true, "{broken}");
    user.text("echo", json!({"text": "again"})).await;
    let stats = stats(&stub).await;
    assert_eq!(stats["counts"]["initialize"], 2, "{stats}");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn the_end_of_a_session_ends_its_upstream_connection(#[values(0, 2)] way: usize) {
    let (gw, stub) = behind(way).await;
    let user = gw.principal("alice").open("/mcp/stub").await;
    user.text("echo", json!({"text": "hi"})).await;
    assert_eq!(stats(&stub).await["sessions"], 1);
    assert_eq!(user.delete().await, 204);
    eventually("the upstream connection is closed", async || {
        (stats(&stub).await["sessions"] == 0).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC H-06, X-01.
#[tokio::test]
async fn posts_never_go_to_another_origin() {
    let thief = HttpStub::start_as("sse", 0, &[]).await;
    let announce = thief.url.replace("/sse", "/messages?s=1");
    let stub = HttpStub::start_as("sse", 0, &["--announce", &announce]).await;
    let keys = "transport = \"sse\"\nheaders = { \"X-Key\" = \"secret\" }";
    let gw = Setup::open().http("stub", &stub, keys).start().await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = gw.anonymous().post("/mcp/stub", &[], &hello).await;
    let error = refused.error().await;
    let text = error["message"].as_str().unwrap().to_owned();
    assert!(text.contains("another origin"), "{text}");
    assert!(!text.contains("127.0.0.1"), "{text}");
    let counts = stats(&thief).await["counts"].clone();
    assert_eq!(counts.get("unknown_sessions"), None, "{counts}");
    gw.stop().await;
}

// Spec: SPEC U-06; BRIDGING §3.10.
#[rstest]
#[case::unauthorized(401, "HTTP status 401")]
#[case::forbidden(403, "HTTP status 403")]
#[case::elsewhere(302, "HTTP status 302, a redirection")]
#[case::broken(500, "HTTP status 500")]
#[case::busy(429, "try again in 7 s")]
#[case::not_there(404, "initialize was refused with HTTP status 405")]
#[case::not_spoken(405, "initialize was refused with HTTP status 405")]
#[tokio::test]
async fn what_the_old_transport_is_refused_with_is_told(#[case] status: u16, #[case] said: &str) {
    let answer = move |request: Request| {
        let is_stream = request.method() == http::Method::GET;
        let response = Response::builder()
            .status(if is_stream { status } else { 405 })
            .header("retry-after", "7");
        ready(response.body(Body::empty()).unwrap())
    };
    let url = serve(answer).await + "/sse";
    let gw = Setup::open().url("old", &url, "").start().await;
    let hello = initialize(1, "2025-11-25", &everything());
    let refused = gw.anonymous().post("/mcp/old", &[], &hello).await;
    let error = refused.error().await;
    let text = error["message"].as_str().unwrap();
    assert!(text.contains(said), "{text}");
    gw.stop().await;
}

// Spec: SPEC U-05. Some routers hand a request of any method to the handler of GET.
#[tokio::test]
async fn old_stream_in_answer_to_a_post_is_opened_as_the_old_transport() {
    let stub = HttpStub::start_as("sse", 0, &["--streams-to-posts"]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let text = json!({"text": "hi"});
    assert!(user.text("echo", text).await.contains("hi"));
    gw.stop().await;
}

// Spec: SPEC U-05.
#[tokio::test]
async fn what_was_found_out_is_tried_first_the_next_time() {
    let (gw, stub) = behind(1).await;
    for name in ["alice", "bob"] {
        let user = gw.principal(name).open("/mcp/stub").await;
        user.text("echo", json!({"text": "hi"})).await;
    }
    let after_two = stats(&stub).await["counts"]["refused_posts"].clone();
    let carol = gw.principal("carol").open("/mcp/stub").await;
    carol.text("echo", json!({"text": "hi"})).await;
    assert_eq!(stats(&stub).await["counts"]["refused_posts"], after_two);
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_message_in_a_binary_frame_is_a_message(#[values("legacy", "modern")] era: &str) {
    let stub = HttpStub::start_as("ws", 0, &["--binary-frames", "--era", era]).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let text = json!({"text": "hi"});
    assert!(user.text("echo", text).await.contains("hi"));
    gw.stop().await;
}

#[tokio::test]
async fn a_message_over_the_bound_breaks_the_socket_and_not_the_gateway() {
    let stub = HttpStub::start_as("ws", 0, &[]).await;
    let setup = Setup::open().http("stub", &stub, "");
    let setup = setup.toml("[limits]\nupstream_message = \"64KiB\"");
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let big = user.call("big", json!({"bytes": 200_000})).await.unwrap();
    assert_eq!(big["isError"], true, "{big}");
    user.text("echo", json!({"text": "hi"})).await;
    gw.stop().await;
}

// A real server of the old transport.
#[tokio::test]
async fn everything_over_the_old_transport_is_an_upstream() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::module("@modelcontextprotocol/server-everything/dist/index.js");
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let home = tempfile::tempdir().unwrap();
    let mut server = peers::command(&peers::node(), &[&script, "sse"], home.path());
    let _server = server.env("PORT", port.to_string()).spawn().unwrap();
    eventually("the server listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .ok()
    })
    .await;
    let url = format!("http://127.0.0.1:{port}/sse");
    let gw = Setup::secured().url("everything", &url, "").start().await;
    let user = gw.principal("user");
    let options = json!({"url": format!("{}/mcp/everything", gw.url), "token": user.token()});
    let tour = peers::script("clients/everything.mjs");
    let steps = [
        "tools",
        "prompts",
        "progress",
        "sampling",
        "elicitation_form",
        "roots",
    ];
    peers::tour(&peers::node(), &[&tour, "1", &options.to_string()], &steps).await;
    gw.stop().await;
}

// Spec: SPEC U-02: the upstream closed the socket before the call was sent, so the call cannot have run.
#[rstest]
#[case("legacy")]
#[case("modern")]
#[tokio::test]
async fn a_socket_that_the_upstream_has_closed_is_replaced(#[case] era: &str) {
    let stub = HttpStub::start_as("ws", 0, &["--era", era]).await;
    let keys = format!("era = {era:?}");
    let gw = Setup::open().http("stub", &stub, &keys).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    for round in 1..=10 {
        assert_eq!(user.text("forget_session", json!({})).await, "forgotten");
        let text = json!({"text": format!("round {round}")});
        assert!(user.text("echo", text).await.contains("round"));
    }
    assert_eq!(stats(&stub).await["counts"]["sockets"], 11);
    gw.stop().await;
}

#[rstest]
#[case::tls(true, false)]
#[case::tls_through_a_proxy(true, true)]
#[case::plain_through_a_proxy(false, true)]
#[tokio::test]
async fn a_socket_is_reached_where_it_stands_elsewhere(#[case] tls: bool, #[case] proxied: bool) {
    let stub = HttpStub::start_as("ws", 0, &[]).await;
    let (front, proxy) = (
        TlsFront::start(stub.port()).await,
        ConnectProxy::start().await,
    );
    let mut keys = String::new();
    if proxied {
        writeln!(keys, "proxy = {:?}", proxy.url).unwrap();
    }
    let url = if tls {
        writeln!(keys, "ca_file = {:?}", front.ca_file()).unwrap();
        format!("wss://localhost:{}/ws", front.port)
    } else {
        stub.url.clone()
    };
    let gw = Setup::open().url("stub", &url, &keys).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let echoed = user.text("echo", json!({"text": "hi"})).await;
    assert!(echoed.contains("hi"));
    let (_, mut exchange) = user.start_call("ask_form", json!({})).await;
    let question = exchange.next().await.expect("a question");
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    user.answer(&question, answer).await;
    let result = exchange.finish().await.1.unwrap();
    assert!(text_of(&result).contains("Ada"), "{result}");
    assert_eq!(proxy.tunnels() > 0, proxied);
    gw.stop().await;
}

// Spec: SPEC U-11.
#[tokio::test]
async fn a_socket_whose_certificate_nobody_vouches_for_is_not_used() {
    let stub = HttpStub::start_as("ws", 0, &[]).await;
    let front = TlsFront::start(stub.port()).await;
    let other = TlsFront::start(stub.port()).await;
    let url = format!("wss://localhost:{}/ws", front.port);
    let keys = format!("ca_file = {:?}", other.ca_file());
    let gw = Setup::open().url("stub", &url, &keys).start().await;
    let hello = initialize(1, "2025-11-25", &everything());
    let answer = gw.anonymous().post("/mcp/stub", &[], &hello).await;
    let refused = answer.json().await;
    assert!(refused["error"].is_object(), "{refused}");
    gw.stop().await;
}
