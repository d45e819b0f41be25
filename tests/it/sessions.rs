//! Sessions: handles that cannot be guessed, stolen, kept too long or confused with a token.

use std::collections::HashSet;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::harness::http::initialize;
use crate::harness::issuer::Issuer;
use crate::harness::{Answer, Setup, eventually};

fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})
}

// Spec: SPEC T-41.
#[tokio::test]
async fn session_ids_are_visible_ascii_and_never_repeat() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let hello = initialize(1, "2025-11-25", &json!({}));
        let answer = gw.anonymous().post("/mcp/stub", &[], &hello).await;
        let id = answer.header("mcp-session-id").unwrap().to_owned();
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        assert!(id.len() >= 32, "{id}");
        assert!(seen.insert(id), "repeated");
    }
    gw.stop().await;
}

// Spec: SPEC T-42. 404 would say that a session has ended.
#[tokio::test]
async fn empty_session_id_is_a_missing_one() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    // The white space around a value is no part of it.
    let empty = [("mcp-session-id", " ")];
    let user = gw.anonymous();
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let body = ping().to_string();
        let answer = user.send(method.clone(), "/mcp/stub", &empty, body).await;
        assert_eq!(answer.status(), 400, "{method}");
        let text = answer.text().await;
        assert!(
            text.contains("Mcp-Session-Id is missing"),
            "{method}: {text}"
        );
    }
    let hello = initialize(1, "2025-11-25", &json!({}));
    let opened = user.post("/mcp/stub", &empty, &hello).await;
    assert_eq!(opened.status(), 200);
    assert!(opened.header("mcp-session-id").is_some());
    gw.stop().await;
}

// Spec: SPEC T-43, T-45.
#[tokio::test]
async fn a_deleted_session_is_gone_and_so_is_its_child() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let pid: u32 = user.text("pid", json!({})).await.parse().unwrap();
    let child = crate::harness::process::find(pid).expect("the child runs");
    let mut stream = user.listen().await;
    let status = user.delete().await;
    assert!(matches!(status, 200 | 204), "{status}");
    assert_eq!(stream.message().await, None, "its streams end");
    assert_eq!(user.post(&ping()).await.status(), 404);
    assert_eq!(user.delete().await, 404);
    eventually("the child is gone", async || {
        (!crate::harness::process::is_alive(child)).then_some(())
    })
    .await;
    gw.stop().await;
}

/// Everything of an answer that a stranger could tell apart.
async fn looks(answer: Answer) -> (u16, Option<String>, String) {
    let kind = answer.header("content-type").map(str::to_owned);
    let id = answer.header("x-request-id").expect("an id").to_owned();
    let status = answer.status();
    (status, kind, answer.text().await.replace(&id, ""))
}

