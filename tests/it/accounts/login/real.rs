//! Logins at a real server (oidc-provider), whose tokens callers have too.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::path_in;
use super::world::{Browser, KEY, asserted_before, before};
use crate::accounts::personal::claims;
use crate::accounts::world::{AuthServer, GuardedUpstream, Verdict, tells_none};
use crate::harness::Gateway;
use crate::harness::http::Actor;
use crate::harness::peers::{self, Service};
use crate::harness::session::text_of;

const SECRET: &str = "a login's secret: %&+";
/// Where the tests' own client has its answers sent.
const END: &str = "http://127.0.0.1/end";

struct RealWorld {
    gw: Gateway,
    issuer: String,
    upstream: GuardedUpstream,
    _server: Service,
    _state: TempDir,
}

impl RealWorld {
    /// `subjects` is `public` or `pairwise`; `login` has further members.
    async fn start(subjects: &str, login: &str) -> Self {
        let script = peers::script("as/server.mjs");
        let env = [("SUBJECTS", subjects)];
        let server = peers::serve(&peers::node(), &[&script], &env).await;
        let issuer = server.first_line.clone();
        let unused = AuthServer::start().await;
        let upstream = GuardedUpstream::start(&unused, &[]).await;
        upstream.judges(|token, _| Verdict::of(token == Some(KEY)));
        let state = tempfile::tempdir().unwrap();
        let login = format!("client_id = \"login\"\nclient_secret = {SECRET:?}\n{login}");
        let gw = before(&issuer, ("user_key", &login), &upstream, &state)
            .start()
            .await;
        Self {
            gw,
            issuer,
            upstream,
            _server: server,
            _state: state,
        }
    }

    /// A program of `user`, with a token of the real server.
    async fn caller(&self, user: &str) -> Actor {
        let resource = format!("{}/mcp/up", self.gw.url);
        let verifier = "v".repeat(43);
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let url = url::Url::parse_with_params(
            &format!("{}/auth", self.issuer),
            [
                ("client_id", "program"),
                ("response_type", "code"),
                ("redirect_uri", END),
                ("scope", "mcp:tools"),
                ("resource", &resource),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        );
        let end = Browser::new().walk(url.unwrap().as_str(), user, END).await;
        let end = url::Url::parse(&end).unwrap();
        let code = end.query_pairs().find(|(name, _)| name == "code");
        let code = code
            .unwrap_or_else(|| panic!("no code: {end}"))
            .1
            .into_owned();
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "authorization_code")
            .append_pair("client_id", "program")
            .append_pair("code", &code)
            .append_pair("code_verifier", &verifier)
            .append_pair("redirect_uri", END)
            .append_pair("resource", &resource)
            .finish();
        let request = reqwest::Client::new().post(format!("{}/token", self.issuer));
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form);
        let answer = request.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        self.gw.bearer(
            answer["access_token"]
                .as_str()
                .unwrap_or_else(|| panic!("{answer}")),
        )
    }

    /// Logs `user` in at the page at `path`; returns the page after that.
    async fn log_in(&self, browser: &mut Browser, path: &str, user: &str) -> super::world::Page {
        let page = browser.open(&format!("{}{path}", self.gw.url)).await;
        let departs = browser
            .submit(&page, &[("action", "login")])
            .await
            .goes_on();
        let callback = format!("{}/connect/callback/login", self.gw.url);
        let answer = browser.walk(&departs, user, &callback).await;
        let done = browser.open(&answer).await;
        let next = done.goes_on();
        browser.open(&next).await
    }
}

/// The link that a call without an account ends with.
async fn link(caller: Actor) -> String {
    let session = caller.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    path_in(text_of(&refused))
}

async fn two_users(login: &str) {
    if !peers::are_installed() {
        return;
    }
    let world = RealWorld::start("public", login).await;
    let (alice, bob) = (world.caller("alice").await, world.caller("bob").await);
    let session = alice.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let link_of_alice = path_in(text_of(&refused));
    let link_of_bob = link(bob).await;

    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, &link_of_alice, "alice").await;
    assert_eq!(page.status, 200, "{}", page.text);
    let foreign = browser
        .open(&format!("{}{link_of_bob}", world.gw.url))
        .await;
    assert_eq!(foreign.status, 403, "{}", foreign.text);
    let done = browser
        .submit(&page, &[("action", "connect"), ("key", KEY)])
        .await;
    assert!(done.text.contains("Connected"), "{}", done.text);
    assert_eq!(session.text("echo", json!({"text": "late"})).await, "late");

    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, "/connect", "bob").await;
    assert!(page.text.contains("not connected"), "{}", page.text);
    assert!(world.upstream.count("late") > 0);
    tells_none(&world.gw, &[SECRET.to_owned(), KEY.to_owned()]).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn two_users_of_a_real_server_have_an_account_each() {
    two_users("").await;
}

