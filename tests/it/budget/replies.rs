//! The byte budget of replies: replies wait for clients that do not read, and arrive whole when the clients read on.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::MIB;
use crate::harness::process::resident;
use crate::harness::session::{reply_of, text_of};
use crate::harness::upstream::HttpStub;
use crate::harness::{Answer, Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// More than the system keeps of an answer that is not read. Two have room in a share, one in the reserve.
const LARGE: usize = 7_500_000;

pub(super) fn small_budget() -> Setup {
    Setup::secured().toml(
        "[limits]\nupstream_message = \"8MiB\"\nsse_event = \"8MiB\"\n\
         replies_per_principal = \"32MiB\"\nreplies_total = \"128MiB\"",
    )
}

pub(super) async fn held_mib(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_replies_held_bytes", "").await / 1_048_576.0
}

pub(super) async fn waited(gw: &Gateway) -> f64 {
    gw.metric("drawbridge_replies_waited_total", "").await
}

pub(super) async fn until_nothing_is_held(gw: &Gateway) {
    eventually("all bytes are given back", async || {
        (held_mib(gw).await < 0.000_1).then_some(())
    })
    .await;
}

fn big(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
           "params": {"name": "big", "arguments": {"bytes": LARGE}}})
}

/// The heads of the answers to so many calls with large replies: nothing more is read.
async fn unread(session: &Session, calls: i64) -> Vec<Answer> {
    let messages: Vec<Value> = (0..calls).map(|call| big(100 + call)).collect();
    join_all(messages.iter().map(|message| session.post(message))).await
}

async fn all_come_whole(answers: Vec<Answer>) {
    for message in join_all(answers.into_iter().map(Answer::message)).await {
        let reply = reply_of(message).expect("a result");
        assert_eq!(text_of(&reply).len(), LARGE);
    }
}

/// Five replies of one caller wait for her; another one is served; hers come whole once she reads.
async fn replies_wait_for_their_reader(gw: Gateway) {
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let before = resident(gw.pid());
    let answers = unread(&alice, 5).await;
    eventually("her share is used up", async || {
        (held_mib(&gw).await > 28.0 && waited(&gw).await > 0.0).then_some(())
    })
    .await;
    let text = bob.text("big", json!({"bytes": LARGE})).await;
    assert_eq!(text.len(), LARGE);
    assert!(held_mib(&gw).await < 33.0);
    let kept = resident(gw.pid()).saturating_sub(before);
    assert!(kept < 96 * MIB, "{} MiB", kept / MIB);
    all_come_whole(answers).await;
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

#[tokio::test]
async fn replies_of_an_http_upstream_wait_for_their_reader_and_come_whole() {
    let stub = HttpStub::start(&[]).await;
    replies_wait_for_their_reader(small_budget().http("stub", &stub, "").start().await).await;
}

#[tokio::test]
async fn replies_on_event_streams_wait_for_their_reader_and_come_whole() {
    let stub = HttpStub::start(&["--sse", "always"]).await;
    replies_wait_for_their_reader(small_budget().http("stub", &stub, "").start().await).await;
}

#[tokio::test]
async fn child_of_one_session_waits_for_the_reader_of_its_replies() {
    replies_wait_for_their_reader(small_budget().stub("stub", &[]).start().await).await;
}

#[tokio::test]
async fn reply_without_room_on_a_shared_child_fails_its_call_alone() {
    let keys = "isolation = \"shared\"";
    let gw = small_budget().stub_with("stub", &[], keys).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let answers = unread(&alice, 4).await;
    eventually("a reply waits", async || {
        (waited(&gw).await > 0.0).then_some(())
    })
    .await;
    // Hers is in the way for as long as it waits.
    assert_eq!(bob.text("big", json!({"bytes": LARGE})).await.len(), LARGE);
    let failed = gw.metric("drawbridge_replies_failed_total", "").await;
    assert!((failed - 1.0).abs() < 0.1, "{failed}");
    let (mut whole, mut told) = (0, Vec::new());
    for message in join_all(answers.into_iter().map(Answer::message)).await {
        let reply = reply_of(message).expect("a result");
        let text = text_of(&reply);
        match text.len() {
            LARGE => whole += 1,
            _ => told.push(text.to_owned()),
        }
    }
    assert_eq!(whole, 3, "{told:?}");
    assert!(
        matches!(told.as_slice(), [text] if text.contains("the request ran")),
        "{told:?}"
    );
    assert_eq!(
        alice.text("big", json!({"bytes": LARGE})).await.len(),
        LARGE
    );
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

#[tokio::test]
async fn replies_that_nobody_reads_any_more_give_their_room_back() {
    let stub = HttpStub::start(&[]).await;
    let gw = small_budget()
        .http("http", &stub, "")
        .stub("stub", &[])
        .start()
        .await;
    for path in ["/mcp/http", "/mcp/stub"] {
        let user = gw.principal("alice").open(path).await;
        // The streams break: buffered messages are moved to the event log, waiting replies follow as room is freed.
        drop(unread(&user, 5).await);
        until_nothing_is_held(&gw).await;
        // Their calls are cancelled.
        let answers = unread(&user, 5).await;
        eventually("room is taken", async || {
            (held_mib(&gw).await > 14.0).then_some(())
        })
        .await;
        for id in 100..105 {
            let cancelled = json!({"requestId": id});
            user.notify("notifications/cancelled", cancelled).await;
        }
        drop(answers);
        until_nothing_is_held(&gw).await;
        // Their session ends.
        let answers = unread(&user, 5).await;
        eventually("room is taken", async || {
            (held_mib(&gw).await > 14.0).then_some(())
        })
        .await;
        user.delete().await;
        drop(answers);
        until_nothing_is_held(&gw).await;
    }
    // Calls without a session give their room back, too.
    let modern = Modern::new(gw.principal("alice"), "/mcp/http");
    let reply = modern.call("big", json!({"bytes": LARGE})).await;
    assert_eq!(text_of(&reply.expect("a result")).len(), LARGE);
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}

// Of four large replies two exhaust the share, one holds the reserve and one waits for it: there is no room for a list.
#[tokio::test]
async fn list_without_room_for_its_copy_is_refused() {
    let stub = HttpStub::start(&[]).await;
    let many = HttpStub::start(&["--tools", "300"]).await;
    let gw = Setup::secured()
        .toml(
            "[limits]\nupstream_message = \"8MiB\"\nsse_event = \"8MiB\"\ncall_wait = \"200ms\"\n\
             replies_per_principal = \"29304KiB\"\nreplies_total = \"128MiB\"",
        )
        .http("stub", &stub, "")
        .http("many", &many, "")
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let asking = gw.principal("alice").open("/mcp/many").await;
    let bob = gw.principal("bob").open("/mcp/many").await;
    let answers = unread(&alice, 4).await;
    eventually("her share is used up", async || {
        (held_mib(&gw).await > 28.5 && waited(&gw).await > 0.0).then_some(())
    })
    .await;
    let refused = asking.request("tools/list", json!({})).await;
    let error = refused.expect_err("a refusal");
    assert_eq!(error["data"]["retryAfterMs"], 200, "{error}");
    assert_eq!(bob.tools().await.len(), 300);
    all_come_whole(answers).await;
    assert_eq!(asking.tools().await.len(), 300);
    until_nothing_is_held(&gw).await;
    gw.stop().await;
}
