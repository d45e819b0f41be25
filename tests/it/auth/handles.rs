//! Handles of other principals: knowing a handle gives no access (SPEC A-30).

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Guarded;
use crate::harness::Setup;
use crate::harness::http::{Actor, Answer, without_request_id};
use crate::harness::issuer::{Issuer, unix_now};

/// The parts of an answer that a caller can compare.
async fn seen(answer: Answer) -> (u16, Option<String>, Value) {
    let status = answer.status();
    let challenge = answer.header("www-authenticate").map(str::to_owned);
    let mut body = answer.json().await;
    if let Some(object) = body.as_object_mut() {
        object.remove("id");
    }
    // A refusal outside JSON-RPC has a text there.
    if body["error"].is_object() {
        without_request_id(&mut body["error"]);
    }
    (status, challenge, body)
}

/// A request on a session id, in each way there is.
async fn tries(actor: &Actor, session: &str) -> Vec<(u16, Option<String>, Value)> {
    let headers = [
        ("mcp-session-id", session),
        ("mcp-protocol-version", "2025-11-25"),
    ];
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "x"}},
    });
    let mut all = vec![seen(actor.post("/mcp/stub", &headers, &call).await).await];
    for method in [Method::GET, Method::DELETE] {
        let answer = actor.send(method, "/mcp/stub", &headers, "").await;
        all.push(seen(answer).await);
    }
    all
}

#[tokio::test]
async fn anothers_session_is_one_that_never_was() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mallory = gw.principal("mallory");
    let unknown = tries(&mallory, &"A".repeat(alice.id.len())).await;
    assert_eq!(tries(&mallory, &alice.id).await, unknown);
    assert!(
        unknown.iter().all(|(status, ..)| *status == 404),
        "{unknown:?}"
    );
    // Nor is it closed by the attempt.
    alice.text("echo", json!({"text": "still here"})).await;
    gw.stop().await;
}

#[tokio::test]
async fn ones_own_session_does_not_open_on_another_endpoint() {
    let gw = Setup::secured()
        .stub("stub", &[])
        .stub("other", &[])
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/other").await;
    let found = tries(&alice.actor, &alice.id).await;
    assert!(found.iter().all(|(status, ..)| *status == 404), "{found:?}");
    gw.stop().await;
}

#[tokio::test]
async fn anothers_event_is_one_that_never_was() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let (_, exchange) = alice
        .start_call("notices", json!({"n": 3, "gap_ms": 200}))
        .await;
    let mut stream = exchange.stream();
    let event = loop {
        let event = stream.next().await.expect("an event");
        if let Some(id) = event.id {
            break id;
        }
    };
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    let theirs = mallory.resume(&event).await;
    let nobodys = mallory.resume("0000000000000000.9.9").await;
    assert_eq!(seen(theirs).await, seen(nobodys).await);
    gw.stop().await;
}

#[tokio::test]
async fn anothers_cursor_is_one_that_never_was() {
    let gw = Setup::secured()
        .stub("stub", &["--tools", "10", "--list-page-size", "4"])
        .start()
        .await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let page = alice
        .request("tools/list", json!({}))
        .await
        .expect("a page");
    let cursor = page["nextCursor"].as_str().expect("a cursor").to_owned();
    alice
        .request("tools/list", json!({ "cursor": cursor }))
        .await
        .expect("her own cursor");
    let mallory = gw.principal("mallory").open("/mcp/stub").await;
    let refused = async |cursor: &str| {
        let answer = mallory.request("tools/list", json!({ "cursor": cursor }));
        let mut error = answer.await.expect_err("unknown");
        without_request_id(&mut error);
        error
    };
    let theirs = refused(&cursor).await;
    assert_eq!(theirs, refused("AAAA").await);
    assert_eq!(theirs["code"], -32602);
    // A cursor of one list is none for another.
    let elsewhere = alice
        .request("prompts/list", json!({ "cursor": cursor }))
        .await;
    assert_eq!(elsewhere.expect_err("unknown")["code"], -32602);
    gw.stop().await;
}

// DESIGN §5: GET streams end with their token, and a fresh one goes on.
#[tokio::test]
async fn a_get_stream_ends_with_the_token_that_opened_it() {
    let setup = Setup::secured().toml("[sessions]\ntoken_grace = \"1s\"");
    let world = Guarded::start_with(setup).await;
    let alice = world.gw.principal("alice").open("/mcp/stub").await;
    let expires = unix_now() + 1;
    let mut claims = world.claims();
    claims["exp"] = expires.into();
    let token = world.gw.issuer().sign(&Issuer::header(), &claims);
    let brief = world.gw.bearer(&token);
    let answer = brief.get("/mcp/stub", &alice.headers()).await;
    assert_eq!(answer.status(), 200);
    let mut stream = answer.events();
    assert_eq!(stream.message().await, None);
    assert!(unix_now() > expires, "not before the grace is over");
    assert!(
        stream.retry.is_some(),
        "the client is told when to come back"
    );
    let last = stream.last_id.expect("an id to come back with");
    alice.resume(&last).await.expect(StatusCode::OK).await;
    world.stop().await;
}