#[tokio::test]
async fn access_tokens_of_a_real_server_say_who_it_is() {
    two_users("token = \"access\"").await;
}

#[tokio::test]
async fn id_token_of_a_pairwise_server_is_another_person() {
    if !peers::are_installed() {
        return;
    }
    let world = RealWorld::start("pairwise", "").await;
    let link = link(world.caller("alice").await).await;
    let page = world.log_in(&mut Browser::new(), &link, "alice").await;
    assert_eq!(page.status, 403, "{}", page.text);
    world.gw.stop().await;
}

// Two real servers: the login server, and the authorization server of the upstream, which trusts the first.
#[tokio::test]
async fn kept_login_at_a_real_server_is_asserted_to_another() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/server.mjs");
    let at_server = [("JAG_CLIENT", "with-secret")];
    let idp = peers::serve(&peers::node(), &[&script], &at_server).await;
    let trusted = [("TRUSTED_ISSUER", &*idp.first_line)];
    let server = peers::serve(&peers::node(), &[&script], &trusted).await;
    let issuer = server.first_line.clone();
    let unused = AuthServer::start().await;
    let upstream = GuardedUpstream::start(&unused, &[]).await;
    let (of, resource) = (issuer.clone(), upstream.url());
    upstream.judges(move |token, _| {
        let claims = token.and_then(claims);
        Verdict::of(claims.is_some_and(|claims| {
            claims["iss"] == of.as_str()
                && claims["aud"] == resource.as_str()
                && claims["sub"] == "alice"
        }))
    });
    upstream.publishes(json!({
        "resource": upstream.url(), "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
    }));
    let state = tempfile::tempdir().unwrap();
    let login = format!("client_id = \"login\"\nclient_secret = {SECRET:?}\n");
    let gw = asserted_before(&idp.first_line, &login, (&upstream, &issuer), &state);
    let world = RealWorld {
        gw: gw.start().await,
        issuer: idp.first_line.clone(),
        upstream,
        _server: idp,
        _state: state,
    };
    let alice = world.caller("alice").await;
    let session = alice.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let link = path_in(text_of(&refused));
    let mut browser = Browser::new();
    let page = world.log_in(&mut browser, &link, "alice").await;
    let departs = browser.submit(&page, &[("action", "connect")]).await;
    let callback = format!("{}/connect/callback/login", world.gw.url);
    let answer = browser.walk(&departs.goes_on(), "alice", &callback).await;
    let done = browser.open(&answer).await;
    assert!(done.text.contains("up is connected"), "{}", done.text);
    assert!(!done.text.contains("no refresh token"), "{}", done.text);
    assert_eq!(session.text("echo", json!({"text": "late"})).await, "late");
    tells_none(&world.gw, &[SECRET.to_owned()]).await;
    world.gw.stop().await;
}

/// In a real browser; `CONNECT_PICTURES` names a directory for pictures of the pages.
#[tokio::test]
async fn chromium_walks_from_the_link_through_the_login_to_the_account() {
    if !peers::are_installed() {
        return;
    }
    let Some(chromium) = peers::chromium() else {
        return;
    };
    let world = RealWorld::start("public", "").await;
    let alice = world.caller("alice").await;
    let session = alice.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let link = format!("{}{}", world.gw.url, path_in(text_of(&refused)));
    let pictures = std::env::var("CONNECT_PICTURES").unwrap_or_default();
    let options = json!({"link": link, "user": "alice", "key": KEY, "pictures": pictures});
    let (script, options) = (peers::script("clients/login.mjs"), options.to_string());
    let steps = [
        "the_link_shows_who_asks_and_goes_nowhere",
        "the_form_leads_through_the_login_and_back",
        "the_pasted_key_connects",
        "the_policy_of_the_pages_refused_nothing",
    ];
    let env = [("CHROMIUM", chromium)];
    peers::tour_with(&peers::node(), &[&script, &options], &env, &steps).await;
    assert_eq!(session.text("echo", json!({"text": "late"})).await, "late");
    world.gw.stop().await;
}
