//! Messages outside calls that never become whole, of several sessions at once: they count while they come.

use std::convert::Infallible;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use drawbridge::protocol::websocket::accept_key;
use futures_util::future::join_all;
use futures_util::{SinkExt as _, Stream, StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::MIB;
use super::replies::{held_mib, small_budget, until_nothing_is_held, waited};
use crate::harness::process::resident;
use crate::harness::upstream::serve;
use crate::harness::{Gateway, eventually};
use crate::unsteady_upstream::usual;

/// Which subscription a notice belongs to.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Bytes of each message that come. Two have room in a share, one in the reserve.
const COME: usize = 7_500_000;
const SESSIONS: usize = 6;

/// Each of alice's sessions has an upstream that begins a message after the first call and never ends it. Her share
/// bounds what they hold, bob is served, and closing her sessions gives everything back.
async fn unfinished_messages_stay_within_the_share(gw: Gateway, tool: &str) {
    let before = resident(gw.pid());
    let alice = gw.principal("alice");
    let sessions = join_all((0..SESSIONS).map(|_| alice.open("/mcp/up"))).await;
    for session in &sessions {
        session.call(tool, json!({})).await.expect("a result");
    }
    eventually("her share is used up", async || {
        (held_mib(&gw).await > 24.0 && waited(&gw).await > 0.0).then_some(())
    })
    .await;
    assert!(held_mib(&gw).await < 33.0);
    let kept = resident(gw.pid()).saturating_sub(before);
    assert!(kept < 64 * MIB, "{} MiB", kept / MIB);
    let bob = gw.principal("bob").open("/mcp/up").await;
    bob.call(tool, json!({})).await.expect("a result");
    for session in sessions {
        session.delete().await;
    }
    bob.delete().await;
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_lines_of_children_count_between_calls() {
    let child = format!(
        r#"while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case "$line" in
            *'"initialize"'*) printf '%s\n' '{{"jsonrpc":"2.0","id":'$id',"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"liar","version":"1"}}}}}}' ;;
            *tools/call*)
                printf '%s\n' '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[]}}}}'
                sleep 1
                printf '{{"jsonrpc":"'
                head -c {COME} /dev/zero | tr '\0' x ;;
            esac
        done"#
    );
    let gw = small_budget().stdio("up", "sh", &["-c", &child], "era = \"legacy\"");
    unfinished_messages_stay_within_the_share(gw.start().await, "begin").await;
}

/// The bytes of an event that begins and does not end.
fn unfinished_event() -> impl Stream<Item = Bytes> {
    let piece = Bytes::from("x".repeat(COME / 100));
    let begun = stream::iter([Bytes::from("data: {\"jsonrpc\":\"")]);
    begun.chain(stream::iter(std::iter::repeat_n(piece, 100)))
}

/// An event stream that sends `events` and stays open.
fn endless(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = events.map(Ok::<_, Infallible>).chain(stream::pending());
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(body))
        .unwrap()
}

/// An upstream whose GET streams begin an event and do not end it.
async fn lying_on_get_streams() -> String {
    let url = serve(async |request: Request| {
        let method = request.method().clone();
        if method != Method::GET {
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            return usual(&method, &body);
        }
        endless(unfinished_event())
    });
    url.await + "/mcp"
}

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_events_of_get_streams_count() {
    let url = lying_on_get_streams().await;
    let gw = small_budget().url("up", &url, "era = \"legacy\"");
    unfinished_messages_stay_within_the_share(gw.start().await, "any").await;
}

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_events_of_shared_get_streams_count_in_the_share_of_the_upstream() {
    let url = lying_on_get_streams().await;
    let keys = "era = \"legacy\"\nisolation = \"shared\"";
    let gw = small_budget().url("up", &url, keys).start().await;
    let alice = gw.principal("alice").open("/mcp/up").await;
    alice.call("any", json!({})).await.expect("a result");
    eventually("what has come is counted", async || {
        (held_mib(&gw).await > 14.0).then_some(())
    })
    .await;
    gw.stop().await;
}

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_notices_of_a_modern_upstream_count() {
    let url = serve(async |request: Request| {
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let result = match body["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}},
                "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete",
            }),
            Some("subscriptions/listen") => {
                let granted = &body["params"]["notifications"];
                let first = json!({
                    "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                    "params": {"_meta": {SUBSCRIPTION: body["id"]}, "notifications": granted},
                });
                let first = stream::iter([Bytes::from(format!("data: {first}\n\n"))]);
                return endless(first.chain(unfinished_event()));
            }
            _ => json!({"content": [], "resultType": "complete"}),
        };
        let reply = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let response = Response::builder().header("content-type", "application/json");
        response.body(Body::from(reply.to_string())).unwrap()
    });
    let url = url.await + "/mcp";
    let gw = small_budget()
        .url("up", &url, "era = \"modern\"")
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/up").await;
    let _events = alice.listen().await;
    alice.call("any", json!({})).await.expect("a result");
    eventually("what has come is counted", async || {
        (held_mib(&gw).await > 14.0).then_some(())
    })
    .await;
    gw.stop().await;
}

/// Serves one socket: answers what it is asked, and begins a message after the first call that it does not end.
async fn lie_on_a_socket(mut tcp: TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let is_key = |line: &&str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
    let (_, key) = head.lines().find(is_key)?.split_once(':')?;
    let accept = accept_key(key.trim().as_bytes())?;
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-protocol: mcp\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    tcp.write_all(answer.as_bytes()).await.ok()?;
    let mut socket = WebSocketStream::from_raw_socket(tcp, Role::Server, None).await;
    loop {
        let message = socket.next().await?.ok()?.into_text().ok()?;
        let message: Value = serde_json::from_str(&message).ok()?;
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "liar", "version": "1"},
            }),
            _ => json!({"content": []}),
        };
        if !message["id"].is_null() {
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            socket.send(reply.to_string().into()).await.ok()?;
        }
        if message["method"] == "tools/call" {
            break;
        }
    }
    let mut tcp = socket.into_inner();
    // A text of one frame, whose last bytes are missing.
    tcp.write_all(&[0x81, 127]).await.ok()?;
    tcp.write_all(&(COME as u64 + 10).to_be_bytes())
        .await
        .ok()?;
    tcp.write_all(&vec![b' '; COME]).await.ok()?;
    // Until the gateway closes it.
    tcp.read_to_end(&mut Vec::new()).await.map(drop).ok()
}

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_messages_of_sockets_count_between_calls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(lie_on_a_socket(tcp));
        }
    });
    let gw = small_budget().url("up", &url, "era = \"legacy\"");
    unfinished_messages_stay_within_the_share(gw.start().await, "begin").await;
}
