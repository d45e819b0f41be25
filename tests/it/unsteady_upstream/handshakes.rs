//! Upstreams that do odd things to the handshake, or at the end of a session.

use super::*;

// Spec: SPEC U-12.
#[tokio::test]
async fn a_session_that_cannot_be_ended_does_not_hold_up_the_next_one() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("DELETE", 0) => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up
        .behind(&format!("{LEGACY}connect_timeout = \"1m\""))
        .await;
    let user = gw.anonymous().open("/mcp/up").await;
    outcome(&user, "warm").await;
    user.delete().await;
    eventually("its end hangs", async || {
        (up.hanging.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "again").await.contains("done"));
    gw.stop().await;
}

/// The answer to an `initialize` that opens the upstream.
async fn greeting(gw: &Gateway) -> String {
    let hello = initialize(1, "2025-11-25", &json!({}));
    let answer = within("an answer", gw.anonymous().post("/mcp/up", &[], &hello)).await;
    answer.text().await
}

// Spec: SPEC U-05, U-13.
#[tokio::test]
async fn a_refused_handshake_says_what_the_upstream_said() {
    const WHY: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no such tenant"}}"#;
    let up = Upstream::start(|what, _| match what {
        "initialize" => Does::Status(400, WHY),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let said = greeting(&gw).await;
    assert!(said.contains("HTTP status 400: no such tenant"), "{said}");
    assert_eq!(
        up.count("GET"),
        1,
        "the older transport is tried all the same"
    );
    gw.stop().await;
}

// Spec: SPEC L-03.
#[tokio::test]
async fn a_question_on_the_stream_of_a_handshake_is_no_answer_to_it() {
    let up = Upstream::start(|what, _| match what {
        "initialize" => Does::Events(
            vec![(
                0,
                "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n",
            )],
            Some(json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "curious", "version": "1"},
            })),
        ),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

// Spec: SPEC U-04, U-12: the answer to a notification means nothing.
#[tokio::test]
async fn an_answer_without_end_to_a_notification_holds_up_no_handshake() {
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Events(vec![(0, ": taken\n\n"), (60_000, "")], None),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    gw.stop().await;
}

// Spec: SPEC U-04, U-12: it has shaken hands.
#[tokio::test]
async fn a_notification_that_is_not_answered_costs_no_handshake() {
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let keys = format!("{LEGACY}connect_timeout = \"3s\"");
    let gw = up.behind(&keys).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    eventually("the log says so", async || {
        let log = gw.log().concat();
        let said = "does not answer `notifications/initialized`";
        log.contains(said).then_some(())
    })
    .await;
    gw.stop().await;
}

// 404 is the end of a session only where there is one: the session id of the usual answer is left out.
#[rstest]
#[tokio::test]
async fn a_notification_that_is_not_understood_costs_no_handshake(
    #[values(400, 404, 405, 422)] status: u16,
) {
    let up = Upstream::start(move |what, _| match what {
        "initialize" => Does::Labelled(["content-type", "application/json"], LOGS),
        "notifications/initialized" => Does::Status(status, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

// Spec: SPEC U-02: servers of 2026-07-28 say with 404 that they do not know a method.
#[tokio::test]
async fn unknown_notification_costs_no_session() {
    const WHY: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}"#;
    let up = Upstream::start(|what, _| match what {
        "notifications/initialized" => Does::Status(404, WHY),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let user = gw.anonymous().open("/mcp/up").await;
    assert!(outcome(&user, "next").await.contains("done"));
    assert_eq!(up.count("initialize"), 1);
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_notification_that_is_refused_fails_the_handshake(#[values(403, 500)] status: u16) {
    let up = Upstream::start(move |what, _| match what {
        "notifications/initialized" => Does::Status(status, ""),
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let said = greeting(&gw).await;
    assert!(said.contains(&format!("HTTP status {status}")), "{said}");
    gw.stop().await;
}

// Spec: SPEC U-11. Many servers lead from /mcp to /mcp/.
#[rstest]
#[tokio::test]
async fn an_upstream_that_redirects_says_what_is_to_be_done(
    #[values("auto", "legacy", "modern")] era: &str,
) {
    let up = Upstream::start(|_, _| Does::Status(307, "")).await;
    let gw = up.behind(&format!("era = {era:?}")).await;
    let said = greeting(&gw).await;
    assert!(said.contains("HTTP status 307, a redirection"), "{said}");
    gw.stop().await;
}

/// `initialize` of an upstream that logs.
const LOGS: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"logs","version":"1"},"capabilities":{"tools":{},"logging":{}}}}"#;

// Spec: SPEC U-04.
#[tokio::test]
async fn session_whose_caller_goes_while_it_is_opened_is_ended() {
    let up = Upstream::start(|what, before| match (what, before) {
        ("initialize", _) => Does::Labelled(["mcp-session-id", "a-session"], LOGS),
        ("call again", 0) => Does::Status(404, ""),
        // The level of the session before is told to the next one.
        ("logging/setLevel", 1) => Does::Hang,
        _ => Does::Usual,
    })
    .await;
    let gw = up.behind(LEGACY).await;
    let level = json!({"io.modelcontextprotocol/logLevel": "debug"});
    let user = Modern::new(gw.anonymous(), "/mcp/up").meta(level);
    user.call("first", json!({})).await.expect("a result");
    let params = json!({"name": "again", "arguments": {}});
    let message = user.request(&json!("gone"), "tools/call", params);
    {
        let mut exchange = std::pin::pin!(user.post(&message));
        tokio::select! {
            _ = &mut exchange => panic!("the session is not open"),
            () = eventually("its level", async || {
                (up.hanging.load(Ordering::SeqCst) == 1).then_some(())
            }) => {}
        }
    }
    assert_eq!(up.count("DELETE"), 0);
    eventually("the end of the session", async || {
        (up.count("DELETE") == 1).then_some(())
    })
    .await;
    gw.stop().await;
}
