//! Attacks on logins of the connect pages, by name. Spec: RFC 6749 §10.12; RFC 9700 §4; `OpenID` Connect Core §3.1.3.7

use rstest::rstest;
use serde_json::{Value, json};

use super::path_in;
use super::world::{Begun, Browser, KEY, Page, World};
use crate::accounts::world::logged;
use crate::harness::session::text_of;

const PERSON: &str = "__Host-drawbridge-person";

/// Asserts that the answer of the issuer to `begun` logs no user in at `browser`.
async fn assert_nobody(world: &World, browser: &mut Browser, begun: &Begun) {
    let page = world.back(browser, begun).await;
    assert!(page.text.contains("Not logged in"), "{}", page.text);
    assert!(
        !browser.cookies.contains_key(PERSON),
        "{:?}",
        browser.cookies
    );
    let page = browser.open(&world.url("/connect")).await;
    assert!(page.text.contains("Log in"), "{}", page.text);
}

#[tokio::test]
async fn login_csrf_logs_nobody_in() {
    let world = World::start().await;
    let mut mallory = Browser::new();
    let begun = world.begin(&mut mallory, "/connect").await;
    world.server.logs_in("mallory", &begun.nonce, &json!({}));
    // Her callback in another browser, also in one that has begun a login of its own.
    let mut alice = Browser::new();
    assert_nobody(&world, &mut alice, &begun).await;
    world.begin(&mut alice, "/connect").await;
    assert_nobody(&world, &mut alice, &begun).await;
    assert!(world.server.seen().is_empty(), "her code is not redeemed");
    world.gw.stop().await;
}

#[tokio::test]
async fn replayed_foreign_and_missing_states_log_nobody_in() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect").await;
    let before = browser.clone();
    world.server.logs_in("alice", &begun.nonce, &json!({}));
    world.back(&mut browser, &begun).await;
    assert!(browser.cookies.contains_key(PERSON));
    assert_eq!(
        browser.cookies.len(),
        2,
        "that of the login is gone: {:?}",
        browser.cookies
    );
    // The same answer again, with the cookie that was kept from before.
    assert_nobody(&world, &mut before.clone(), &begun).await;
    assert_eq!(world.server.seen().len(), 1, "the code is redeemed once");
    let origin = &*world.server.origin;
    let other = "x".repeat(43);
    for query in [
        vec![("code", "c"), ("iss", origin)],
        vec![("state", ""), ("code", "c"), ("iss", origin)],
        vec![("state", &*other), ("code", "c"), ("iss", origin)],
        vec![
            ("state", &*begun.state),
            ("state", &*begun.state),
            ("code", "c"),
            ("iss", origin),
        ],
    ] {
        let page = before.clone().open(&world.callback(&query)).await;
        assert!(
            page.text.contains("Not logged in"),
            "{query:?}: {}",
            page.text
        );
    }
    assert_eq!(world.server.seen().len(), 1);
    world.gw.stop().await;
}

#[tokio::test]
async fn fixated_cookies_log_nobody_in() {
    let world = World::start().await;
    let mut mallory = Browser::new();
    let hers = world.begin(&mut mallory, "/connect").await;
    let mut alice = Browser::new();
    let own = world.begin(&mut alice, "/connect").await;
    // Mallory's cookie under the name that alice's state asks for.
    let of = |browser: &Browser, state: &str| {
        let name = format!("__Host-drawbridge-login-{}", &state[..8]);
        (name.clone(), browser.cookies[&name].clone())
    };
    let (name, _) = of(&alice, &own.state);
    let (_, value) = of(&mallory, &hers.state);
    alice.cookies.insert(name, value);
    world.server.logs_in("mallory", &hers.nonce, &json!({}));
    assert_nobody(&world, &mut alice, &own).await;
    // What is no sealed cookie of ours is no person.
    alice.cookies.insert(PERSON.to_owned(), "QUJD".to_owned());
    let page = alice.open(&world.url("/connect")).await;
    assert!(page.text.contains("Log in"), "{}", page.text);
    // Nor is the sealed cookie of a form.
    let form = alice.cookies["__Host-drawbridge"].clone();
    alice.cookies.insert(PERSON.to_owned(), form);
    let page = alice.open(&world.url("/connect")).await;
    assert!(page.text.contains("Log in"), "{}", page.text);
    world.gw.stop().await;
}

