//! Accounts that persons agree to (kind `user`), where they log in first.

use http::header::LOCATION;
use serde_json::json;

use super::path_in;
use super::world::{Browser, Page, World};
use crate::accounts::user::server::ConsentServer;
use crate::harness::session::text_of;

const PERSON: &str = "__Host-drawbridge-person";

/// Begins an authorization on `page`, and agrees to it at once: the callback that the browser is sent to.
async fn agreed(browser: &mut Browser, page: &Page) -> String {
    let page = browser.submit(page, &[("action", "connect")]).await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let answer = client.build().unwrap().get(page.goes_on()).send();
    let answer = answer.await.unwrap();
    answer.headers()[LOCATION].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn consent_is_of_the_person_who_began_and_serves_their_calls_alone() {
    let consents = ConsentServer::start().await;
    let world = World::of_users(&consents).await;
    let open = async |name: &str| {
        let caller = world.caller(name);
        caller.open_as("/mcp/up", "2025-06-18", json!({})).await
    };
    let (alice, bob) = (open("alice").await, open("bob").await);
    let refused = alice.call("echo", json!({"text": "early"})).await.unwrap();
    let link = path_in(text_of(&refused));
    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, &link, "alice").await;

    // Another person in the same browser: the account would become theirs.
    let callback = agreed(&mut browser, &page).await;
    let mut other = browser.clone();
    other.cookies.remove(PERSON);
    world.log_in(&mut other, "/connect", "bob").await;
    let refused = other.open(&callback).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("another person"), "{}", refused.text);
    let refused = browser.open(&callback).await;
    assert!(refused.text.contains("Nothing waits"), "{}", refused.text);
    assert!(consents.forms("authorization_code").is_empty());

    // Without a login nothing is used up.
    let page = browser.open(&world.url(&link)).await;
    let callback = agreed(&mut browser, &page).await;
    let mut out = browser.clone();
    out.cookies.remove(PERSON);
    let refused = out.open(&callback).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("not logged in"), "{}", refused.text);
    let done = browser.open(&callback).await;
    assert!(done.text.contains("up is connected"), "{}", done.text);

    assert_eq!(alice.text("echo", json!({"text": "late"})).await, "late");
    let refused = bob.call("echo", json!({"text": "other"})).await.unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(world.upstream.count("other"), 0);
    world.gw.stop().await;
}
