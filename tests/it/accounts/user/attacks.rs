//! Attacks on authorizations: each changes nothing, and is in the log.

use rstest::rstest;
use serde_json::json;
use url::Url;

use super::server::{ConsentServer, first_client};
use super::world::{World, echo, with_query};
use crate::accounts::world::{Verdict, logged};

/// The page that a callback leads to, and whether the account is there.
async fn outcome(world: &World, page: &str) -> bool {
    let shown = world.browser().open("/connect/up").await.text;
    let is_connected = !shown.contains("not connected");
    assert_eq!(
        is_connected,
        page.contains("is connected"),
        "{page}\n{shown}"
    );
    is_connected
}

// SPEC B-13
#[tokio::test]
async fn replayed_state_is_refused() {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let callback = browser.agree(url).await;
    assert!(browser.open(&callback).await.text.contains("is connected"));
    let page = browser.open(&callback).await;
    assert_eq!(page.status, 403, "{}", page.text);
    assert_eq!(world.server.forms("authorization_code").len(), 1);
    logged(&world.gw, "callback of an authorization was refused").await;
    world.gw.stop().await;
}

// SPEC B-13
#[rstest]
#[case::missing(None)]
#[case::unknown(Some("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"))]
#[case::empty(Some(""))]
#[tokio::test]
async fn state_that_nobody_sent_is_refused(#[case] state: Option<&str>) {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let callback = with_query(&browser.agree(url).await, "state", state);
    let page = browser.open(&callback).await;
    assert_eq!(page.status, 403, "{}", page.text);
    assert!(!outcome(&world, &page.text).await);
    assert!(world.server.forms("authorization_code").is_empty());
    world.gw.stop().await;
}

/// The victim's browser brings what the attacker began: the attacker's account would become the victim's.
#[tokio::test]
async fn state_of_another_browser_is_refused() {
    let world = World::start().await;
    let mut attacker = world.browser();
    let url = attacker.begin("/connect/up").await;
    let callback = attacker.agree(url).await;
    let mut victim = world.browser();
    victim.open("/connect").await;
    for browser in [&mut victim, &mut world.browser()] {
        let page = browser.open(&callback).await;
        assert_eq!(page.status, 403, "{}", page.text);
        assert!(!outcome(&world, &page.text).await);
    }
    assert!(world.server.forms("authorization_code").is_empty());
    world.gw.stop().await;
}

/// A browser without a cookie of these pages, which has seen the `state` of another.
#[tokio::test]
async fn browser_without_a_cookie_uses_up_no_state() {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let callback = browser.agree(url).await;
    let page = world.browser().open(&callback).await;
    assert_eq!(page.status, 403, "{}", page.text);
    let page = browser.open(&callback).await;
    assert!(page.text.contains("is connected"), "{}", page.text);
    world.gw.stop().await;
}

/// A code of another authorization, put into the victim's callback: the verifier does not fit.
#[tokio::test]
async fn injected_code_is_not_redeemed() {
    let world = World::start().await;
    let mut attacker = world.browser();
    let url = attacker.begin("/connect/up").await;
    let stolen = attacker.agree(url).await;
    let code = Url::parse(&format!("http://x{stolen}")).unwrap();
    let code = code
        .query_pairs()
        .find(|(name, _)| name == "code")
        .unwrap()
        .1
        .into_owned();
    let mut victim = world.browser();
    let url = victim.begin("/connect/up").await;
    let callback = with_query(&victim.agree(url).await, "code", Some(&code));
    let page = victim.open(&callback).await;
    assert_eq!(page.status, 502, "{}", page.text);
    assert!(!outcome(&world, &page.text).await);
    world.gw.stop().await;
}

