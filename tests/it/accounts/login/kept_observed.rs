//! What operators and users see of kept logins (`kind = "id_jag"`).

use rstest::rstest;
use serde_json::json;

use super::asserted::{AssertedWorld, REFRESH, ended, greeting};
use super::world::{Begun, Browser};
use crate::accounts::watch::{audited, count_of, records};
use crate::accounts::world::tells_none;
use crate::harness::eventually;
use crate::telemetry::Collector;

// SPEC O-04
#[tokio::test]
async fn life_of_a_kept_login_is_audited_as_that_of_an_account() {
    let world = AssertedWorld::start().await;
    let (gw, idp) = (&world.gw, world.idp.clone());
    world.idp.answers_grant("refresh_token", move |_| {
        let next = idp.id_token("alice", "", &json!({}));
        let answer = json!({
            "access_token": "opaque-hunter2", "token_type": "Bearer", "id_token": next,
        });
        (200, answer)
    });
    world.connect("alice", (&ended(), Some(REFRESH))).await;
    let connected = audited(gw, 0, "account_connected").await;
    assert_eq!(
        (&connected["upstream"], &connected["subject"]),
        (&"up".into(), &"alice".into())
    );
    assert_eq!(connected["server"], world.idp.origin);
    assert_eq!(connected["scopes"], "openid offline_access");

    let session = world.session("alice", "up").await;
    for _ in 0..2 {
        assert_eq!(greeting(&session, "alice").await, "I am alice");
    }
    let used = audited(gw, 0, "account_first_use").await;
    assert_eq!(
        (&used["program"], &used["upstream"]),
        (&"harness".into(), &"up".into())
    );
    assert_eq!(used["principal"], connected["principal"]);
    let refreshed = audited(gw, 0, "account_refreshed").await;
    assert_eq!(
        (&refreshed["server"], &refreshed["outcome"]),
        (&world.idp.origin.as_str().into(), &"ok".into())
    );

    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    eventually("the program", async || {
        let page = browser.open(&world.url("/connect/up")).await;
        page.text.contains("<li>harness, last on 20").then_some(())
    })
    .await;
    browser.submit(&page, &[("action", "disconnect")]).await;
    let disconnected = audited(gw, 0, "account_disconnected").await;
    assert_eq!(disconnected["principal"], connected["principal"]);
    let first_uses = records(gw)
        .into_iter()
        .filter(|one| one["event"] == "account_first_use");
    assert_eq!(first_uses.count(), 1);
    let count = async |outcome: &str| {
        let labels = format!("outcome=\"{outcome}\"");
        count_of(gw, "drawbridge_connect_accounts_total", &labels).await
    };
    assert_eq!(
        (
            count("begun").await,
            count("connected").await,
            count("disconnected").await
        ),
        ("1".into(), "1".into(), "1".into())
    );
    tells_none(gw, &[REFRESH, "opaque-hunter2"].map(str::to_owned)).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn login_of_another_person_is_audited_as_refused() {
    let world = AssertedWorld::start().await;
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    world.answers_login(&begun, "bob", (&json!({}), Some(REFRESH)));
    world.back(&mut browser, &begun).await;
    let refused = audited(&world.gw, 0, "account_refused").await;
    assert_eq!(
        (&refused["reason"], &refused["outcome"]),
        (&"login_other_person".into(), &"denied".into())
    );
    assert_eq!(refused["upstream"], "up");
    let labels = "outcome=\"refused\"";
    let refused = count_of(&world.gw, "drawbridge_connect_accounts_total", labels);
    assert_eq!(refused.await, "1");
    world.gw.stop().await;
}

// SPEC C-98. Columns: the endpoint, and the upstreams that are opened.
#[rstest]
#[case::direct("/mcp/up", 1)]
#[case::merged("/mcp", 2)]
#[tokio::test]
async fn both_requests_of_an_assertion_are_spans_of_the_request_that_needs_it(
    #[case] path: &str,
    #[case] upstreams: usize,
) {
    let (collector, url) = Collector::start().await;
    let telemetry = format!("[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 1.0");
    let world = AssertedWorld::with(&telemetry).await;
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    let token = world.idp.access_token("alice", &world.url(path));
    let session = world.gw.bearer(&token);
    let session = session.open_as(path, "2025-06-18", json!({})).await;
    assert_eq!(session.tools().await.len(), upstreams);
    world.gw.stop().await;
    // Stopping flushes. Two requests redeem the codes of logins.
    let requests = eventually("the token requests", async || {
        let mut spans = collector.recorded_spans();
        spans.retain(|span| span.name == "token_request");
        (spans.len() == 2 + 2 * upstreams).then_some(spans)
    })
    .await;
    let spans = collector.recorded_spans();
    let opening = spans
        .iter()
        .find(|span| span.name.starts_with("initialize"));
    let opening = opening.expect("the request that opens them");
    let below = requests
        .iter()
        .filter(|one| one.parent_span_id == opening.span_id);
    assert_eq!(below.count(), 2 * upstreams, "{requests:?}");
}
