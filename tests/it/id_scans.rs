//! Refused bodies that are read on for the ids of their requests: how many at once.
//! Spec: SPEC T-17.

use std::fmt::Write as _;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Answer, Gateway, Session, Setup, eventually};

/// Concurrent scans of refused bodies per caller (`SCANS_PER_CALLER`).
const PLACES: usize = 8;

/// A POST of a body over the limit that stops after its first bytes.
async fn stalled(gw: &Gateway, user: &Session) -> TcpStream {
    let address = gw.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let token = user.actor.token().unwrap();
    let mut head = format!(
        "POST {} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: 10000\r\n",
        user.path
    );
    for (name, value) in user.headers() {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    let body = r#"{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"#;
    stream
        .write_all(format!("{head}\r\n{body}").as_bytes())
        .await
        .unwrap();
    stream
}

/// A call that is too large.
async fn too_large(user: &Session) -> Answer {
    let arguments = json!({"text": "x".repeat(9000)});
    user.post(&json!({
        "jsonrpc": "2.0", "id": "mine", "method": "tools/call",
        "params": {"name": "echo", "arguments": arguments},
    }))
    .await
}

fn is_refused_by_id(said: &Value) -> bool {
    said["id"] == "mine" && said["error"]["data"]["maxBytes"] == 4096
}

// Spec: SPEC T-17: without a place the status says it, and the connection ends.
#[tokio::test]
async fn body_without_a_place_among_the_scans_is_refused_by_status() {
    let setup = Setup::secured().toml("[limits]\nbody = \"4KiB\"");
    let gw = setup.stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let answer = too_large(&alice).await.expect(StatusCode::OK).await;
    assert!(is_refused_by_id(&answer.json().await));
    let mut held = Vec::new();
    for _ in 0..PLACES {
        held.push(stalled(&gw, &alice).await);
    }
    let scanned = async || gw.metric("drawbridge_bodies_scanned_total", "").await;
    eventually("all places are taken", async || {
        (scanned().await > 8.5).then_some(())
    })
    .await;
    let answer = too_large(&alice).await;
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.json().await.get("id").is_none());
    let unscanned = gw.metric("drawbridge_bodies_unscanned_total", "").await;
    assert!((unscanned - 1.0).abs() < 0.1, "{unscanned}");
    // The scan permits in use are Alice's: Bob's share is free.
    let answer = too_large(&bob).await.expect(StatusCode::OK).await;
    assert!(is_refused_by_id(&answer.json().await));
    drop(held.pop());
    eventually("a free place", async || {
        let answer = too_large(&alice).await;
        let is_free = answer.status() == 200;
        is_free.then_some(())
    })
    .await;
    assert_eq!(alice.request("ping", json!({})).await, Ok(json!({})));
    drop(held);
    gw.stop().await;
}
