//! WebSocket clients of several replicas: a socket is one connection to one replica, and its session ends with it.
//! Spec: DESIGN §8.1.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::adoption::adopted;
use super::{SECRET, forwards, pair, tables};
use crate::harness::redis;
use crate::harness::session::text_of;
use crate::harness::socket::Socket;
use crate::harness::{Gateway, Setup, eventually};

/// Far above the time in which a client has another session: no test waits for its end.
const LEASE: &str = "lease = \"30s\"";
/// Far below it.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn set(socket: &mut Socket) {
    let arguments = json!({"key": "k", "value": "kept"});
    socket.call("state_set", arguments).await.unwrap();
}

/// A further socket has a session of its own at once, where nothing is kept.
async fn reconnects(gateway: &Gateway, since: Instant) -> Socket {
    let mut socket = Socket::open(&gateway.url, "/ws/stub", None).await;
    let kept = socket.call("state_get", json!({"key": "k"})).await.unwrap();
    assert!(!text_of(&kept).contains("kept"), "{kept}");
    assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
    assert!(forwards(gateway, "").await < 0.5, "nothing is passed on");
    assert!(adopted(gateway).await < 0.5, "nothing is adopted");
    socket
}

#[tokio::test]
async fn socket_session_ends_with_its_replica_and_the_next_one_begins_elsewhere() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let make = || {
        let setup = Setup::open().toml(&tables(&redis, SECRET, LEASE));
        let on = "drain_linger = \"200ms\"\n[server.websocket]\nenabled = true";
        setup.server(on).stub("stub", &[])
    };
    let [mut one, two] = pair(make).await;
    let mut socket = Socket::open(&one.url, "/ws/stub", None).await;
    set(&mut socket).await;
    let params = json!({"name": "sleep", "arguments": {"ms": 1000}});
    let call = socket.start("tools/call", params).await;
    eventually("the call runs", async || {
        let running = one.metric("drawbridge_calls_running", "").await;
        (running > 0.5).then_some(())
    })
    .await;
    one.signal(Signal::TERM);
    let slept = socket.reply(call).await.1.expect("the call ends first");
    assert_eq!(text_of(&slept), "slept");
    let ended = Instant::now();
    assert_eq!(socket.message().await, None, "the socket ends");
    let mut socket = reconnects(&two, ended).await;
    assert_eq!(one.exit().await, Some(0));
    // The same where a replica is killed, whose lease is not over.
    set(&mut socket).await;
    let three = make().start().await;
    let killed = Instant::now();
    two.kill().await;
    assert_eq!(socket.message().await, None, "the socket breaks");
    reconnects(&three, killed).await;
    three.stop().await;
}
