//! Who opens the connect pages with `auth.mode = "oauth"`: logins at a scripted issuer.

mod asserted;
mod attacks;
mod consents;
mod kept;
mod kept_observed;
mod killed;
mod real;
mod sdk_servers;
mod second_server;
mod world;

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::json;

use self::world::{Browser, CLIENT, KEY, SECRET, World, before};
use super::watch::checked;
use super::world::{logged, tells_none};
use crate::harness::session::text_of;

/// Path and query of the first URL in `text`.
fn path_in(text: &str) -> String {
    let mut words = text.split_whitespace();
    let url = words.find(|word| word.starts_with("http"));
    let url = url::Url::parse(url.unwrap_or_else(|| panic!("no URL in {text}"))).unwrap();
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

#[tokio::test]
async fn person_who_logs_in_connects_the_account_of_their_calls() {
    let world = World::start().await;
    let session = world
        .caller("alice")
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let refused = session
        .call("echo", json!({"text": "early"}))
        .await
        .unwrap();
    let link = path_in(text_of(&refused));

    let mut browser = Browser::new();
    let first = browser.open(&world.url(&link)).await;
    assert_eq!(first.status, 200);
    assert!(
        first.text.contains("Log in") && first.text.contains("harness"),
        "{}",
        first.text
    );
    assert!(
        !first.text.contains("http-equiv=\"refresh\""),
        "opening goes nowhere: {}",
        first.text
    );
    let page = world.log_in(&mut browser, &link, "alice").await;
    assert!(
        page.text
            .contains("alice@&lt;b&gt;home&lt;/b&gt; (alice) of"),
        "{}",
        page.text
    );
    assert!(
        page.text.contains("harness"),
        "still names the program: {}",
        page.text
    );
    let done = browser
        .submit(&page, &[("action", "connect"), ("key", KEY)])
        .await;
    assert!(done.text.contains("Connected"), "{}", done.text);
    assert_eq!(session.text("echo", json!({"text": "late"})).await, "late");

    // Another caller has nothing of it.
    let other = world
        .caller("bob")
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let refused = other.call("echo", json!({"text": "other"})).await.unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(world.upstream.count("other"), 0);
    assert_eq!(world.server.seen().len(), 1);
    let secrets = [SECRET, KEY, "a-code-hunter2", "opaque-hunter2"];
    tells_none(&world.gw, &secrets.map(str::to_owned)).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn code_is_redeemed_with_its_verifier_and_the_proof_of_the_client() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect").await;
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    assert_eq!(begun.url.path(), "/auth");
    assert_eq!(
        (&*query["scope"], &*query["response_type"]),
        ("openid", "code")
    );
    assert!(
        !query.contains_key("prompt") && !query.contains_key("resource"),
        "{query:?}"
    );
    world.server.logs_in("alice", &begun.nonce, &json!({}));
    world.back(&mut browser, &begun).await;
    let (authorization, form) = world.server.seen().pop().unwrap();
    let proof = BASE64_STANDARD.encode(format!("drawbridge:{SECRET}"));
    assert_eq!(authorization, Some(format!("Basic {proof}")));
    assert_eq!(
        (&*form["grant_type"], &*form["code"]),
        ("authorization_code", "a-code-hunter2")
    );
    assert_eq!(form["redirect_uri"], world.url("/connect/callback/login"));
    let verifier = digest(&SHA256, form["code_verifier"].as_bytes());
    assert_eq!(
        query["code_challenge"],
        BASE64_URL_SAFE_NO_PAD.encode(verifier)
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn login_ends_with_log_out_and_can_be_had_as_somebody_else() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, "/connect", "alice").await;
    assert!(page.text.contains("(alice)"), "{}", page.text);
    let out = browser.submit(&page, &[("action", "logout")]).await;
    assert!(out.text.contains("logged out"), "{}", out.text);
    let page = browser.open(&world.url("/connect")).await;
    assert!(!page.text.contains("alice"), "{}", page.text);
    let page = browser.submit(&page, &[("action", "login-again")]).await;
    assert!(
        page.goes_on().contains("prompt=login"),
        "{}",
        page.goes_on()
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn two_pages_log_in_at_a_time() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let first = world.begin(&mut browser, "/connect").await;
    let second = world.begin(&mut browser, "/connect/up").await;
    for (begun, next) in [
        (first, "/connect?login=done"),
        (second, "/connect/up?login=done"),
    ] {
        world.server.logs_in("alice", &begun.nonce, &json!({}));
        let done = world.back(&mut browser, &begun).await;
        assert_eq!(done.goes_on(), world.url(next));
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn browser_that_loses_the_cookie_is_told_so_and_goes_nowhere() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect/up").await;
    world.server.logs_in("alice", &begun.nonce, &json!({}));
    let done = world.back(&mut browser, &begun).await;
    let next = done.goes_on();
    browser.cookies.clear();
    let page = browser.open(&next).await;
    assert!(
        page.text
            .contains("did not bring the cookie of the login back"),
        "{}",
        page.text
    );
    assert!(
        !page.text.contains("http-equiv=\"refresh\""),
        "{}",
        page.text
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn issuer_that_is_down_or_says_no_logs_nobody_in() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect/up").await;
    let query = [
        ("state", &*begun.state),
        ("error", "access_denied"),
        ("error_description", "<script>"),
    ];
    let page = browser.open(&world.callback(&query)).await;
    assert!(
        page.text.contains("access_denied") && !page.text.contains("<script>"),
        "{}",
        page.text
    );
    let begun = world.begin(&mut browser, "/connect/up").await;
    world
        .server
        .answers(400, json!({"error": "invalid_client"}));
    let page = world.back(&mut browser, &begun).await;
    assert!(page.text.contains("could not be verified"), "{}", page.text);
    logged(
        &world.gw,
        "correct `client_id`, `client_secret` or `private_key` of `connect.login`",
    )
    .await;
    assert!(!browser.cookies.contains_key("__Host-drawbridge-person"));
    world.gw.stop().await;
}

#[tokio::test]
async fn unusable_authorization_endpoint_is_no_link() {
    let world = World::start().await;
    world
        .server
        .publishes("authorization_endpoint", json!("javascript:alert(1)"));
    let mut browser = Browser::new();
    let page = browser.open(&world.url("/connect")).await;
    let page = browser.submit(&page, &[("action", "login")]).await;
    assert_eq!(page.status, 503);
    assert!(!page.text.contains("javascript"), "{}", page.text);
    logged(&world.gw, "names no authorization_endpoint").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn access_token_says_who_it_is_where_subjects_differ() {
    let world = World::with("token = \"access\"", "").await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect/up").await;
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    let resource = world.url("/mcp");
    assert_eq!(
        (&*query["resource"], &*query["scope"]),
        (&*resource, "mcp:tools")
    );
    let token = world.server.access_token("alice", &resource);
    world
        .server
        .answers(200, json!({"access_token": token, "token_type": "Bearer"}));
    let done = world.back(&mut browser, &begun).await;
    let page = browser.open(&done.goes_on()).await;
    assert!(page.text.contains("alice of"), "{}", page.text);
    assert_eq!(world.server.seen().pop().unwrap().1["resource"], resource);
    // A token for another audience is refused.
    let begun = world.begin(&mut Browser::new(), "/connect/up").await;
    let token = world.server.access_token("alice", "https://other.test");
    world
        .server
        .answers(200, json!({"access_token": token, "token_type": "Bearer"}));
    let page = world.back(&mut browser, &begun).await;
    assert!(
        page.text.contains("no cookie of this login"),
        "{}",
        page.text
    );
    let mut other = Browser::new();
    let begun = world.begin(&mut other, "/connect/up").await;
    let page = world.back(&mut other, &begun).await;
    assert!(page.text.contains("could not be verified"), "{}", page.text);
    world.gw.stop().await;
}

#[tokio::test]
async fn issuer_that_is_pairwise_alone_is_warned_of() {
    let world = World::start().await;
    let state = tempfile::tempdir().unwrap();
    let login = ("user_key", CLIENT);
    let setup = || before(&world.server.origin, login, &world.upstream, &state);
    let warnings = async || checked(setup()).await.1["warnings"].to_string();
    let both = json!(["public", "pairwise"]);
    world.server.publishes("subject_types_supported", both);
    let said = warnings().await;
    assert!(!said.contains("another subject"), "{said}");
    let alone = json!(["pairwise"]);
    world.server.publishes("subject_types_supported", alone);
    let said = warnings().await;
    assert!(
        said.contains("another subject") && said.contains("connect.login"),
        "{said}"
    );
    world.begin(&mut Browser::new(), "/connect").await;
    logged(&world.gw, "tells each client another subject").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn check_names_a_login_that_cannot_be_begun() {
    let world = World::start().await;
    let state = tempfile::tempdir().unwrap();
    let login = ("user_key", CLIENT);
    let setup = || before(&world.server.origin, login, &world.upstream, &state);
    let (_, found) = checked(setup()).await;
    let expected = json!({"issuer": world.server.origin, "cause": null});
    assert_eq!(found["logins"][0], expected);
    let clear = json!("http://10.1.2.3/auth");
    world.server.publishes("authorization_endpoint", clear);
    let (code, found) = checked(setup()).await;
    assert_eq!(code, Some(1));
    let cause = &found["logins"][0]["cause"];
    let text = cause["text"].as_str().unwrap();
    assert!(text.contains("authorization_endpoint"), "{cause}");
    world.gw.stop().await;
}