// SPEC B-06
#[rstest]
#[case::another(Some("https://evil.example"))]
#[case::missing(None)]
#[tokio::test]
async fn answer_of_a_mixed_up_issuer_is_refused(#[case] iss: Option<&str>) {
    let server = ConsentServer::start().await;
    server.names(iss);
    let world = World::with(&server, "").await;
    let page = world.browser().connect("/connect/up").await;
    assert!(
        page.contains("thrown away") && !page.contains("evil"),
        "{page}"
    );
    assert!(!outcome(&world, &page).await);
    assert!(server.forms("authorization_code").is_empty());
    world.gw.stop().await;
}

#[tokio::test]
async fn callback_redirects_nowhere_and_escapes_what_it_shows() {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let state = url
        .query_pairs()
        .find(|(name, _)| name == "state")
        .unwrap()
        .1
        .into_owned();
    let callback = browser.agree(url.clone()).await;
    let (place, _) = callback.split_once('?').unwrap();
    let query = format!(
        "{place}?state={state}&error=%3Cscript%3E&error_description=%3Cb%3E&error_uri=https://evil.example\
         &iss={}",
        world.server.origin
    );
    let page = browser.open(&query).await;
    assert_eq!(page.status, 403);
    assert!(
        !page.text.contains("<script>") && !page.text.contains("<b>"),
        "{}",
        page.text
    );
    assert!(!page.text.contains("evil.example"), "{}", page.text);
    world.gw.stop().await;
}

/// Has the upstream name `other` from now on, and the gateway know it.
async fn moves(world: &World, other: &ConsentServer) {
    world.upstream.publishes(json!({
        "resource": world.upstream.url(), "authorization_servers": [other.origin],
    }));
    let knows = other.clone();
    let judge = move |token: Option<&str>, _: &str| {
        Verdict::of(token.is_some_and(|token| knows.knows(token)))
    };
    world.upstream.judges(judge);
    // The refused token has the server looked up again.
    let session = world.plain().await;
    echo(&session, "x").await;
}

/// A server that was asked sends the browser on to another one, whose answers have no name in them: the code of that one
/// would be redeemed at the first.
// RFC 9700 §4.4
#[tokio::test]
async fn code_of_a_mixed_up_server_is_not_redeemed() {
    let (honest, evil) = (ConsentServer::start().await, ConsentServer::start().await);
    for server in [&honest, &evil] {
        server.names(None);
        server.publishes(
            "authorization_response_iss_parameter_supported",
            json!(false),
        );
    }
    let world = World::with(&honest, "").await;
    world.connect().await;
    moves(&world, &evil).await;
    let mut browser = world.browser();
    let asked = browser.begin("/connect/up").await;
    assert!(asked.as_str().starts_with(&evil.origin), "{asked}");
    let client = honest.asked().remove(0);
    let mut url = Url::parse(&format!("{}/authorize", honest.origin)).unwrap();
    for (name, value) in asked.query_pairs() {
        let is_of_client = ["client_id", "redirect_uri"].contains(&&*name);
        let value = if is_of_client {
            &client[&*name]
        } else {
            &*value
        };
        url.query_pairs_mut().append_pair(&name, value);
    }
    let callback = browser.agree(url).await;
    let page = browser.open(&callback).await;
    assert_eq!(page.status, 403, "{}", page.text);
    assert!(page.text.contains("thrown away"), "{}", page.text);
    assert!(evil.forms("authorization_code").is_empty());
    logged(&world.gw, "callback of an authorization was refused").await;
    world.gw.stop().await;
}

// SPEC B-10
#[tokio::test]
async fn client_of_one_server_is_never_shown_to_another() {
    let world = World::start().await;
    world.connect().await;
    let other = ConsentServer::start().await;
    moves(&world, &other).await;
    world.connect().await;
    assert_eq!(other.asked()[0]["client_id"], first_client(&other));
    let first = first_client(&world.server);
    let forms = other.forms("authorization_code");
    assert!(
        forms.iter().all(|form| form["client_id"] != first),
        "{forms:?}"
    );
    assert!(other.forms("refresh_token").is_empty());
    world.gw.stop().await;
}
