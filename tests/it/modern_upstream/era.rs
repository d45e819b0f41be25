//! Detection of an upstream's era. Spec: SPEC U-05 to U-09, D-07, D-08.

use rstest::rstest;
use serde_json::json;

use super::{count, user};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

async fn before(stub: &HttpStub, keys: &str) -> Gateway {
    Setup::open().http("stub", stub, keys).start().await
}

/// Whether a new session gets a call through.
async fn works(gw: &Gateway) -> bool {
    let hello = crate::harness::http::initialize(1, "2025-11-25", &json!({}));
    let answer = gw.anonymous().post("/mcp/stub", &[], &hello).await;
    let text = answer.text().await;
    text.contains("protocolVersion")
}

// Spec: SPEC U-05, U-06.
#[rstest]
#[case::empty("400")]
#[case::not_found("404")]
#[case::unknown_method(r#"404 {"error":{"code":-32601,"message":"Method not found"}}"#)]
#[case::not_allowed("405")]
#[case::error_with_200(r#"200 {"error":{"code":-32601,"message":"Method not found"}}"#)]
#[case::no_session(r#"400 {"error":{"code":-32000,"message":"Bad Request: no session"}}"#)]
#[case::legacy_result(r#"200 {"result":{"supportedVersions":["2025-11-25"],"capabilities":{}}}"#)]
#[case::legacy_list(
    r#"400 {"error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}}"#
)]
#[case::web_page("200 <h1>hello</h1>")]
#[tokio::test]
async fn an_http_upstream_that_knows_no_discovery_is_legacy(#[case] probe: &str) {
    let stub = HttpStub::start(&["--probe", probe]).await;
    let gw = before(&stub, "").await;
    let user = user(&gw).await;
    assert_eq!(user.text("echo", json!({"text": "hi"})).await, "hi");
    assert_eq!(count(&stub, "scripted_probes").await, 1);
    assert_eq!(count(&stub, "initialize").await, 1);
    gw.stop().await;
}

// Spec: SPEC U-06: a wall or an outage is no evidence, and is not remembered as any.
#[rstest]
#[case("401")]
#[case("403")]
#[case("429")]
#[case("500")]
#[case(r#"503 {"error":{"code":-32601,"message":"Method not found"}}"#)]
#[tokio::test]
async fn failed_probe_is_repeated_for_next_session(#[case] probe: &str) {
    let args = ["--era", "dual", "--probe", probe, "--probe-times", "1"];
    let stub = HttpStub::start(&args).await;
    let gw = before(&stub, "").await;
    // `initialize` was answered: the session is a legacy one.
    assert!(works(&gw).await);
    assert_eq!(count(&stub, "initialize").await, 1);
    assert_eq!(count(&stub, "server/discover").await, 0);
    assert_eq!(user(&gw).await.text("echo", json!({})).await, "{}");
    assert_eq!(count(&stub, "server/discover").await, 1);
    gw.stop().await;
}

// Spec: SPEC U-05, U-09: modern, corrected once.
#[rstest]
#[case(r#"400 {"error":{"code":-32022,"message":"","data":{"supported":["2026-07-28"]}}}"#)]
#[case(r#"400 {"error":{"code":-32020,"message":"Header mismatch"}}"#)]
#[tokio::test]
async fn a_modern_refusal_is_answered_by_asking_once_more(#[case] probe: &str) {
    let args = ["--era", "modern", "--probe", probe, "--probe-times", "1"];
    let stub = HttpStub::start(&args).await;
    let gw = before(&stub, "").await;
    assert_eq!(user(&gw).await.text("echo", json!({})).await, "{}");
    assert_eq!(count(&stub, "initialize").await, 0);
    gw.stop().await;
    let stub = HttpStub::start(&["--era", "modern", "--probe", probe]).await;
    let gw = before(&stub, "").await;
    assert!(!works(&gw).await, "it refuses for ever");
    assert_eq!(count(&stub, "scripted_probes").await, 2);
    gw.stop().await;
}

// Spec: SPEC U-09, D-07.
#[tokio::test]
async fn a_child_that_names_its_revision_is_asked_once_more() {
    let probe = r#"400 {"error":{"code":-32022,"message":"","data":{"supported":["2026-07-28"]}}}"#;
    let args = ["--era", "modern", "--probe", probe, "--probe-times", "1"];
    let gw = Setup::open().stub("stub", &args).start().await;
    assert_eq!(user(&gw).await.text("echo", json!({})).await, "{}");
    gw.stop().await;
    let args = ["--era", "modern", "--probe", probe];
    let gw = Setup::open().stub("stub", &args).start().await;
    assert!(!works(&gw).await, "it refuses for ever");
    gw.stop().await;
}

