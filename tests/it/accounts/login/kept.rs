//! `kind = "id_jag"`: a login that is kept, and asserted to the authorization servers of upstreams. Spec: MCP,
//! enterprise-managed authorization.

use std::collections::BTreeMap;
use std::path::Path;

use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::asserted::{
    AT_SERVER, AssertedWorld, EXCHANGE, ID_JAG, REFRESH, asserted, ended, greeting,
};
use super::path_in;
use super::world::{Begun, Browser, Form, SECRET};
use crate::accounts::personal::claims;
use crate::accounts::watch::{audited, records};
use crate::accounts::world::{logged, tells_none};
use crate::harness::eventually;

fn files_hold(dir: &Path, text: &str) -> bool {
    let holds = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    std::fs::read_dir(dir)
        .unwrap()
        .any(|entry| holds(&entry.unwrap().path()))
}

#[tokio::test]
async fn one_login_is_asserted_to_all_upstreams_that_want_it() {
    let world = AssertedWorld::start().await;
    let session = world.session("alice", "up").await;
    assert_eq!(session.tools().await, ["connect_up"]);
    let link = path_in(&greeting(&session, "alice").await);

    let mut browser = Browser::new();
    let page = world.page(&mut browser, &link, "alice").await;
    for text in [
        "harness",
        "offline_access",
        &world.idp.origin,
        "disconnects all",
    ] {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    assert_eq!(
        (&*query["scope"], &*query["prompt"]),
        ("openid offline_access", "consent")
    );
    world.answers_login(&begun, "alice", (&json!({}), Some(REFRESH)));
    let done = world.back(&mut browser, &begun).await;
    assert!(done.text.contains("up is connected"), "{}", done.text);
    let connected = audited(&world.gw, 0, "account_connected").await;
    assert_eq!(connected["program"], "harness");
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    let two = world.session("alice", "two").await;
    assert_eq!(greeting(&two, "alice").await, "I am alice");

    let forms = world.forms(EXCHANGE);
    assert_eq!(forms.len(), 2, "{forms:?}");
    for (form, upstream) in forms.iter().zip(&world.upstreams) {
        assert_eq!(form["audience"], world.server.origin);
        assert_eq!(form["resource"], upstream.url());
        assert_eq!(form["requested_token_type"], ID_JAG);
        assert_eq!(
            form["subject_token_type"],
            "urn:ietf:params:oauth:token-type:id_token"
        );
    }
    let page = browser.open(&world.url("/connect")).await;
    assert_eq!(page.text.matches(": connected").count(), 2, "{}", page.text);
    // Another person has nothing of it.
    let other = world.session("bob", "up").await;
    assert_eq!(other.tools().await, ["connect_up"]);
    assert!(greeting(&other, "bob").await.contains("/connect/up?for="));

    let secrets = [
        SECRET,
        AT_SERVER,
        REFRESH,
        "assertion-hunter2",
        "opaque-hunter2",
        "for-alice",
    ];
    tells_none(&world.gw, &secrets.map(str::to_owned)).await;
    for secret in [REFRESH, &*forms[0]["subject_token"]] {
        assert!(!files_hold(world.state.path(), secret), "{secret}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn id_token_that_has_ended_is_refreshed_for_an_assertion() {
    let world = AssertedWorld::start().await;
    let idp = world.idp.clone();
    world.idp.answers_grant("refresh_token", move |form| {
        assert_eq!(form["refresh_token"], REFRESH);
        assert!(!form.contains_key("resource"), "{form:?}");
        let next = idp.id_token("alice", "", &json!({"jti": "the next one"}));
        let answer = json!({
            "access_token": "opaque-hunter2", "token_type": "Bearer", "id_token": next,
        });
        (200, answer)
    });
    world.connect("alice", (&ended(), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    let exchanged = &world.forms(EXCHANGE)[0]["subject_token"];
    assert_eq!(claims(exchanged).unwrap()["jti"], "the next one");
    // Held: neither the provider nor the server is asked again.
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    assert_eq!(world.forms("refresh_token").len(), 1);
    assert_eq!(world.server.issued().len(), 1);
    world.gw.stop().await;
}

#[tokio::test]
async fn failed_refresh_of_a_login_is_logged_as_the_identity_providers() {
    let world = AssertedWorld::start().await;
    let refused = |_: &Form| (401, json!({"error": "invalid_client"}));
    world.idp.answers_grant("refresh_token", refused);
    let session = world.session("alice", "up").await;
    world.connect("alice", (&ended(), Some(REFRESH))).await;
    let told = format!("{:?}", session.call("greet_alice", json!({})).await);
    logged(&world.gw, "of [connect] login").await;
    let log = world.gw.log().join("\n");
    assert!(!log.contains("of [upstreams."), "{told}: {log}");
    world.gw.stop().await;
}

#[tokio::test]
async fn login_that_its_issuer_has_ended_is_asked_for_again() {
    let world = AssertedWorld::start().await;
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    let before = session.tools().await;
    assert_eq!(before, ["greet_alice"]);
    // The exchange of an ID token of a session that was ended there.
    let refused = |_: &Form| (400, json!({"error": "invalid_grant"}));
    world.idp.answers_grant(EXCHANGE, refused);
    world.idp.answers_grant("refresh_token", refused);
    let two = world.session("alice", "two").await;
    let asked = greeting(&two, "alice").await;
    assert!(asked.contains("/connect/two?for="), "{asked}");
    // What was listed to her stays, and no call goes on with a token of the ended login.
    eventually("the question", async || {
        let asked = greeting(&session, "alice").await;
        asked.contains("/connect/up?for=").then_some(())
    })
    .await;
    assert_eq!(world.session("alice", "up").await.tools().await, before);

    world.idp.answers_grant(EXCHANGE, asserted);
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    assert_eq!(greeting(&two, "alice").await, "I am alice");
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    world.gw.stop().await;
}

#[tokio::test]
async fn token_of_an_upstream_outlives_the_last_id_token() {
    let world = AssertedWorld::start().await;
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    let refused = |_: &Form| (400, json!({"error": "invalid_grant"}));
    world.idp.answers_grant(EXCHANGE, refused);
    world.idp.answers_grant("refresh_token", |_| {
        (
            200,
            json!({"access_token": "opaque-hunter2", "token_type": "Bearer"}),
        )
    });
    let two = world.session("alice", "two").await;
    let asked = greeting(&two, "alice").await;
    assert!(asked.contains("/connect/two?for="), "{asked}");
    let ended = audited(&world.gw, 0, "account_revoked").await;
    assert_eq!(ended["reason"], "no_id_token");
    assert_eq!(greeting(&session, "alice").await, "I am alice");
    world.gw.stop().await;
}

#[tokio::test]
async fn provider_that_is_down_or_forbids_it_ends_no_login() {
    let world = AssertedWorld::start().await;
    let (session, two) = (
        world.session("alice", "up").await,
        world.session("alice", "two").await,
    );
    world.idp.answers_grant(EXCHANGE, |_| (503, json!({})));
    world.connect("alice", (&json!({}), None)).await;
    let call = async || {
        let failed = session.call("greet_alice", json!({})).await;
        format!("{failed:?}")
    };
    let told = call().await;
    assert!(
        told.contains("the identity provider does not answer"),
        "{told}"
    );
    assert!(!told.contains("/connect/"), "{told}");
    world.idp.answers_grant(EXCHANGE, asserted);
    eventually("the provider", async || {
        call().await.contains("I am alice").then_some(())
    })
    .await;
    world
        .idp
        .answers_grant(EXCHANGE, |_| (400, json!({"error": "access_denied"})));
    let told = format!("{:?}", two.call("greet_alice", json!({})).await);
    assert!(told.contains("gives the gateway no assertion"), "{told}");
    logged(&world.gw, "identity assertions (ID-JAG)").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn login_of_another_person_is_not_kept_but_revoked() {
    let world = AssertedWorld::start().await;
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    world.answers_login(&begun, "bob", (&json!({}), Some(REFRESH)));
    let done = world.back(&mut browser, &begun).await;
    assert!(done.text.contains("another person"), "{}", done.text);
    for subject in ["alice", "bob"] {
        let session = world.session(subject, "up").await;
        assert_eq!(session.tools().await, ["connect_up"], "{subject}");
    }
    // The browser is still alice's.
    let page = browser.open(&world.url("/connect")).await;
    assert!(page.text.contains("(alice)"), "{}", page.text);
    is_revoked(&world).await;
    world.gw.stop().await;
}

#[rstest]
#[case::nonce(&json!({"nonce": "another"}))]
#[case::client(&json!({"aud": "another"}))]
#[tokio::test]
async fn login_that_is_refused_is_revoked(#[case] changes: &Value) {
    let world = AssertedWorld::start().await;
    let said = world.connect("alice", (changes, Some(REFRESH))).await;
    assert!(said.contains("could not be verified"), "{said}");
    is_revoked(&world).await;
    let session = world.session("alice", "up").await;
    assert_eq!(session.tools().await, ["connect_up"]);
    world.gw.stop().await;
}

#[tokio::test]
async fn login_without_an_id_token_is_revoked() {
    let world = AssertedWorld::start().await;
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    let answer = json!({
        "access_token": "opaque-hunter2", "token_type": "Bearer", "refresh_token": REFRESH,
    });
    world.idp.answers(200, answer);
    let done = world.back(&mut browser, &begun).await;
    assert!(done.text.contains("could not be verified"), "{}", done.text);
    is_revoked(&world).await;
    world.gw.stop().await;
}

/// The refresh token, and it alone, is revoked at the identity provider.
async fn is_revoked(world: &AssertedWorld) {
    eventually("a revocation", async || {
        (world.idp.revoked() == [REFRESH]).then_some(())
    })
    .await;
}

// Servers may refuse it to a client or a user, listed or not.
#[tokio::test]
async fn login_whose_issuer_refuses_offline_access_goes_on_without_it() {
    let world = AssertedWorld::start().await;
    let mut browser = Browser::new();
    let mut page = world.page(&mut browser, "/connect/up", "alice").await;
    for (scope, said) in [
        ("openid offline_access", "asks without it now"),
        ("openid", "did not log you in"),
    ] {
        let is_named = page.text.contains("offline_access");
        assert_eq!(is_named, scope != "openid", "{}", page.text);
        let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
        let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
        assert_eq!(query["scope"], scope);
        let refused = [("state", &*begun.state), ("error", "invalid_scope")];
        let url = url::Url::parse_with_params(&world.url("/connect/callback/login"), refused);
        let told = browser.open(url.unwrap().as_str()).await.text;
        assert!(told.contains(said), "{told}");
        page = browser.open(&world.url("/connect/up")).await;
    }
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    world.answers_login(&begun, "alice", (&json!({}), None));
    let done = world.back(&mut browser, &begun).await;
    assert!(done.text.contains("up is connected"), "{}", done.text);
    world.gw.stop().await;
}

// Some issuers show it on a page of their own, and send no browser back.
#[tokio::test]
async fn user_can_say_that_the_issuer_refused_offline_access() {
    const BUTTON: &str = "value=\"refused\"";
    let world = AssertedWorld::start().await;
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    assert!(!page.text.contains(BUTTON), "{}", page.text);
    Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    let page = browser.open(&world.url("/connect/up")).await;
    assert!(page.text.contains(BUTTON), "{}", page.text);
    let begun = Begun::of(&browser.submit(&page, &[("action", "refused")]).await);
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    assert_eq!(query["scope"], "openid");
    logged(&world.gw, "user says that the issuer refused").await;
    let page = browser.open(&world.url("/connect/up")).await;
    assert!(!page.text.contains(BUTTON), "{}", page.text);
    world.gw.stop().await;
}

#[tokio::test]
async fn page_of_a_login_names_what_it_asks_for() {
    let world = AssertedWorld::start().await;
    world.idp.publishes("scopes_supported", json!(["openid"]));
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/up", "alice").await;
    assert!(!page.text.contains("offline_access"), "{}", page.text);
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    assert_eq!(query["scope"], "openid");
    world.gw.stop().await;
}

#[tokio::test]
async fn login_without_another_id_token_is_revoked() {
    let world = AssertedWorld::start().await;
    world.idp.answers_grant("refresh_token", |_| {
        let answer = json!({
            "access_token": "opaque-hunter2", "token_type": "Bearer", "refresh_token": "rotated",
        });
        (200, answer)
    });
    world.connect("alice", (&ended(), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    let asked = greeting(&session, "alice").await;
    assert!(asked.contains("/connect/up?for="), "{asked}");
    eventually("a revocation", async || {
        (world.idp.revoked() == ["rotated"]).then_some(())
    })
    .await;
    let ended = audited(&world.gw, 0, "account_revoked").await;
    assert_eq!(ended["reason"], "no_id_token");
    let refreshed = |one: &&Value| one["event"] == "account_refreshed";
    assert_eq!(records(&world.gw).iter().find(refreshed), None);
    world.gw.stop().await;
}

#[tokio::test]
async fn refreshed_id_token_of_another_person_is_not_used() {
    let world = AssertedWorld::start().await;
    let idp = world.idp.clone();
    world.idp.answers_grant("refresh_token", move |_| {
        let next = idp.id_token("bob", "", &json!({}));
        let answer = json!({
            "access_token": "opaque-hunter2", "token_type": "Bearer", "id_token": next,
        });
        (200, answer)
    });
    world.connect("alice", (&ended(), Some(REFRESH))).await;
    let session = world.session("alice", "up").await;
    let asked = greeting(&session, "alice").await;
    assert!(asked.contains("/connect/up?for="), "{asked}");
    assert!(world.forms(EXCHANGE).is_empty());
    logged(&world.gw, "no ID token of the same person").await;
    is_revoked(&world).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn disconnecting_one_upstream_ends_the_login_of_all() {
    let world = AssertedWorld::start().await;
    world.connect("alice", (&json!({}), Some(REFRESH))).await;
    let (one, two) = (
        world.session("alice", "up").await,
        world.session("alice", "two").await,
    );
    for session in [&one, &two] {
        assert_eq!(session.tools().await, ["greet_alice"]);
    }
    let mut browser = Browser::new();
    let page = world.page(&mut browser, "/connect/two", "alice").await;
    let gone = browser.submit(&page, &[("action", "disconnect")]).await;
    assert_eq!(gone.status, StatusCode::OK.as_u16());
    for (session, name) in [(&one, "up"), (&two, "two")] {
        eventually("the end", async || {
            (session.tools().await == [format!("connect_{name}")]).then_some(())
        })
        .await;
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn page_says_when_it_will_ask_again_without_a_refresh_token() {
    let world = AssertedWorld::start().await;
    let text = world.connect("alice", (&json!({}), None)).await;
    assert!(
        text.contains("no refresh token") && text.contains("in 10 minutes"),
        "{text}"
    );
    logged(&world.gw, "the identity provider gave no refresh token").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn login_by_access_token_keeps_its_id_token() {
    let world = AssertedWorld::with("token = \"access\"").await;
    let resource = world.url("/mcp");
    let mut browser = Browser::new();
    let page = browser.open(&world.url("/connect/up")).await;
    let begun = Begun::of(&browser.submit(&page, &[("action", "login")]).await);
    let token = world.idp.access_token("alice", &resource);
    let answer = json!({"access_token": token, "token_type": "Bearer"});
    world.idp.answers(200, answer);
    let done = world.back(&mut browser, &begun).await;
    let page = browser.open(&done.goes_on()).await;
    for scope in ["mcp:tools", "openid", "offline_access"] {
        let named = format!("<code>{scope}</code>");
        assert!(page.text.contains(&named), "{scope}: {}", page.text);
    }
    let begun = Begun::of(&browser.submit(&page, &[("action", "connect")]).await);
    let query: BTreeMap<_, _> = begun.url.query_pairs().into_owned().collect();
    assert_eq!(query["scope"], "mcp:tools openid offline_access");
    // The issuer knows her by another subject where it names her to this client.
    let answer = json!({
        "access_token": token, "token_type": "Bearer", "refresh_token": REFRESH,
        "id_token": world.idp.id_token("pairwise-alice", &begun.nonce, &json!({})),
    });
    world.idp.answers(200, answer);
    let done = world.back(&mut browser, &begun).await;
    assert!(done.text.contains("up is connected"), "{}", done.text);
    let session = world.session("alice", "up").await;
    assert_eq!(session.tools().await, ["greet_pairwise"]);
    world.gw.stop().await;
}
