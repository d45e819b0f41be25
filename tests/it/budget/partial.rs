//! Messages outside calls that never become whole, of several sessions at once: they count while they come.

use std::convert::Infallible;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use super::MIB;
use super::replies::{held_mib, small_budget, until_nothing_is_held, waited};
use crate::harness::process::resident;
use crate::harness::upstream::serve;
use crate::harness::{Gateway, eventually};
use crate::unsteady_upstream::usual;

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

// Spec: SPEC O-01.
#[tokio::test]
async fn unfinished_events_of_get_streams_count() {
    let url = serve(async |request: Request| {
        let method = request.method().clone();
        if method != Method::GET {
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            return usual(&method, &body);
        }
        let piece = Bytes::from("x".repeat(COME / 100));
        let begun = stream::iter([Bytes::from("data: {\"jsonrpc\":\"")]);
        let pieces = begun.chain(stream::iter(std::iter::repeat_n(piece, 100)));
        let body = pieces.map(Ok::<_, Infallible>).chain(stream::pending());
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(Body::from_stream(body))
            .unwrap()
    });
    let url = url.await + "/mcp";
    let gw = small_budget().url("up", &url, "era = \"legacy\"");
    unfinished_messages_stay_within_the_share(gw.start().await, "any").await;
}
