//! Upstreams of both eras: every client is spoken for in its own, where the upstream keeps sessions
//! for the older one. Spec: `docs/adr/0008`.

use rstest::rstest;
use serde_json::{Value, json};

use super::{count, user};
use crate::harness::session::text_of;
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// A gateway before one stub, and the stub where it is reached over HTTP.
async fn before(carrier: &str, args: &[&str], keys: &str) -> (Gateway, Option<HttpStub>) {
    if carrier == "http" {
        let stub = HttpStub::start(args).await;
        let gw = Setup::open().http("stub", &stub, keys).start().await;
        (gw, Some(stub))
    } else {
        let setup = Setup::open().stub_with("stub", args, keys);
        (setup.start().await, None)
    }
}

/// The upstream's session in this text of `session_info`; `modern` for a sessionless request.
fn session_in(text: &str) -> String {
    let info: Value = serde_json::from_str(text).unwrap();
    info["session"].as_str().unwrap().to_owned()
}

async fn serving(user: &Session) -> String {
    session_in(&user.text("session_info", json!({})).await)
}

async fn serving_modern(user: &Modern) -> String {
    let result = user.call("session_info", json!({})).await.unwrap();
    session_in(text_of(&result))
}

/// How many children run, as the metrics say it.
async fn running(gw: &Gateway) -> String {
    gw.metric("drawbridge_children_running", "")
        .await
        .to_string()
}

#[rstest]
#[case("http", &["--era", "dual"])]
#[case("stdio", &["--era", "dual"])]
#[case("stdio", &["--era", "dual", "--first-decides"])]
#[tokio::test]
async fn each_client_is_spoken_to_in_its_own_era(#[case] carrier: &str, #[case] args: &[&str]) {
    for modern_first in [true, false] {
        let (gw, stub) = before(carrier, args, "").await;
        let modern = Modern::new(gw.anonymous(), "/mcp/stub");
        if modern_first {
            assert_eq!(serving_modern(&modern).await, "modern");
        }
        let (one, other) = (user(&gw).await, user(&gw).await);
        assert_ne!(serving(&one).await, "modern");
        assert_ne!(serving(&other).await, "modern");
        assert_eq!(serving_modern(&modern).await, "modern");
        if let Some(stub) = &stub {
            assert_ne!(serving(&one).await, serving(&other).await);
            // A modern client that comes first has the handshake tried, and the session that it opens ended.
            let tried = 2 + u64::from(modern_first);
            assert_eq!(count(stub, "initialize").await, tried);
            assert_eq!(count(stub, "DELETE").await, u64::from(modern_first));
        }
        gw.stop().await;
    }
}

/// Finds the question and the handshake when it is ready, and answers both in their order.
const SLOW: &str = r#"sleep 2.5; read a; read b
echo '{"jsonrpc":"2.0","id":0,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{},"ttlMs":0,"cacheScope":"private"}}'
echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"slow","version":"1"}}}'
cat > /dev/null"#;

// A server that is fetched first takes long to start: once is enough.
#[tokio::test]
async fn a_legacy_client_has_the_session_that_a_slow_child_was_offered() {
    let setup = Setup::open().stdio("stub", "/bin/sh", &["-c", SLOW], "");
    let gw = setup.start().await;
    let _user = user(&gw).await;
    let log = gw.log();
    let starts = log
        .iter()
        .filter(|line| line.contains("started an upstream process"));
    assert_eq!(starts.count(), 1, "{log:#?}");
    gw.stop().await;
}

// Spec: SPEC D-08. Silent for longer than a probe waits, it was offered a session beside it.
#[tokio::test]
async fn a_child_that_is_slow_to_start_serves_in_one_era_only() {
    let args = ["--era", "dual", "--slow-start", "2500"];
    let (gw, _) = before("stdio", &args, "").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    assert_eq!(serving_modern(&modern).await, "modern");
    let result = modern.call("stats", json!({})).await.unwrap();
    let stats: Value = serde_json::from_str(text_of(&result)).unwrap();
    assert_eq!(stats["counts"]["initialize"], Value::Null, "{stats}");
    // For a legacy client the upstream speaks the legacy era.
    assert_ne!(serving(&user(&gw).await).await, "modern");
    gw.stop().await;
}

