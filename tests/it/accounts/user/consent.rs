//! From the first call to its result: link, page, consent, token.

use rstest::rstest;
use serde_json::json;

use super::server::{ConsentServer, Mood, first_client};
use super::world::{Browser, World, echo, path_in, setup};
use crate::accounts::world::{AuthServer, GuardedUpstream, Verdict, logged, tells_none};
use crate::harness::session::text_of;
use crate::harness::{eventually, peers};

// SPEC B-04, B-05, B-09, B-12, B-14
#[tokio::test]
async fn first_call_leads_to_consent_and_the_next_ones_run() {
    let world = World::start().await;
    let session = world.plain().await;
    let refused = session
        .call("echo", json!({"text": "early"}))
        .await
        .unwrap();
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(world.tokens_of("early").is_empty());
    let path = path_in(text_of(&refused));
    let mut browser = world.browser();
    let page = browser.open(&path).await.text;
    let host = world.server.origin.trim_start_matches("http://");
    for part in [host, "harness", "notes:read", "offline_access"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(world.server.asked().is_empty() && world.server.registered().is_empty());
    let text = browser.connect(&path).await;
    assert!(text.contains("up is connected"), "{text}");
    for text in ["one", "two"] {
        assert_eq!(echo(&session, text).await, text);
    }
    let tokens = world.tokens_of("one");
    assert_eq!(tokens, world.tokens_of("two"));
    assert_eq!(world.server.registered()[0]["application_type"], "web");
    let asked = &world.server.asked()[0];
    assert_eq!(asked["code_challenge_method"], "S256");
    assert_eq!(asked["resource"], world.upstream.url());
    assert_eq!(asked["scope"], "notes:read offline_access");
    assert_eq!(world.server.forms("authorization_code").len(), 1);
    let secrets = world.server.secrets();
    assert!(secrets.len() > 3, "{secrets:?}");
    world.files_hold_none(&secrets);
    tells_none(&world.gw, &secrets).await;
    world.gw.stop().await;
}

// As after a restart of a server that keeps its clients in memory.
#[tokio::test]
async fn registration_that_its_server_has_forgotten_is_made_again() {
    let world = World::start().await;
    let registered = || world.server.registered().len();
    // The server finds out when the code is redeemed.
    world.server.set_mood(Mood::Error("invalid_client"));
    let text = world.browser().connect("/connect/up").await;
    assert!(!text.contains("is connected"), "{text}");
    world.server.set_mood(Mood::Good);
    // This user does not come back, and the server still knows the gateway.
    for _ in 0..2 {
        world.browser().begin("/connect/up").await;
        assert_eq!(registered(), 2);
    }
    // The server shows the browser an error.
    world.server.set_mood(Mood::Error("invalid_client"));
    let url = world.browser().begin("/connect/up").await;
    assert_eq!(registered(), 3);
    assert!(url.as_str().contains("client-3-of"), "{url}");
    // The server refuses its newest client too: it answers every unknown code with `invalid_client`.
    world.browser().begin("/connect/up").await;
    assert_eq!(registered(), 3);
    world.server.set_mood(Mood::Good);
    world.connect().await;
    assert_eq!(registered(), 3);
    world.gw.stop().await;
}

#[tokio::test]
async fn waiting_call_goes_on_when_its_user_has_agreed() {
    let world = World::start().await;
    let session = world.gw.anonymous().open("/mcp/up").await;
    let (_, exchange) = session.start_call("echo", json!({"text": "waited"})).await;
    let mut stream = exchange.stream();
    let question = stream.message().await.unwrap();
    assert_eq!(question["params"]["mode"], "url", "{question}");
    let url = question["params"]["url"].as_str().unwrap().to_owned();
    session.answer(&question, json!({"action": "accept"})).await;
    world.browser().connect(&path_in(&url)).await;
    let reply = loop {
        let message = stream.message().await.expect("a reply");
        if message.get("method").is_none() {
            break message;
        }
    };
    assert_eq!(text_of(&reply["result"]), "waited", "{reply}");
    world.gw.stop().await;
}

// Spec: OpenID Connect Core 1.0 §11
#[rstest]
#[case::openid(Some("public"), Some("consent"))]
#[case::oauth_alone(None, None)]
#[tokio::test]
async fn openid_server_is_told_to_ask_for_offline_access(
    #[case] subjects: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let world = World::start().await;
    let subjects = subjects.map(|kind| json!([kind])).unwrap_or_default();
    world.server.publishes("subject_types_supported", subjects);
    world.connect().await;
    let asked = &world.server.asked()[0];
    assert_eq!(asked.get("prompt").map(String::as_str), expected);
    assert_eq!(asked["scope"], "notes:read offline_access");
    world.gw.stop().await;
}

// Spec: OpenID Connect Registration 1.0 §2
#[tokio::test]
async fn native_client_is_registered_where_a_web_client_is_refused() {
    let world = World::start().await;
    world.server.refuses_web_clients();
    world.connect().await;
    let registered = world.server.registered();
    assert_eq!(registered.len(), 1);
    assert_eq!(registered[0]["application_type"], "native");
    assert_eq!(echo(&world.plain().await, "runs").await, "runs");
    world.gw.stop().await;
}

#[tokio::test]
async fn registration_is_made_once_and_used_again() {
    let world = World::start().await;
    world.connect().await;
    world.connect().await;
    assert_eq!(world.server.registered().len(), 1);
    assert_eq!(world.server.asked().len(), 2);
    world.gw.stop().await;
}

#[tokio::test]
async fn configured_client_is_used_instead_of_a_registration() {
    let keys = "client_id = \"drawbridge\"\nclient_secret = \"configured-hunter2\"\nscopes = [\"notes:write\"]";
    let world = World::with(&ConsentServer::start().await, keys).await;
    world.connect().await;
    assert!(world.server.registered().is_empty());
    assert_eq!(world.server.asked()[0]["client_id"], "drawbridge");
    assert_eq!(
        world.server.asked()[0]["scope"],
        "notes:write offline_access"
    );
    let form = &world.server.forms("authorization_code")[0];
    assert_eq!(form["client_secret"], "configured-hunter2");
    world.gw.stop().await;
}

// SPEC B-04
#[rstest]
#[case::no_pkce("code_challenge_methods_supported", json!(null), "does not list S256")]
#[case::plain_pkce("code_challenge_methods_supported", json!(["plain"]), "does not list S256")]
#[case::no_endpoint("authorization_endpoint", json!(null), "authorization_endpoint")]
#[case::script("authorization_endpoint", json!("javascript:alert(1)"), "authorization_endpoint")]
#[case::clear_endpoint("authorization_endpoint", json!("http://as.example/authorize"), "authorization_endpoint")]
#[tokio::test]
async fn server_that_cannot_be_trusted_with_a_code_is_not_asked(
    #[case] member: &'static str,
    #[case] value: serde_json::Value,
    #[case] cause: &str,
) {
    let world = World::start().await;
    world.server.publishes(member, value);
    let page = world.browser().open("/connect/up").await.text;
    assert!(page.contains("No account can be connected now"), "{page}");
    assert!(!page.contains("javascript:"), "{page}");
    logged(&world.gw, cause).await;
    assert!(world.server.registered().is_empty());
    world.gw.stop().await;
}

#[tokio::test]
async fn search_that_failed_is_not_made_for_the_next_page() {
    let world = World::start().await;
    world
        .server
        .publishes("issuer", json!("https://evil.example"));
    for _ in 0..3 {
        let page = world.browser().open("/connect/up").await.text;
        assert!(page.contains("No account can be connected now"), "{page}");
    }
    assert_eq!(world.server.looked_up(), 1);
    world.gw.stop().await;
}

#[tokio::test]
async fn server_without_registration_names_the_remedy() {
    let world = World::start().await;
    world.server.publishes("registration_endpoint", json!(null));
    let page = world.browser().submit("/connect/up", "connect").await;
    assert_eq!(page.status, 502, "{}", page.text);
    logged(&world.gw, "redirect_uris").await;
    logged(&world.gw, "/connect/<upstream>/callback").await;
    world.gw.stop().await;
}

/// The scopes of the authorization requests so far.
fn scopes_asked(world: &World) -> Vec<String> {
    let asked = world.server.asked().into_iter();
    asked.map(|query| query["scope"].clone()).collect()
}

// SPEC B-11. What a server lists it may refuse to a user: Keycloak without the role `offline_access`, once the code is
// redeemed; or to a client: with `invalid_scope` in the browser.
#[rstest]
#[case::to_the_client("invalid_scope")]
#[case::to_the_user("not_allowed")]
#[tokio::test]
async fn refused_offline_access_is_left_out_the_next_time(#[case] code: &'static str) {
    let world = World::start().await;
    world.server.refuses_offline(code);
    let text = world.browser().connect("/connect/up").await;
    for part in ["Not connected", code, "asks without it now"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    logged(&world.gw, "leaves out `offline_access`").await;
    let why = match code {
        "not_allowed" => "need the role `offline_access`",
        _ => "offline_access is not of this client",
    };
    logged(&world.gw, why).await;
    let page = world.browser().open("/connect/up").await.text;
    assert!(
        page.contains("notes:read") && !page.contains("offline_access"),
        "{page}"
    );
    world.connect().await;
    assert_eq!(
        scopes_asked(&world),
        ["notes:read offline_access", "notes:read"]
    );
    assert_eq!(echo(&world.plain().await, "runs").await, "runs");
    world.gw.stop().await;
}

// RFC 7591 §2
#[rstest]
#[case::with_offline_access("notes:read offline_access", "asks without it now")]
#[case::without("notes:read", "the gateway says so now")]
#[tokio::test]
async fn refused_scopes_are_named_in_the_next_registration(
    #[case] listed: &str,
    #[case] said: &str,
) {
    let world = World::start().await;
    let scopes: Vec<&str> = listed.split(' ').collect();
    world.server.publishes("scopes_supported", json!(scopes));
    world.server.wants_named_scopes(201);
    let text = world.browser().connect("/connect/up").await;
    for part in ["Not connected", "invalid_scope", said] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The second time with the registration of the first.
    for _ in 0..2 {
        world.connect().await;
        let registered = world.server.registered();
        assert_eq!(registered.len(), 2);
        assert_eq!(registered[0].get("scope"), None);
        assert_eq!(registered[1]["scope"], listed);
    }
    assert_eq!(echo(&world.plain().await, "runs").await, "runs");
    world.gw.stop().await;
}

// Some servers show it on a page of their own, and send no browser back.
#[tokio::test]
async fn user_can_say_that_the_server_refused_the_scopes() {
    const BUTTON: &str = "value=\"refused\"";
    let world = World::start().await;
    world.server.wants_named_scopes(201);
    let mut browser = world.browser();
    let page = browser.open("/connect/up").await.text;
    assert!(!page.contains(BUTTON), "{page}");
    browser.begin("/connect/up").await;
    let page = browser.open("/connect/up").await.text;
    assert!(page.contains(BUTTON), "{page}");
    let url = browser.begin_by("/connect/up", "refused").await;
    logged(&world.gw, "user says that the authorization server refused").await;
    let callback = browser.agree(url).await;
    let text = browser.open(&callback).await.text;
    assert!(text.contains("is connected"), "{text}");
    let registered = world.server.registered();
    assert_eq!(registered.len(), 2);
    assert_eq!(registered[0].get("scope"), None);
    assert_eq!(registered[1]["scope"], "notes:read offline_access");
    assert_eq!(scopes_asked(&world), ["notes:read"]);
    // The next attempt would not differ.
    browser.begin("/connect/up").await;
    let page = browser.open("/connect/up").await.text;
    assert!(!page.contains(BUTTON), "{page}");
    world.gw.stop().await;
}

#[tokio::test]
async fn registration_without_scopes_is_the_fallback() {
    let world = World::start().await;
    world.server.publishes("scopes_supported", json!(null));
    world.server.wants_named_scopes(400);
    for _ in 0..3 {
        let text = world.browser().connect("/connect/up").await;
        assert!(text.contains("invalid_scope"), "{text}");
    }
    logged(&world.gw, "does not register the gateway with the scopes").await;
    assert_eq!(world.server.registered().len(), 1);
    let client = first_client(&world.server);
    let asked = world.server.asked();
    assert!(asked.iter().all(|query| query["client_id"] == client));
    world.gw.stop().await;
}

// The next account would end with the login at the server, in place of one that lasts.
#[tokio::test]
async fn account_that_lasts_is_never_connected_again_without_offline_access() {
    let world = World::start().await;
    world.connect().await;
    world.server.refuses_offline("invalid_scope");
    for _ in 0..2 {
        let text = world.browser().connect("/connect/up").await;
        assert!(text.contains("Not connected"), "{text}");
        assert!(!text.contains("asks without it"), "{text}");
    }
    assert_eq!(scopes_asked(&world), ["notes:read offline_access"; 3]);
    assert_eq!(echo(&world.plain().await, "runs").await, "runs");
    world.gw.stop().await;
}

#[tokio::test]
async fn configured_offline_access_is_never_left_out() {
    let keys = "client_id = \"drawbridge\"\nscopes = [\"offline_access\"]";
    let world = World::with(&ConsentServer::start().await, keys).await;
    world.server.refuses_offline("not_allowed");
    for _ in 0..2 {
        let text = world.browser().connect("/connect/up").await;
        assert!(text.contains("Not connected"), "{text}");
        assert!(!text.contains("asks without it"), "{text}");
    }
    assert_eq!(scopes_asked(&world), ["offline_access"; 2]);
    logged(&world.gw, "need the role `offline_access`").await;
    world.gw.stop().await;
}

#[tokio::test]
async fn grant_without_refresh_token_says_when_it_asks_again() {
    let world = World::start().await;
    world.server.gives_no_refresh_tokens();
    let text = world.browser().connect("/connect/up").await;
    assert!(text.contains("asked again in 10 minutes"), "{text}");
    logged(&world.gw, "gave no refresh token").await;
    world.gw.stop().await;
}

// RFC 7009
#[tokio::test]
async fn disconnected_account_is_revoked_at_its_server() {
    let world = World::start().await;
    world.connect().await;
    let session = world.plain().await;
    assert_eq!(echo(&session, "one").await, "one");
    let page = world.browser().submit("/connect/up", "disconnect").await;
    assert!(page.text.contains("Disconnected"), "{}", page.text);
    let said = echo(&session, "two").await;
    assert!(said.contains("/connect/up?for="), "{said}");
    let revoked = eventually("both tokens are revoked", async || {
        let revoked = world.server.revoked();
        (revoked.len() == 2).then_some(revoked)
    })
    .await;
    let mut hints: Vec<_> = revoked
        .iter()
        .map(|form| &*form["token_type_hint"])
        .collect();
    hints.sort_unstable();
    assert_eq!(hints, ["access_token", "refresh_token"]);
    let client = first_client(&world.server);
    assert!(revoked.iter().all(|form| form["client_id"] == client));
    world.gw.stop().await;
}

#[tokio::test]
async fn denied_consent_changes_nothing() {
    let world = World::start().await;
    let mut browser = world.browser();
    let url = browser.begin("/connect/up").await;
    let callback = browser.agree(url).await;
    let denied = super::world::with_query(&callback, "code", None) + "&error=access_denied";
    let page = browser.open(&denied).await;
    assert!(page.text.contains("said no"), "{}", page.text);
    assert!(world.server.forms("authorization_code").is_empty());
    world.gw.stop().await;
}

/// The real `oidc-provider`, with dynamic registration and rotated refresh tokens.
#[tokio::test]
async fn real_server_gives_a_token_and_the_next_one() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/server.mjs");
    // A token that is refreshed during the test.
    let env = [("ACCESS_TTL", "5")];
    let server = peers::serve(&peers::node(), &[&script], &env).await;
    let issuer = server.first_line.clone();
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &["--era", "dual"]).await;
    upstream.publishes(json!({
        "resource": upstream.url(), "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
    }));
    let (expected, resource) = (issuer.clone(), upstream.url());
    upstream.judges(move |token, _| Verdict::of(is_for(token, &expected, &resource)));
    let state = tempfile::tempdir().unwrap();
    let gw = setup(&upstream, state.path(), "").start().await;
    let user = gw.anonymous();
    let session = user.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let said = echo(&session, "x").await;
    let text = Browser::of(&gw).connect(&path_in(&said)).await;
    assert!(text.contains("is connected"), "{text}");
    let tokens_seen = || {
        let seen = upstream.seen();
        let tokens = seen
            .into_iter()
            .filter(|(_, body)| body.contains("\"call\""));
        let tokens: std::collections::BTreeSet<_> = tokens.filter_map(|(token, _)| token).collect();
        tokens.len()
    };
    eventually("a third token", async || {
        assert_eq!(echo(&session, "call").await, "call");
        (tokens_seen() >= 3).then_some(())
    })
    .await;
    gw.stop().await;
}

/// Whether a JWT has this issuer and audience, and has not ended.
pub(super) fn is_for(token: Option<&str>, issuer: &str, audience: &str) -> bool {
    use base64::Engine as _;
    let claims = token.and_then(|token| {
        let claims = base64::prelude::BASE64_URL_SAFE_NO_PAD
            .decode(token.split('.').nth(1)?)
            .ok()?;
        serde_json::from_slice::<serde_json::Value>(&claims).ok()
    });
    let now = drawbridge::clock::Clock::now(&drawbridge::clock::SystemClock).as_secs();
    claims.is_some_and(|claims| {
        claims["iss"] == issuer
            && claims["aud"] == audience
            && claims["exp"].as_u64().is_some_and(|exp| now < exp)
    })
}