#[rstest]
#[case::nonce(json!({"nonce": "another"}), "token_nonce")]
#[case::audience(json!({"aud": "another"}), "token_audience")]
#[case::party(json!({"aud": ["drawbridge", "another"], "azp": "another"}), "token_party")]
#[case::issuer(json!({"iss": "https://evil.test"}), "token_issuer")]
#[case::expiry(json!({"exp": 1_800_000}), "token_expired")]
#[tokio::test]
async fn id_token_of_another_login_logs_nobody_in(#[case] claims: Value, #[case] reason: &str) {
    let world = World::start().await;
    let mut browser = Browser::new();
    let begun = world.begin(&mut browser, "/connect").await;
    world.server.logs_in("alice", &begun.nonce, &claims);
    assert_nobody(&world, &mut browser, &begun).await;
    logged(&world.gw, reason).await;
    world.gw.stop().await;
}

// Spec: RFC 9207 §2.4
#[tokio::test]
async fn mixed_up_issuer_gets_no_code() {
    let world = World::start().await;
    for issuer in [Some("https://evil.test"), None] {
        let mut browser = Browser::new();
        let begun = world.begin(&mut browser, "/connect").await;
        world.server.logs_in("alice", &begun.nonce, &json!({}));
        let mut query = vec![("state", &*begun.state), ("code", "c")];
        query.extend(issuer.map(|issuer| ("iss", issuer)));
        let page = browser.open(&world.callback(&query)).await;
        assert!(page.text.contains("Not logged in"), "{}", page.text);
    }
    assert!(world.server.seen().is_empty());
    logged(&world.gw, "the answer names").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn form_from_elsewhere_begins_no_login() {
    let world = World::start().await;
    let page = Browser::new().open(&world.url("/connect")).await;
    // The form of one browser, sent by another.
    let refused = Browser::new().submit(&page, &[("action", "login")]).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(!refused.text.contains("/auth?"), "{}", refused.text);
    world.gw.stop().await;
}

#[tokio::test]
async fn aimed_link_changes_nothing_and_says_so() {
    let world = World::start().await;
    let mallory = world
        .caller("mallory")
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let refused = mallory.call("echo", json!({"text": "x"})).await.unwrap();
    let link = path_in(text_of(&refused));
    let mut alice = Browser::new();
    let page = world.log_in(&mut alice, "/connect/up", "alice").await;
    let foreign = alice.open(&world.url(&link)).await;
    assert_eq!(foreign.status, 403);
    assert!(foreign.text.contains("another person"), "{}", foreign.text);
    // Her own form, sent to mallory's link.
    let aimed = Page {
        url: foreign.url.clone(),
        ..page
    };
    let refused = alice
        .submit(&aimed, &[("action", "connect"), ("key", KEY)])
        .await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    let still = mallory.call("echo", json!({"text": "x"})).await.unwrap();
    assert_eq!(still["isError"], true, "{still}");
    assert_eq!(
        alice
            .open(&world.url("/connect"))
            .await
            .text
            .matches("not connected")
            .count(),
        1
    );
    logged(&world.gw, "another person than it was made for").await;
    let records = world.gw.log_records();
    let mut records = records.iter().map(ToString::to_string);
    let warned = records.find(|record| record.contains("another person than it was made for"));
    let warned = warned.expect("a record of the log");
    for part in ["opened_by", "made_for", "login_claim", "token_claim"] {
        assert!(warned.contains(part), "{warned}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn form_of_one_person_does_not_act_for_the_next() {
    let world = World::start().await;
    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, "/connect/up", "mallory").await;
    browser.cookies.remove(PERSON);
    world.log_in(&mut browser, "/connect/up", "alice").await;
    let refused = browser
        .submit(&page, &[("action", "connect"), ("key", KEY)])
        .await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    // Without a login no form acts at all.
    browser.cookies.remove(PERSON);
    let refused = browser.submit(&page, &[("action", "disconnect")]).await;
    assert!(!refused.text.contains("Disconnected"), "{}", refused.text);
    world.gw.stop().await;
}

// SPEC B-02: the pairwise subject of the client is another one than that of the person's programs.
#[tokio::test]
async fn pairwise_subject_is_another_person_and_the_log_names_the_claims() {
    let world = World::start().await;
    let session = world
        .caller("alice")
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let mut browser = Browser::new();
    let page = world
        .log_in(&mut browser, &path_in(text_of(&refused)), "pairwise-7")
        .await;
    assert_eq!(page.status, 403, "{}", page.text);
    logged(&world.gw, "login_claim").await;
    world.gw.stop().await;
}