#[rstest]
#[tokio::test]
async fn what_only_sessions_have_reaches_a_legacy_client(#[values("http", "stdio")] carrier: &str) {
    let (gw, _stub) = before(carrier, &["--era", "dual"], "").await;
    let (one, other) = (user(&gw).await, user(&gw).await);
    // State of the session.
    let value = json!({"key": "k", "value": "mine"});
    one.text("state_set", value).await;
    assert_eq!(one.text("state_get", json!({"key": "k"})).await, "mine");
    assert_eq!(
        other.text("state_get", json!({"key": "k"})).await,
        "(unset)"
    );
    // Its log level.
    let quiet = json!({"level": "error"});
    one.request("logging/setLevel", quiet).await.unwrap();
    let log = json!({"level": "info"});
    assert_eq!(one.text("log", log.clone()).await, "not logged");
    assert_eq!(other.text("log", log).await, "logged");
    // Its subscriptions.
    let mut stream = one.listen().await;
    let uri = json!({"uri": "stub://static/1"});
    one.request("resources/subscribe", uri.clone())
        .await
        .unwrap();
    assert_eq!(
        other.text("touch_resource", uri.clone()).await,
        "not subscribed"
    );
    assert_eq!(one.text("touch_resource", uri).await, "announced");
    let update = stream.message().await.unwrap();
    assert_eq!(update["method"], "notifications/resources/updated");
    // Questions that the server asks by itself, in the middle of a call.
    let (_, mut exchange) = one.start_call("ask_roots", json!({})).await;
    let question = exchange.next().await.unwrap();
    assert_eq!(question["method"], "roots/list", "{question}");
    one.answer(&question, json!({"roots": [{"uri": "file:///home"}]}))
        .await;
    let result = exchange.finish().await.1.unwrap();
    assert!(
        text_of(&result).contains(r#"{"result":{"roots""#),
        "{result}"
    );
    gw.stop().await;
}

// Spec: BRIDGING §3.8: a call that the legacy era refuses has not run, and is run as a task of the modern era.
#[rstest]
#[case("http", &["--era", "dual"])]
#[case("stdio", &["--era", "dual"])]
#[case("stdio", &["--era", "dual", "--first-decides"])]
#[tokio::test]
async fn a_legacy_client_calls_what_only_the_newer_era_runs(
    #[case] carrier: &str,
    #[case] args: &[&str],
) {
    for (keys, runs) in [("", true), ("run_tasks = false", false)] {
        let (gw, _stub) = before(carrier, args, keys).await;
        let user = user(&gw).await;
        let session = serving(&user).await;
        let reply = user.call("errand", json!({"looks": 1})).await;
        let is_done = reply
            .as_ref()
            .is_ok_and(|result| text_of(result) == "errand done");
        assert_eq!(is_done, runs, "{reply:?}");
        // Its own session is where it was.
        assert_ne!(session, "modern");
        assert_eq!(serving(&user).await, session);
        gw.stop().await;
    }
}

#[rstest]
#[tokio::test]
async fn what_runs_the_task_ends_when_it_is_not_needed_any_more(
    #[values("principal", "shared")] isolation: &str,
) {
    let keys = format!("isolation = {isolation:?}\n[stdio]\nidle = \"100ms\"");
    let args = ["--era", "dual", "--first-decides"];
    let (gw, _stub) = before("stdio", &args, &keys).await;
    let user = user(&gw).await;
    let session = serving(&user).await;
    let reply = user.call("errand", json!({"looks": 1})).await;
    assert_eq!(text_of(&reply.unwrap()), "errand done");
    eventually("the child of the newer era is gone", async || {
        (running(&gw).await == "1").then_some(())
    })
    .await;
    assert_eq!(serving(&user).await, session);
    gw.stop().await;
}

#[tokio::test]
async fn lists_of_the_two_eras_are_kept_apart() {
    let keys = "isolation = \"shared\"";
    let (gw, _stub) = before("http", &["--era", "dual"], keys).await;
    let modern = Modern::new(gw.anonymous(), "/mcp/stub");
    for _ in 0..2 {
        let listed = modern.send("tools/list", json!({})).await.unwrap();
        assert!(listed.to_string().contains("ask_thrice"), "{listed}");
        let names = user(&gw).await.tools().await;
        assert!(!names.iter().any(|name| name == "ask_thrice"), "{names:?}");
    }
    gw.stop().await;
}

// An upstream of the modern era alone is probed once, not for every session.
#[rstest]
#[case::by_itself(None)]
#[case::bad_request(Some("400"))]
#[case::not_found(Some("404"))]
#[case::not_allowed(Some("405"))]
#[case::unknown_method(Some(r#"200 {"error":{"code":-32601,"message":"Method not found"}}"#))]
#[case::method_first(Some(r#"404 {"error":{"code":-32601,"message":"Method not found"}}"#))]
#[case::unsupported(Some(
    r#"400 {"error":{"code":-32022,"message":"","data":{"supported":["2026-07-28"]}}}"#
))]
#[case::web_page(Some("200 <h1>hello</h1>"))]
#[tokio::test]
async fn a_refused_handshake_is_tried_once_for_all(#[case] script: Option<&str>) {
    let mut args = vec!["--era", "modern"];
    args.extend(
        script
            .into_iter()
            .flat_map(|script| ["--handshake", script]),
    );
    let (gw, stub) = before("http", &args, "").await;
    let stub = stub.unwrap();
    for _ in 0..3 {
        assert_eq!(serving(&user(&gw).await).await, "modern");
    }
    let counter = script.map_or("refused_handshakes", |_| "scripted_handshakes");
    assert_eq!(count(&stub, counter).await, 1);
    gw.stop().await;
}

