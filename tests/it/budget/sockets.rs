//! The byte budget on sockets, whose messages come frame by frame.

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{LARGE, MIB, held_mib, large_call, small_budget, until_nothing_is_held};
use crate::harness::process::resident;
use crate::harness::session::reply_of;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::{Gateway, Setup, eventually, within};

const WITH_SOCKETS: &str = "[server.websocket]\nenabled = true";

/// The head of a frame that begins a text message of more than one frame, masked with zeros.
fn first_fragment(len: u64) -> Vec<u8> {
    let mut head = vec![0x01, 0x80 | 127];
    head.extend(len.to_be_bytes());
    head.extend([0; 4]);
    head
}

/// Opens `count` sockets, and begins to send a message of 4 MiB on each.
async fn half_sent(gw: &Gateway, token: Option<&str>, count: usize) -> Vec<JoinHandle<TcpStream>> {
    let mut sending = Vec::new();
    for _ in 0..count {
        let (_, mut tcp) = upgrade(&gw.url, "/ws/stub", token, &[]).await;
        sending.push(tokio::spawn(async move {
            let mut message = first_fragment(4 << 20);
            message.resize((4 << 20) - 10, b' ');
            // The gateway may close the connection before the whole message is written.
            drop(tcp.write_all(&message).await);
            tcp
        }));
    }
    sending
}

#[tokio::test]
async fn half_sent_messages_stay_within_the_share_and_end() {
    let setup = Setup::secured()
        .server(&format!("body_timeout = \"10s\"\n{WITH_SOCKETS}"))
        .toml("[limits]\nbytes_per_principal = \"32MiB\"\nbytes_total = \"128MiB\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice");
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let before = resident(gw.pid());
    let sending = half_sent(&gw, alice.token(), 30).await;
    eventually("her share is used", async || {
        (held_mib(&gw).await > 24.0).then_some(())
    })
    .await;
    assert!(held_mib(&gw).await < 33.0);
    assert!(
        bob.call("echo", json!({"a": "x".repeat(1 << 20)}))
            .await
            .is_ok()
    );
    let kept = resident(gw.pid()).saturating_sub(before);
    assert!(kept < 80 * MIB, "{} MiB", kept / MIB);
    // Their clients are silent from here on.
    until_nothing_is_held(&gw).await;
    eventually("the sockets end", async || {
        (gw.metric("drawbridge_channels_open", "").await < 0.5).then_some(())
    })
    .await;
    drop(sending);
    gw.stop().await;
}

#[tokio::test]
async fn half_sent_messages_keep_at_most_256_mib_by_default() {
    let setup = Setup::secured()
        .server(&format!("body_timeout = \"10s\"\n{WITH_SOCKETS}"))
        .stub("stub", &[]);
    let gw = setup.start().await;
    let alice = gw.principal("alice");
    let sending = half_sent(&gw, alice.token(), 150).await;
    eventually("her share is used", async || {
        (held_mib(&gw).await > 112.0).then_some(())
    })
    .await;
    let kept = resident(gw.pid());
    assert!(kept <= 256 * MIB, "{} MiB", kept / MIB);
    // Their clients are silent from here on.
    eventually("the sockets end", async || {
        (gw.metric("drawbridge_channels_open", "").await < 0.5).then_some(())
    })
    .await;
    until_nothing_is_held(&gw).await;
    eventually("memory is given back", async || {
        (resident(gw.pid()) <= 64 * MIB).then_some(())
    })
    .await;
    drop(sending);
    gw.stop().await;
}

#[tokio::test]
async fn slow_message_ends_its_socket() {
    let setup = Setup::open()
        .server(&format!("body_timeout = \"500ms\"\n{WITH_SOCKETS}"))
        .stub("stub", &[]);
    let gw = setup.start().await;
    let mut socket = Socket::open(&gw.url, "/ws/stub", None).await;
    // A call may take longer than a message.
    socket
        .call("sleep", json!({"ms": 1500}))
        .await
        .expect("a reply");
    let mut fragment = vec![0x01, 0x80 | 5];
    fragment.extend([0; 4]);
    fragment.extend(b"{\"a\":");
    // A ping between the fragments of a message is no part of it.
    fragment.extend([0x89, 0x80, 0, 0, 0, 0]);
    socket.raw().write_all(&fragment).await.unwrap();
    assert_eq!(within("a close", socket.closed()).await, Some(1008));
    gw.stop().await;
}

#[tokio::test]
async fn request_on_a_socket_over_the_share_is_refused_alone() {
    let gw = small_budget().await;
    let alice = gw.principal("alice");
    let mut socket = Socket::open(&gw.url, "/ws/stub", alice.token()).await;
    socket.tell(&large_call(50, "never", LARGE)).await;
    eventually("it is held", async || {
        (held_mib(&gw).await > 1.5).then_some(())
    })
    .await;
    socket.tell(&large_call(51, "echo", LARGE)).await;
    let (_, refused) = socket.reply(51).await;
    let error = refused.expect_err("a refusal");
    assert_eq!(error["data"]["retryAfterMs"], 1000, "{error}");
    assert!(socket.call("echo", json!({"a": "small"})).await.is_ok());
    let cancelled = json!({"requestId": 50, "reason": "x".repeat(LARGE)});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled});
    socket.tell(&cancelled).await;
    until_nothing_is_held(&gw).await;
    socket.tell(&large_call(52, "echo", LARGE)).await;
    let reply = socket.message().await.expect("a reply");
    assert_eq!(reply["id"], 52);
    reply_of(reply).expect("it is served");
    gw.stop().await;
}