// Spec: SPEC D-07, D-08.
#[rstest]
#[case(r#"400 {"error":{"code":-32601,"message":""}}"#)]
#[case(r#"400 {"error":{"code":-32602,"message":""}}"#)]
#[case(r#"400 {"error":{"code":-32020,"message":""}}"#)]
#[case("silent")]
#[case("exit")]
#[tokio::test]
async fn a_child_that_knows_no_discovery_is_legacy(#[case] probe: &str) {
    let gw = Setup::open()
        .stub("stub", &["--probe", probe])
        .start()
        .await;
    let one = user(&gw).await;
    assert_eq!(one.text("echo", json!({"text": "hi"})).await, "hi");
    let other = user(&gw).await;
    let stats = other.text("stats", json!({})).await;
    assert!(stats.contains("\"initialize\":1"), "{stats}");
    // Once for the command, not once for every child.
    assert!(!stats.contains("scripted_probes"), "{stats}");
    gw.stop().await;
}

// Spec: SPEC U-07.
#[tokio::test]
async fn the_verdict_is_shared_by_all_sessions() {
    let stub = HttpStub::start(&["--probe", "400"]).await;
    let gw = before(&stub, "").await;
    for _ in 0..3 {
        user(&gw).await.text("echo", json!({})).await;
    }
    assert_eq!(count(&stub, "scripted_probes").await, 1);
    gw.stop().await;
}

#[rstest]
#[case("legacy", 0, 1)]
#[case("2025-06-18", 0, 1)]
#[case("modern", 0, 0)]
#[case("2026-07-28", 0, 0)]
#[tokio::test]
async fn a_pinned_era_is_not_asked_for(
    #[case] era: &str,
    #[case] probes: u64,
    #[case] handshakes: u64,
) {
    let args = ["--era", "dual", "--probe", "500", "--probe-times", "0"];
    let stub = HttpStub::start(&args).await;
    let gw = before(&stub, &format!("era = {era:?}")).await;
    user(&gw).await.text("pid", json!({})).await;
    assert_eq!(count(&stub, "scripted_probes").await, probes);
    assert_eq!(count(&stub, "initialize").await, handshakes);
    gw.stop().await;
}

// Spec: SPEC U-07: a stale "legacy" would never fail by itself.
#[tokio::test]
async fn an_upgrade_in_place_is_noticed_within_the_horizon() {
    let stub = HttpStub::start(&[]).await;
    let port = stub.port();
    let gw = before(&stub, "era_recheck = \"1s\"").await;
    user(&gw).await.text("pid", json!({})).await;
    stub.stop().await;
    let stub = HttpStub::start_on(port, &["--era", "dual"]).await;
    eventually("a new session speaks the modern era", async || {
        user(&gw).await.text("pid", json!({})).await;
        (count(&stub, "server/discover").await > 0).then_some(())
    })
    .await;
    gw.stop().await;
}

// The upgraded upstream has no legacy era: open sessions detect this by their calls.
#[tokio::test]
async fn a_session_survives_the_upgrade_of_its_upstream() {
    let stub = HttpStub::start(&[]).await;
    let port = stub.port();
    let gw = before(&stub, "").await;
    let user = user(&gw).await;
    user.text("pid", json!({})).await;
    stub.stop().await;
    let _stub = HttpStub::start_on(port, &["--era", "modern"]).await;
    eventually("the session goes on", async || {
        user.call("pid", json!({}))
            .await
            .ok()
            .filter(|result| result["isError"] != true)
    })
    .await;
    gw.stop().await;
}

// Once one session has detected the upgrade, the next call of every other session succeeds at once.
#[tokio::test]
async fn all_sessions_survive_the_upgrade_at_once() {
    let stub = HttpStub::start(&[]).await;
    let port = stub.port();
    let gw = before(&stub, "").await;
    let (first, second, third) = (user(&gw).await, user(&gw).await, user(&gw).await);
    for user in [&first, &second, &third] {
        user.text("pid", json!({})).await;
    }
    stub.stop().await;
    let _stub = HttpStub::start_on(port, &["--era", "modern"]).await;
    eventually("the first session goes on", async || {
        let result = first.call("pid", json!({})).await.ok();
        result.filter(|result| result["isError"] != true)
    })
    .await;
    for user in [&second, &third] {
        let result = user.call("pid", json!({})).await.unwrap();
        assert_ne!(result["isError"], true, "{result}");
    }
    gw.stop().await;
}