#[rstest]
#[case::by_itself(None)]
#[case::silent(Some("silent"))]
#[case::dies(Some("exit"))]
#[tokio::test]
async fn a_child_that_takes_no_handshake_is_modern_for_all(#[case] script: Option<&str>) {
    let mut args = vec!["--era", "modern"];
    args.extend(
        script
            .into_iter()
            .flat_map(|script| ["--handshake", script]),
    );
    let (gw, _) = before("stdio", &args, "connect_timeout = \"2s\"").await;
    let one = user(&gw).await;
    assert_eq!(serving(&one).await, "modern");
    let other = user(&gw).await;
    let stats = other.text("stats", json!({})).await;
    let is_asked = stats.contains("handshake") || stats.contains("refused");
    assert!(!is_asked, "{stats}");
    // Children started for the probe are in use or ended.
    eventually("a child for each session", async || {
        (running(&gw).await == "2").then_some(())
    })
    .await;
    gw.stop().await;
}

#[rstest]
#[case(&["--era", "dual"])]
#[case(&["--era", "dual", "--first-decides"])]
#[tokio::test]
async fn the_child_of_the_probe_is_used_or_ended(#[case] args: &[&str]) {
    let (gw, _) = before("stdio", args, "").await;
    assert_ne!(serving(&user(&gw).await).await, "modern");
    eventually("one child for one session", async || {
        (running(&gw).await == "1").then_some(())
    })
    .await;
    gw.stop().await;
}

// Without sessions the legacy era can neither ask nor announce, so the modern era is used.
#[tokio::test]
async fn an_older_era_without_sessions_is_not_used() {
    let args = ["--era", "dual", "--stateless"];
    let (gw, stub) = before("http", &args, "").await;
    let stub = stub.unwrap();
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await, "modern");
    }
    assert_eq!(count(&stub, "initialize").await, 1);
    gw.stop().await;
}

// Spec: SPEC U-06: an outage says nothing about the next session.
#[tokio::test]
async fn a_handshake_that_fails_for_now_is_tried_again() {
    let args = ["--era", "modern", "--handshake", "500"];
    let (gw, stub) = before("http", &args, "").await;
    let stub = stub.unwrap();
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await, "modern");
    }
    assert_eq!(count(&stub, "scripted_handshakes").await, 2);
    gw.stop().await;
}

// Spec: SPEC U-06. The first handshake is the probe's; each further one breaks before its response.
#[rstest]
#[case::at_times("2", false)]
#[case::always("99", true)]
#[tokio::test]
async fn a_socket_that_breaks_on_the_handshake_is_tried_once_more(
    #[case] times: &str,
    #[case] is_modern: bool,
) {
    let args = [
        "--era",
        "dual",
        "--handshake",
        "cut",
        "--handshake-times",
        times,
    ];
    let stub = HttpStub::start_as("ws", 0, &args).await;
    let gw = Setup::open().http("stub", &stub, "").start().await;
    for _ in 0..2 {
        assert_eq!(serving(&user(&gw).await).await == "modern", is_modern);
    }
    let stats = user(&gw).await.text("stats", json!({})).await;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let cut = if is_modern { 3 } else { 2 };
    assert_eq!(stats["counts"]["scripted_handshakes"], cut, "{stats}");
    gw.stop().await;
}

#[tokio::test]
async fn a_session_survives_the_end_of_the_older_era() {
    let stub = HttpStub::start(&["--era", "dual"]).await;
    let port = stub.port();
    let gw = Setup::open().http("stub", &stub, "").start().await;
    let user = user(&gw).await;
    assert_ne!(serving(&user).await, "modern");
    stub.stop().await;
    let _stub = HttpStub::start_on(port, &["--era", "modern"]).await;
    eventually("the session goes on in the newer era", async || {
        let result = user.call("session_info", json!({})).await.ok()?;
        (result["isError"] != true && session_in(text_of(&result)) == "modern").then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn an_older_era_that_is_added_is_noticed_within_the_horizon() {
    let stub = HttpStub::start(&["--era", "modern"]).await;
    let port = stub.port();
    let keys = "era_recheck = \"1s\"";
    let gw = Setup::open().http("stub", &stub, keys).start().await;
    assert_eq!(serving(&user(&gw).await).await, "modern");
    stub.stop().await;
    let _stub = HttpStub::start_on(port, &["--era", "dual"]).await;
    eventually("a new session is a legacy one", async || {
        (serving(&user(&gw).await).await != "modern").then_some(())
    })
    .await;
    gw.stop().await;
}