// Spec: SPEC T-46, T-47, T-48, A-30.
#[tokio::test]
async fn anothers_session_looks_like_one_that_never_was() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let mallory = gw.principal("mallory");
    let never = "A".repeat(alice.id.len());
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let attempt = async |id: &str| {
            let headers = [("mcp-session-id", id)];
            let body = if method == Method::POST {
                ping().to_string()
            } else {
                String::new()
            };
            looks(
                mallory
                    .send(method.clone(), "/mcp/stub", &headers, body)
                    .await,
            )
            .await
        };
        let stolen = attempt(&alice.id).await;
        assert_eq!(stolen.0, 404, "{method}");
        assert_eq!(stolen, attempt(&never).await, "{method}");
    }
    // Alice's other endpoints do not know the session either.
    let headers = [("mcp-session-id", alice.id.as_str())];
    assert_eq!(
        alice.actor.post("/mcp", &headers, &ping()).await.status(),
        404
    );
    // The attempts have not harmed it.
    assert_eq!(alice.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-46.
#[tokio::test]
async fn a_session_is_no_authentication() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let headers = alice.headers();
    let nobody = gw.anonymous();
    assert_eq!(
        nobody.post("/mcp/stub", &headers, &ping()).await.status(),
        401
    );
    assert_eq!(nobody.get("/mcp/stub", &headers).await.status(), 401);
    let deleted = nobody
        .send(Method::DELETE, "/mcp/stub", &headers, Bytes::new())
        .await;
    assert_eq!(deleted.status(), 401);
    assert_eq!(alice.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-47, DESIGN §2 (binding = issuer + subject + client).
#[tokio::test]
async fn a_refreshed_token_keeps_the_session_and_another_client_does_not() {
    let gw = Setup::secured().stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let issuer = gw.issuer();
    let audience = [format!("{}/mcp/stub", gw.url)];
    let mut claims = issuer.claims("alice", &audience, "mcp:tools extra");
    claims["jti"] = json!("another token");
    let refreshed = gw.bearer(&issuer.sign(&Issuer::header(), &claims));
    assert_eq!(
        refreshed
            .post("/mcp/stub", &alice.headers(), &ping())
            .await
            .status(),
        200
    );
    claims["client_id"] = json!("another client");
    let elsewhere = gw.bearer(&issuer.sign(&Issuer::header(), &claims));
    assert_eq!(
        elsewhere
            .post("/mcp/stub", &alice.headers(), &ping())
            .await
            .status(),
        404
    );
    gw.stop().await;
}

// Spec: SPEC T-49.
#[tokio::test]
async fn initialize_on_a_live_session_is_refused() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let user = gw.anonymous().open("/mcp/stub").await;
    let again = user.post(&initialize(9, "2025-11-25", &json!({}))).await;
    assert_eq!(again.status(), 400);
    assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    gw.stop().await;
}

// Spec: SPEC T-43, T-50.
#[tokio::test]
async fn an_idle_session_expires_and_its_child_ends() {
    let setup = Setup::open()
        .toml("[sessions]\nidle = \"1s\"")
        .stub("stub", &[]);
    let gw = setup.start().await;
    let before = gw.children().len();
    let user = gw.anonymous().open("/mcp/stub").await;
    user.text("echo", json!({})).await;
    assert!(gw.children().len() > before);
    eventually("the child ends", async || {
        (gw.children().len() <= before).then_some(())
    })
    .await;
    assert_eq!(user.post(&ping()).await.status(), 404);
    gw.stop().await;
}

// Spec: SPEC T-50: the idle time starts after `initialize`, however long that took.
#[tokio::test]
async fn a_slow_initialize_costs_no_idle_time() {
    let setup = Setup::open().toml("[sessions]\nidle = \"500ms\"");
    let gw = setup
        .stub_with("stub", &["--slow-start", "1500"], "")
        .start()
        .await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = gw.anonymous().post("/mcp/stub", &[], &hello).await;
    let id = answer.header("mcp-session-id").map(str::to_owned);
    let id = id.expect("a session");
    let headers = [("mcp-session-id", id.as_str())];
    let answer = gw.anonymous().post("/mcp/stub", &headers, &ping()).await;
    assert_eq!(answer.status(), 200, "the session lives");
    gw.stop().await;
}

// Spec: SPEC T-50.
#[tokio::test]
async fn an_open_stream_keeps_a_session_but_not_past_its_absolute_life() {
    let setup = Setup::open().toml("[sessions]\nidle = \"1s\"\nabsolute = \"3s\"");
    let gw = setup.stub("stub", &[]).start().await;
    let started = std::time::Instant::now();
    let user = gw.anonymous().open("/mcp/stub").await;
    let mut stream = user.listen().await;
    assert_eq!(
        stream.message().await,
        None,
        "ended by the absolute lifetime"
    );
    assert!(
        started.elapsed().as_millis() >= 2500,
        "{:?}",
        started.elapsed()
    );
    assert_eq!(user.post(&ping()).await.status(), 404);
    gw.stop().await;
}

// Spec: DESIGN §5 "Clients never say goodbye".
#[tokio::test]
async fn at_the_cap_the_principals_own_oldest_idle_session_makes_room() {
    let setup = Setup::secured().toml("[sessions]\nmax_per_principal = 2");
    let gw = setup.stub("stub", &[]).start().await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let alice = gw.principal("alice");
    let first = alice.open("/mcp/stub").await;
    let second = alice.open("/mcp/stub").await;
    assert_eq!(first.request("ping", json!({})).await, Ok(json!({})));
    let third = alice.open("/mcp/stub").await;
    assert_eq!(
        second.post(&ping()).await.status(),
        404,
        "the least recently used"
    );
    let streams = [first.listen().await, third.listen().await];
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = alice.post("/mcp/stub", &[], &hello).await;
    assert_eq!(refused.status(), 429, "nothing idle is left");
    assert!(refused.header("retry-after").is_some());
    drop(streams);
    assert_eq!(
        bob.request("ping", json!({})).await,
        Ok(json!({})),
        "never another principal's"
    );
    gw.stop().await;
}

#[tokio::test]
async fn at_the_total_cap_newcomers_are_told_to_come_back() {
    let setup = Setup::secured().toml("[sessions]\nmax_total = 2");
    let gw = setup.stub("stub", &[]).start().await;
    let alice = gw.principal("alice").open("/mcp/stub").await;
    let bob = gw.principal("bob").open("/mcp/stub").await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = gw.principal("carol").post("/mcp/stub", &[], &hello).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    for user in [&alice, &bob] {
        assert_eq!(user.request("ping", json!({})).await, Ok(json!({})));
    }
    gw.stop().await;
}

#[tokio::test]
async fn after_a_restart_every_session_is_unknown() {
    let first = Setup::open().stub("stub", &[]).start().await;
    let id = first.anonymous().open("/mcp/stub").await.id;
    first.stop().await;
    let second = Setup::open().stub("stub", &[]).start().await;
    let headers = [("mcp-session-id", id.as_str())];
    assert_eq!(
        second
            .anonymous()
            .post("/mcp/stub", &headers, &ping())
            .await
            .status(),
        404
    );
    second.stop().await;
}
