//! Revision 2026-07-28 over a WebSocket.

use serde_json::{Value, json};

use crate::harness::session::text_of;
use crate::harness::socket::Socket;
use crate::harness::{Gateway, Setup, eventually};
use crate::modern::Modern;

const ON: &str = "[server.websocket]\nenabled = true";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn gateway() -> Gateway {
    Setup::open().server(ON).stub("stub", &[]).start().await
}

/// A socket without any session, and the same client over HTTP.
async fn connect(gw: &Gateway) -> (Socket, Modern) {
    let socket = Socket::connect(&gw.url, "/ws/stub", None).await;
    (socket, Modern::new(gw.anonymous(), "/mcp/stub"))
}

fn call(user: &Modern, id: i64, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    user.request(&json!(id), "tools/call", params)
}

async fn running(gw: &Gateway, wanted: f64) {
    eventually("so many calls run", async || {
        let running = gw.metric("drawbridge_calls_running", "").await;
        ((running - wanted).abs() < 0.5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_stand_alone_without_initialize() {
    let gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    let discover = user.request(&json!(1), "server/discover", json!({}));
    socket.tell(&discover).await;
    let found = socket.reply(1).await.1.unwrap();
    assert!(found["supportedVersions"].is_array(), "{found}");
    let user = user.meta(json!({"progressToken": "p"}));
    socket
        .tell(&call(&user, 2, "notices", &json!({"n": 3})))
        .await;
    let (before, reply) = socket.reply(2).await;
    assert_eq!(text_of(&reply.unwrap()), "3 sent");
    let progress = before
        .iter()
        .filter(|message| message["params"]["progressToken"] == "p");
    assert_eq!(progress.count(), 3, "{before:?}");
    // Arguments that HTTP wants repeated in headers have none to be repeated in.
    let regional = call(&user, 3, "regional", &json!({"region": "é"}));
    socket.tell(&regional).await;
    let result = socket.reply(3).await.1.unwrap();
    assert!(text_of(&result).starts_with("region"), "{result}");
    gw.stop().await;
}

#[tokio::test]
async fn calls_interleave_and_one_is_cancelled_by_its_id() {
    let gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    let long = json!({"ms": 60_000});
    socket.tell(&call(&user, 1, "sleep", &long)).await;
    running(&gw, 1.0).await;
    socket.tell(&call(&user, 1, "echo", &json!({}))).await;
    let (_, twice) = socket.reply(1).await;
    assert_eq!(twice.unwrap_err()["code"], -32600);
    socket
        .tell(&call(&user, 2, "echo", &json!({"text": "hi"})))
        .await;
    assert_eq!(text_of(&socket.reply(2).await.1.unwrap()), "hi");
    running(&gw, 1.0).await;
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    socket.tell(&cancel).await;
    running(&gw, 0.0).await;
    socket
        .tell(&call(&user, 3, "echo", &json!({"text": "on"})))
        .await;
    let (before, reply) = socket.reply(3).await;
    assert_eq!((before, text_of(&reply.unwrap())), (Vec::new(), "on"));
    gw.stop().await;
}

#[tokio::test]
async fn a_closed_socket_cancels_its_modern_calls() {
    let gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    for id in 1..=3 {
        let long = json!({"ms": 60_000});
        socket.tell(&call(&user, id, "sleep", &long)).await;
    }
    running(&gw, 3.0).await;
    drop(socket);
    running(&gw, 0.0).await;
    gw.stop().await;
}

// Spec: BRIDGING §3.1.
#[tokio::test]
async fn a_question_is_answered_by_a_retry_on_the_socket_or_over_http() {
    let gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    for over_http in [false, true] {
        socket.tell(&call(&user, 1, "ask_form", &json!({}))).await;
        let asked = socket.reply(1).await.1.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let key = asked["inputRequests"].as_object().unwrap().keys().next();
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        let retry = json!({
            "name": "ask_form", "arguments": {}, "requestState": asked["requestState"],
            "inputResponses": {key.unwrap(): answer},
        });
        let done = if over_http {
            user.send("tools/call", retry).await
        } else {
            let retry = user.request(&json!(2), "tools/call", retry);
            socket.tell(&retry).await;
            socket.reply(2).await.1
        };
        let done = done.unwrap();
        assert!(text_of(&done).contains("Ada"), "{done}");
    }
    gw.stop().await;
}

// Spec: SPEC M-70, M-72, M-74.
#[tokio::test]
async fn a_subscription_is_told_of_changes_and_ends_at_a_drain() {
    let mut gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen = user.request(&json!("s"), "subscriptions/listen", wanted);
    socket.tell(&listen).await;
    let ack = socket.message().await.unwrap();
    assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(ack["params"]["_meta"][SUBSCRIPTION], "s");
    user.call("change_tools", json!({})).await.unwrap();
    let told = socket.message().await.unwrap();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"][SUBSCRIPTION], "s");
    gw.signal(rustix::process::Signal::TERM);
    let end = socket.message().await.unwrap();
    assert_eq!(
        (&end["id"], &end["result"]["resultType"]),
        (&json!("s"), &json!("complete"))
    );
    assert_eq!(socket.closed().await, Some(1001));
    assert_eq!(gw.exit().await, Some(0));
}

// Spec: SPEC M-05, M-06, M-13, M-14.
#[tokio::test]
async fn a_bad_envelope_is_refused_and_the_socket_goes_on() {
    let gw = gateway().await;
    let (mut socket, user) = connect(&gw).await;
    let good = user.request(&json!(1), "tools/list", json!({}));
    let version = "io.modelcontextprotocol/protocolVersion";
    let mut incomplete = good.clone();
    incomplete["params"]["_meta"] = json!({version: "2026-07-28"});
    let mut unknown = good.clone();
    unknown["params"]["_meta"][version] = json!("1900-01-01");
    let removed = user.request(&json!(1), "ping", json!({}));
    // More refusals than may wait unread: the socket stays open.
    for _ in 0..20 {
        for message in [&incomplete, &unknown, &removed] {
            socket.tell(message).await;
        }
    }
    for _ in 0..20 {
        let mut codes = Vec::new();
        for _ in 0..3 {
            let error = socket.reply(1).await.1.unwrap_err();
            codes.push(error["code"].as_i64().unwrap());
        }
        codes.sort_unstable();
        assert_eq!(codes, [-32602, -32601, -32022]);
    }
    socket.tell(&good).await;
    socket.reply(1).await.1.expect("a list");
    gw.stop().await;
}

#[tokio::test]
async fn legacy_and_modern_frames_share_a_socket() {
    let gw = gateway().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    let user = Modern::new(gw.anonymous(), "/mcp/stub");
    let long = json!({"name": "sleep", "arguments": {"ms": 60_000}});
    let legacy = socket.start("tools/call", long).await;
    running(&gw, 1.0).await;
    socket
        .tell(&call(&user, 900, "echo", &json!({"text": "new"})))
        .await;
    let modern = socket.reply(900).await.1.unwrap();
    assert_eq!(
        (text_of(&modern), &modern["resultType"]),
        ("new", &json!("complete"))
    );
    let old = socket.call("echo", json!({"text": "old"})).await.unwrap();
    assert_eq!((text_of(&old), old.get("resultType")), ("old", None));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                        "params": {"requestId": legacy}});
    socket.tell(&cancel).await;
    running(&gw, 0.0).await;
    gw.stop().await;
}

// The bound of HTTP: calls of one principal.
#[tokio::test]
async fn calls_beyond_the_bound_are_refused() {
    let setup = Setup::open().server(ON).stub("stub", &[]);
    let gw = setup
        .toml("[limits]\ncalls_per_principal = 2")
        .start()
        .await;
    let (mut socket, user) = connect(&gw).await;
    for id in 1..=2 {
        let long = json!({"ms": 60_000});
        socket.tell(&call(&user, id, "sleep", &long)).await;
    }
    running(&gw, 2.0).await;
    let list = user.request(&json!(3), "tools/list", json!({}));
    socket.tell(&list).await;
    assert_eq!(socket.reply(3).await.1.unwrap_err()["code"], -32603);
    gw.stop().await;
}
