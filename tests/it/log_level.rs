//! `/log-level` on the admin port: levels of log lines at run time, for programs on this machine alone.

use http::{Method, StatusCode};
use serde_json::json;

use crate::harness::gateway::Gateway;
use crate::harness::http::{Actor, Answer};
use crate::harness::{Setup, eventually};

async fn post(admin: &Actor, headers: &[(&str, &str)], levels: &'static str) -> Answer {
    admin
        .send(Method::POST, "/log-level", headers, levels)
        .await
}

fn has_debug_lines(gw: &Gateway) -> bool {
    gw.log_records().iter().any(|line| line["level"] == "DEBUG")
}

#[tokio::test]
async fn levels_are_shown_and_changed_at_run_time() {
    let setup = Setup::open().toml("[telemetry]\nlog_level = \"info,h2=off\"\n");
    let gw = setup.stub("stub", &[]).start().await;
    let admin = Actor::new(&format!("http://{}", gw.admin_address()), None);
    let shown = admin
        .get("/log-level", &[])
        .await
        .expect(StatusCode::OK)
        .await;
    assert_eq!(shown.text().await, "info,h2=off\n");
    assert!(!has_debug_lines(&gw));
    let refused = post(&admin, &[], "loud").await;
    let refused = refused.expect(StatusCode::BAD_REQUEST).await;
    let text = refused.text().await;
    assert!(text.contains("each one of off, error, warn"), "{text}");
    let levels = "info,drawbridge::downstream=debug";
    let changed = post(&admin, &[], "info,drawbridge::downstream=debug").await;
    let changed = changed.expect(StatusCode::OK).await;
    assert_eq!(changed.text().await, format!("{levels}\n"));
    // A refused request of a caller logs a line at `debug`.
    let user = gw.anonymous().open("/mcp/stub").await;
    eventually("a line at debug", async || {
        let _refused = user.request("prompts/get", json!({"name": 7})).await;
        let _refused = user.request("no/such", json!({})).await;
        let _refused = user.request("resources/read", json!({})).await;
        has_debug_lines(&gw).then_some(())
    })
    .await;
    gw.stop().await;
}

#[tokio::test]
async fn only_programs_on_this_machine_change_levels() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    let admin = Actor::new(&format!("http://{}", gw.admin_address()), None);
    let page = [("origin", "http://evil.example")];
    let proxied = [("x-forwarded-for", "192.0.2.1")];
    for headers in [page, proxied] {
        let refused = post(&admin, &headers, "off").await;
        assert_eq!(refused.status(), 403, "{headers:?}");
        let refused = admin.get("/log-level", &headers).await;
        assert_eq!(refused.status(), 403, "{headers:?}");
    }
    let rebound = post(&admin, &[("host", "evil.example")], "off").await;
    assert_eq!(rebound.status(), 421);
    let own = post(&admin, &[("host", "192.0.2.1:9090")], "off").await;
    assert_eq!(own.status(), 403);
    let shown = admin.get("/log-level", &[]).await;
    assert_eq!(shown.text().await, "info\n");
    gw.stop().await;
}
