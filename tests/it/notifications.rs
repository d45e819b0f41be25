//! Notifications of clients on their way to an upstream that does not read. Spec: SPEC L-06, C-10, D-01.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::process::resident;
use crate::harness::session::text_of;
use crate::harness::socket::Socket;
use crate::harness::{Gateway, Session, Setup, eventually, within};

const ROOTS_CHANGED: &str = "notifications/roots/list_changed";

/// A file that a stalled stub waits for.
struct Go(TempDir);

impl Go {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> String {
        self.0.path().join("go").to_str().unwrap().to_owned()
    }

    fn give(&self) {
        std::fs::write(self.path(), "").unwrap();
    }
}

/// A notification of about `bytes`.
fn numbered(number: u64, bytes: usize) -> Value {
    json!({"jsonrpc": "2.0", "method": ROOTS_CHANGED,
           "params": {"number": number, "_meta": {"ballast": "x".repeat(bytes)}}})
}

/// Has the upstream of `user` stop reading.
async fn stall(user: &Session, go: &Go) {
    drop(user.start_call("stall", json!({"until": go.path()})).await);
}

async fn stats(user: &Session) -> Value {
    let stats = within("the stub reads again", user.call("stats", json!({}))).await;
    serde_json::from_str(text_of(&stats.unwrap())).unwrap()
}

fn numbers(stats: &Value) -> Vec<u64> {
    let numbers = stats["numbers"].as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap()).collect()
}

/// Waits until the stub has read `count` notifications; returns their numbers in order of arrival.
async fn until_seen(user: &Session, count: usize) -> Vec<u64> {
    eventually("the stub reads the notifications", async || {
        let seen = numbers(&stats(user).await);
        (seen.len() >= count).then_some(seen)
    })
    .await
}

async fn dropped(gw: &Gateway) -> usize {
    let dropped = gw
        .metric("drawbridge_notifications_dropped_total", "")
        .await;
    format!("{dropped:.0}").parse().unwrap()
}

fn setup(limits: &str) -> Setup {
    Setup::open()
        .server("sse_after = \"20ms\"")
        .toml(&format!("[limits]\n{limits}"))
        .stub("stub", &[])
}

// Spec: SPEC O-01, L-06.
#[tokio::test]
async fn notifications_to_a_child_that_does_not_read_stay_bounded_and_in_order() {
    let gw = setup("call_wait = \"20ms\"").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let go = Go::new();
    stall(&user, &go).await;
    for number in 0..60 {
        let large = numbered(number, (4 << 20) - 200);
        user.post(&large).await.expect(StatusCode::ACCEPTED).await;
    }
    let kept = eventually("memory is given back", async || {
        let resident = resident(gw.pid());
        (resident <= 96 << 20).then_some(resident)
    })
    .await;
    assert!(kept <= 96 << 20, "{kept}");
    let dropped = dropped(&gw).await;
    assert!((50..60).contains(&dropped), "{dropped}");
    go.give();
    until_seen(&user, 60 - dropped).await;
    user.notify(ROOTS_CHANGED, json!({"number": 60})).await;
    let seen = until_seen(&user, 61 - dropped).await;
    assert!(
        seen.is_sorted() && seen.starts_with(&[0]) && seen.ends_with(&[60]),
        "{seen:?}"
    );
    gw.stop().await;
}

// Spec: SPEC H-02, L-06.
#[tokio::test]
async fn notifications_of_a_socket_wait_in_their_order() {
    let setup = setup("call_wait = \"1m\"").server("[server.websocket]\nenabled = true");
    let gw = setup.start().await;
    let mut user = Socket::open(&gw.url, "/ws/stub", None).await;
    let go = Go::new();
    user.start(
        "tools/call",
        json!({"name": "stall", "arguments": {"until": go.path()}}),
    )
    .await;
    // The child's outbox takes 1 MiB of them; as much waits in the session's queue, and as much for room in it.
    for number in 0..90 {
        user.tell(&numbered(number, 32 << 10)).await;
    }
    // A request on the same socket is still answered.
    let ping = user.start("ping", json!({})).await;
    within("an answer", user.reply(ping)).await.1.unwrap();
    go.give();
    let stats = eventually("all are read", async || {
        let stats = within("the stub reads again", user.call("stats", json!({}))).await;
        let stats = serde_json::from_str(text_of(&stats.unwrap())).unwrap();
        (numbers(&stats).len() == 90).then_some(stats)
    })
    .await;
    assert!(numbers(&stats).is_sorted());
    gw.stop().await;
}

// Spec: SPEC C-10.
#[tokio::test]
async fn cancelled_call_that_has_not_left_is_taken_back() {
    let gw = setup("").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let go = Go::new();
    stall(&user, &go).await;
    user.post(&numbered(1, 600 << 10))
        .await
        .expect(StatusCode::ACCEPTED)
        .await;
    let value = json!({"key": "a", "value": "b"});
    let (id, waiting) = user.start_call("state_set", value).await;
    user.notify("notifications/cancelled", json!({"requestId": id}))
        .await;
    assert_eq!(waiting.stream().message().await, None, "no reply");
    go.give();
    let stats = stats(&user).await;
    assert_eq!(numbers(&stats), [1], "what was before it has come");
    assert_eq!(stats["counts"]["tools/call"], 2, "stall and stats");
    assert_eq!(stats["counts"]["notifications/cancelled"], Value::Null);
    gw.stop().await;
}

// Spec: SPEC C-10: a cancellation has a place of its own.
#[tokio::test]
async fn cancellation_is_told_though_the_pipe_is_full() {
    let gw = setup("").start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let (id, never) = user.start_call("never", json!({})).await;
    let go = Go::new();
    stall(&user, &go).await;
    let waiting: Vec<Value> = (0..3).map(|number| numbered(number, 3 << 20)).collect();
    let posts = join_all(waiting.iter().map(|message| user.post(message))).await;
    assert!(posts.iter().all(|answer| answer.status() == 202));
    let reason = "y".repeat(100_000);
    let cancelled = json!({"requestId": id, "reason": reason});
    user.notify("notifications/cancelled", cancelled).await;
    assert_eq!(never.stream().message().await, None, "no reply");
    go.give();
    let cancels = eventually("the cancellation", async || {
        let stats = stats(&user).await;
        let cancels = stats["cancels"].as_array().unwrap();
        (!cancels.is_empty()).then(|| cancels.clone())
    })
    .await;
    assert_eq!(cancels.len(), 1);
    assert_eq!(cancels[0]["known"], true);
    let told = cancels[0]["params"]["reason"].as_str().unwrap();
    assert!(told.len() < 1000 && reason.starts_with(told));
    gw.stop().await;
}
