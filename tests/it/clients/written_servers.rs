//! Servers on the official SDKs as people write them (`tests/servers/written.mjs`), behind the gateway.

use rstest::rstest;
use serde_json::json;

use crate::harness::peers::Service;
use crate::harness::session::text_of;
use crate::harness::{Gateway, Session, Setup, eventually, peers, within};
use crate::modern::Modern;

async fn written(kind: &str, port: u16) -> Service {
    let script = peers::script("servers/written.mjs");
    peers::serve(&peers::node(), &[&script, kind, &port.to_string()], &[]).await
}

fn as_child(kind: &str) -> Setup {
    let script = peers::script("servers/written.mjs");
    Setup::open().stdio("written", &peers::node(), &[&script, kind], "")
}

async fn says_hello(session: &Session) -> String {
    session.text("hello", json!({})).await
}

#[tokio::test]
async fn reply_behind_a_print_is_the_reply() {
    if !peers::are_installed() {
        return;
    }
    let gw = as_child("prints").start().await;
    let user = gw.anonymous().open("/mcp/written").await;
    for _ in 0..3 {
        assert_eq!(says_hello(&user).await, "hello of prints");
    }
    gw.stop().await;
}

#[tokio::test]
async fn log_after_the_reply_reaches_the_get_stream() {
    if !peers::are_installed() {
        return;
    }
    let gw = as_child("late-log").start().await;
    let user = gw.anonymous().open("/mcp/written").await;
    user.request("logging/setLevel", json!({"level": "debug"}))
        .await
        .unwrap();
    let mut stream = user.listen().await;
    assert_eq!(says_hello(&user).await, "hello of late-log");
    let log = stream.until("notifications/message").await;
    assert_eq!(log["params"]["data"], "done after the reply", "{log}");
    gw.stop().await;
}

// A 500 for an unknown method does not mean that `initialize` fails. Spec: SPEC U-05.
#[rstest]
#[case::json_rpc("template")]
#[case::another_json("reports")]
#[tokio::test]
async fn server_with_500_for_unknown_methods_is_served(#[case] kind: &str) {
    if !peers::are_installed() {
        return;
    }
    let server = written(kind, 0).await;
    let gw = Setup::open()
        .url("written", &server.first_line, "")
        .start()
        .await;
    let expected = format!("hello of {kind}");
    let legacy = gw.anonymous().open("/mcp/written").await;
    assert_eq!(says_hello(&legacy).await, expected);
    let modern = Modern::new(gw.anonymous(), "/mcp/written");
    let result = modern.call("hello", json!({})).await.unwrap();
    assert_eq!(text_of(&result), expected);
    gw.stop().await;
}

/// Waits until old and new clients of both eras get the `expected` reply.
async fn everybody_hears(gw: &Gateway, old: (&Session, &Modern), expected: &str) {
    let is_expected = |reply: &crate::harness::session::Reply| {
        reply
            .as_ref()
            .is_ok_and(|result| text_of(result) == expected)
    };
    eventually("the old session at the restarted server", async || {
        is_expected(&old.0.call("hello", json!({})).await).then_some(())
    })
    .await;
    eventually("the old modern client", async || {
        is_expected(&old.1.call("hello", json!({})).await).then_some(())
    })
    .await;
    let session = gw.anonymous().open("/mcp/written").await;
    assert_eq!(says_hello(&session).await, expected);
    let modern = Modern::new(gw.anonymous(), "/mcp/written");
    assert!(is_expected(&modern.call("hello", json!({})).await));
}

#[rstest]
#[case::upgraded("sessions", "modern")]
#[case::rolled_back("modern", "sessions")]
#[tokio::test]
async fn server_restarted_in_another_era_is_served(#[case] before: &str, #[case] after: &str) {
    if !peers::are_installed() {
        return;
    }
    let server = written(before, 0).await;
    let url = server.first_line.clone();
    let port = url.parse::<url::Url>().unwrap().port().unwrap();
    let gw = Setup::open().url("written", &url, "").start().await;
    let session = gw.anonymous().open("/mcp/written").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/written");
    let old = (&session, &modern);
    everybody_hears(&gw, old, &format!("hello of {before}")).await;
    drop(server);
    let _server = written(after, port).await;
    everybody_hears(&gw, old, &format!("hello of {after}")).await;
    gw.stop().await;
}

// A client that only keeps its stream open makes no call that would tell. The two servers have different tools.
#[rstest]
#[case::upgraded("sessions", "modern", &["hello"])]
#[case::rolled_back("modern", "sessions", &["hello", "confirm"])]
#[tokio::test]
async fn listener_hears_of_a_server_restarted_in_another_era(
    #[case] before: &str,
    #[case] after: &str,
    #[case] tools: &[&str],
    #[values(true, false)] is_legacy: bool,
) {
    if !peers::are_installed() {
        return;
    }
    let server = written(before, 0).await;
    let url = server.first_line.clone();
    let port = url.parse::<url::Url>().unwrap().port().unwrap();
    let gw = Setup::open().url("written", &url, "").start().await;
    let session = gw.anonymous().open("/mcp/written").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/written");
    let mut stream = if is_legacy {
        let stream = session.listen().await;
        session.tools().await;
        stream
    } else {
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let request = modern.request(&json!("l"), "subscriptions/listen", wanted);
        let mut stream = modern.post(&request).await.events();
        let first = stream.message().await.expect("an acknowledgement");
        let honoured = &first["params"]["notifications"];
        assert_eq!(*honoured, json!({"toolsListChanged": true}));
        modern.send("tools/list", json!({})).await.unwrap();
        stream
    };
    let known = gw.log().len();
    drop(server);
    let _server = written(after, port).await;
    eventually("the other era is found", async || {
        let lines = gw.log().into_iter().skip(known);
        { lines }.find(|line| line.contains("drawbridge::upstream::link::negotiated"))
    })
    .await;
    within("a notice", stream.until("notifications/tools/list_changed")).await;
    eventually("the new tools", async || {
        let listed = session.request("tools/list", json!({})).await.ok()?;
        let listed = listed["tools"].as_array()?.iter();
        let names: Vec<_> = listed.map(|tool| &tool["name"]).collect();
        (names == tools).then_some(())
    })
    .await;
    gw.stop().await;
}
