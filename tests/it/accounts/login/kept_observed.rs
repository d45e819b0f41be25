//! What operators and users see of kept logins (`kind = "id_jag"`).

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

// SPEC C-98
#[tokio::test]
async fn both_requests_of_an_assertion_are_spans_of_its_call() {
    let (collector, url) = Collector::start().await;
    let telemetry = format!("[telemetry]\notlp_endpoint = {url:?}\nsample_ratio = 1.0");
    let world = AssertedWorld::with(&telemetry).await;
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    world.gw.stop().await;
    // Stopping flushes. One request is that of each login's code.
    let requests = eventually("the token requests", async || {
        let mut spans = collector.recorded_spans();
        spans.retain(|span| span.name == "token_request");
        (spans.len() == 4).then_some(spans)
    })
    .await;
    let spans = collector.recorded_spans();
    let calls = |parent: &[u8]| {
        let call = spans.iter().find(|span| span.span_id == parent);
        call.is_some_and(|call| !call.name.starts_with("GET "))
    };
    let of_calls = requests.iter().filter(|one| calls(&one.parent_span_id));
    let traces: Vec<_> = of_calls.map(|one| &one.trace_id).collect();
    assert_eq!(traces.len(), 2, "{requests:?}");
    assert_eq!(traces[0], traces[1]);
}
