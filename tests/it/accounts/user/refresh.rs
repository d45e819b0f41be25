//! Refreshes: once among all, and what their failures lead to.

use std::path::Path;
use std::time::Duration;

use drawbridge::database::{Database, DatabasePlace};
use serde_json::json;

use super::server::{ConsentServer, Mood};
use super::world::{Browser, World, asked, echo, path_in, tables, upstream_of};
use crate::accounts::world::{GuardedUpstream, Verdict, logged, token_requests};
use crate::harness::{Gateway, Setup, eventually, postgres};

/// Calls until the token that the upstream sees has changed `times`.
async fn refreshed(world: &World, times: usize) {
    let session = world.plain().await;
    eventually("a refresh", async || {
        echo(&session, "until").await;
        let mut tokens = world.tokens_of("until");
        tokens.dedup();
        (tokens.len() > times).then_some(())
    })
    .await;
}

/// Two gateways that share the database at `place` and the keys of their handles, with an account at the upstream, and its
/// authorization server.
async fn two_gateways(
    place: &DatabasePlace,
    state: &Path,
) -> (ConsentServer, GuardedUpstream, [Gateway; 2]) {
    let DatabasePlace::Postgres(url) = place else {
        panic!("a server");
    };
    let database = Database::connect(place).await.unwrap();
    database.migrate().await.unwrap();
    database.close().await;
    let server = ConsentServer::start().await;
    let upstream = upstream_of(&server).await;
    let start = async || {
        Setup::open()
            .url("up", &upstream.url(), "")
            .toml(&tables(state, url.expose(), ""))
            .toml("seal = [{ id = \"k1\", key = \"0123456789abcdefghijklmnopqrstuv\" }]")
            .start()
            .await
    };
    let gateways = [start().await, start().await];
    let text = Browser::of(&gateways[0]).connect("/connect/up").await;
    assert!(text.contains("is connected"), "{text}");
    (server, upstream, gateways)
}

#[tokio::test]
async fn token_is_refreshed_before_it_ends_and_the_session_goes_on() {
    let server = ConsentServer::start().await;
    server.lifetime(4);
    let world = World::with(&server, "").await;
    world.connect().await;
    refreshed(&world, 2).await;
    let forms = server.forms("refresh_token");
    assert!(
        forms
            .iter()
            .all(|form| form["resource"] == world.upstream.url())
    );
    // The upstream's session is that of the account, and not of one token.
    assert_eq!(world.upstream.count("\"initialize\""), 1);
    world.gw.stop().await;
}

// SPEC B-12
#[tokio::test]
async fn hundred_calls_at_the_end_of_a_token_make_one_refresh() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.set_mood(Mood::Slow(300));
    world.server.forgets_access_tokens();
    let calls = (0..100).map(|_| echo(&session, "at-the-end"));
    let said = futures_util::future::join_all(calls).await;
    assert!(said.iter().all(|said| said == "at-the-end"), "{said:?}");
    assert_eq!(world.server.forms("refresh_token").len(), 1);
    world.gw.stop().await;
}

// SPEC B-12
#[tokio::test]
async fn two_gateways_on_one_database_make_one_refresh() {
    let Some((_postgres, place)) = postgres::database().await else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let (server, _upstream, gateways) = two_gateways(&place, state.path()).await;
    let mut sessions = Vec::new();
    for gw in &gateways {
        let user = gw.anonymous();
        let session = user.open_as("/mcp/up", "2025-06-18", json!({})).await;
        eventually("the account in both", async || {
            (echo(&session, "before").await == "before").then_some(())
        })
        .await;
        sessions.push(session);
    }
    server.set_mood(Mood::Slow(300));
    server.forgets_access_tokens();
    let calls = (0..100).map(|number| echo(&sessions[number % 2], "at-the-end"));
    let said = futures_util::future::join_all(calls).await;
    assert!(said.iter().all(|said| said == "at-the-end"), "{said:?}");
    assert_eq!(server.forms("refresh_token").len(), 1);
    for gw in gateways {
        gw.stop().await;
    }
}

/// One task tells sessions of all changed accounts.
#[tokio::test]
async fn held_refresh_delays_no_news_of_another_account() {
    let (held, good) = (ConsentServer::start().await, ConsentServer::start().await);
    held.lifetime(0);
    held.set_mood(Mood::HoldsRefreshes);
    let (up, other) = (upstream_of(&held).await, upstream_of(&good).await);
    let state = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", state.path().join("test.db").display());
    let tables = tables(state.path(), &database, "");
    let gw = Setup::open()
        .url("up", &up.url(), "")
        .url("other", &other.url(), "")
        .toml(&format!(
            "{tables}[upstreams.other.auth]\nkind = \"user\"\n"
        ))
        .start()
        .await;
    let session = gw.anonymous().open("/mcp/other").await;
    assert_eq!(session.tools().await, ["connect_other"]);
    let mut listening = session.listen().await;
    for path in ["/connect/up", "/connect/other"] {
        let text = Browser::of(&gw).connect(path).await;
        assert!(text.contains("is connected"), "{text}");
    }
    // A token request is given up after ten seconds.
    let news = tokio::time::timeout(Duration::from_secs(5), listening.message());
    let news = news.await.expect("news without a refresh").unwrap();
    let method = news["method"].as_str().unwrap();
    assert!(method.ends_with("list_changed"), "{news}");
    gw.stop().await;
}

#[tokio::test]
async fn server_that_is_down_keeps_the_account() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.set_mood(Mood::Status(503));
    world.server.forgets_access_tokens();
    let said = echo(&session, "during").await;
    assert!(
        said.contains("does not answer") && !said.contains("/connect"),
        "{said}"
    );
    assert!(token_requests(&world.gw, "busy").await >= 1.0);
    world.server.set_mood(Mood::Good);
    eventually("the account goes on", async || {
        (echo(&session, "after").await == "after").then_some(())
    })
    .await;
    assert_eq!(world.server.asked().len(), 1, "nobody was asked again");
    world.gw.stop().await;
}

/// The server has rotated the refresh token, and the gateway has not heard of it.
#[tokio::test]
async fn lost_answer_asks_once_more_and_no_other_user() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.set_mood(Mood::Loses);
    world.server.forgets_access_tokens();
    let said = echo(&session, "lost").await;
    assert!(
        !said.contains("/connect"),
        "the grant may still be good: {said}"
    );
    world.server.set_mood(Mood::Good);
    let said = asked(&session, "asked").await;
    logged(&world.gw, "has ended an account").await;
    world.browser().connect(&path_in(&said)).await;
    assert_eq!(echo(&session, "after").await, "after");
    world.gw.stop().await;
}

#[tokio::test]
async fn revoked_grant_asks_its_user() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.forgets_all();
    let said = asked(&session, "asked").await;
    assert_eq!(world.server.forms("refresh_token").len(), 1);
    world.browser().connect(&path_in(&said)).await;
    assert_eq!(echo(&session, "after").await, "after");
    world.gw.stop().await;
}

#[tokio::test]
async fn forgotten_client_is_registered_again() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.set_mood(Mood::Error("invalid_client"));
    world.server.forgets_access_tokens();
    asked(&session, "asked").await;
    world.server.set_mood(Mood::Good);
    world.connect().await;
    assert_eq!(world.server.registered().len(), 2);
    let clients: Vec<_> = world
        .server
        .asked()
        .iter()
        .map(|asked| asked["client_id"].clone())
        .collect();
    assert_ne!(clients[0], clients[1]);
    assert_eq!(echo(&session, "after").await, "after");
    world.gw.stop().await;
}

// The server may have refused the client by a passing fault.
#[tokio::test]
async fn account_outlasts_a_refusal_of_its_client_to_somebody_else() {
    let world = World::start().await;
    let session = world.in_use().await;
    world.server.set_mood(Mood::Error("invalid_client"));
    let text = world.browser().connect("/connect/up").await;
    assert!(!text.contains("is connected"), "{text}");
    world.server.set_mood(Mood::Good);
    world.server.forgets_access_tokens();
    assert_eq!(echo(&session, "after").await, "after");
    assert_eq!(world.server.forms("refresh_token").len(), 1);
    world.gw.stop().await;
}

#[tokio::test]
async fn token_that_ends_without_a_refresh_token_asks_again() {
    let server = ConsentServer::start().await;
    server.gives_no_refresh_tokens();
    server.lifetime(2);
    let world = World::with(&server, "").await;
    world.connect().await;
    let session = world.plain().await;
    asked(&session, "asked").await;
    assert!(server.forms("refresh_token").is_empty());
    world.gw.stop().await;
}

// SPEC B-10
#[tokio::test]
async fn upstream_that_changes_its_server_has_its_users_sent_there() {
    let (first, second) = (ConsentServer::start().await, ConsentServer::start().await);
    first.gives_no_refresh_tokens();
    let world = World::with(&first, "").await;
    let session = world.in_use().await;
    let knows = second.clone();
    let is_known = move |token: Option<&str>| token.is_some_and(|token| knows.knows(token));
    world
        .upstream
        .judges(move |token, _| Verdict::of(is_known(token)));
    world.upstream.publishes(json!({
        "resource": world.upstream.url(), "authorization_servers": [second.origin],
    }));
    let said = asked(&session, "asked").await;
    world.browser().connect(&path_in(&said)).await;
    assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
    assert_eq!(second.registered().len(), 1);
    assert_eq!(echo(&session, "after").await, "after");
    world.gw.stop().await;
}

/// A 401 to a token that was just refreshed: the call is not repeated for ever, and its user is asked.
#[tokio::test]
async fn fresh_token_that_is_refused_asks_its_user() {
    let world = World::start().await;
    let session = world.in_use().await;
    world
        .upstream
        .judges(|_, body| Verdict::of(!body.contains("refused")));
    let said = asked(&session, "refused").await;
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(world.server.forms("refresh_token").len(), 1);
    let limit = Duration::from_secs(10);
    assert!(tokio::time::timeout(limit, world.gw.stop()).await.is_ok());
}

// SPEC B-11
#[tokio::test]
async fn call_that_needs_more_scopes_asks_for_them() {
    let world = World::start().await;
    world.connect().await;
    let knows = world.server.clone();
    world.upstream.judges(move |token, body| {
        let wide = token.is_some_and(|token| knows.scopes_of(token).contains("notes:write"));
        Verdict::unless(body.contains("write") && !wide, "notes:write")
    });
    let session = world.plain().await;
    assert_eq!(echo(&session, "read").await, "read");
    let said = echo(&session, "write").await;
    assert!(said.contains("/connect/up?for="), "{said}");
    // Other calls go on with the present grant.
    assert_eq!(echo(&session, "read").await, "read");
    world.browser().connect(&path_in(&said)).await;
    let scope = &world.server.asked()[1]["scope"];
    assert_eq!(scope, "notes:read offline_access notes:write");
    assert_eq!(echo(&session, "write").await, "write");
    world.gw.stop().await;
}

// SPEC B-11
#[tokio::test]
async fn scope_that_was_not_granted_is_requested_again() {
    let world = World::start().await;
    world.server.withholds("notes:write");
    world.connect().await;
    world.upstream.judges(|_, body| {
        if body.contains("write") {
            return Verdict::unless(true, "notes:write");
        }
        Verdict::unless(body.contains("delete"), "notes:delete")
    });
    let session = world.plain().await;
    for text in ["write", "delete"] {
        let said = echo(&session, text).await;
        assert!(said.contains("/connect/up?for="), "{said}");
        world.browser().connect(&path_in(&said)).await;
    }
    let scope = &world.server.asked()[2]["scope"];
    assert_eq!(scope, "notes:read offline_access notes:write notes:delete");
    world.gw.stop().await;
}

// As behind a load balancer. SPEC B-11
#[tokio::test]
async fn page_of_another_replica_asks_for_the_scopes_that_a_call_lacked() {
    let Some((_postgres, place)) = postgres::database().await else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let (server, upstream, [here, there]) = two_gateways(&place, state.path()).await;
    let knows = server.clone();
    upstream.judges(move |token, body| {
        let wide = token.is_some_and(|token| knows.scopes_of(token).contains("notes:write"));
        Verdict::unless(body.contains("write") && !wide, "notes:write")
    });
    let user = here.anonymous();
    let session = user.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let path = path_in(&asked(&session, "write").await);
    let page = Browser::of(&there).open(&path).await.text;
    assert!(page.contains("notes:write"), "{page}");
    Browser::of(&there).connect(&path).await;
    let scope = &server.asked()[1]["scope"];
    assert_eq!(scope, "notes:read offline_access notes:write");
    eventually("the wider account in both", async || {
        (echo(&session, "write").await == "write").then_some(())
    })
    .await;
    for gw in [here, there] {
        gw.stop().await;
    }
}

// SPEC B-11
#[tokio::test]
async fn list_that_needs_more_scopes_leads_to_them() {
    let world = World::start().await;
    world.connect().await;
    let knows = world.server.clone();
    world.upstream.judges(move |token, body| {
        let wide = token.is_some_and(|token| knows.scopes_of(token).contains("notes:write"));
        Verdict::unless(body.contains("tools/list") && !wide, "notes:write")
    });
    let session = world.plain().await;
    assert_eq!(session.tools().await, ["connect_up"]);
    let said = session.call("connect_up", json!({})).await.unwrap();
    let said = crate::harness::session::text_of(&said).to_owned();
    assert!(said.contains("/connect/up?for="), "{said}");
    world.browser().connect(&path_in(&said)).await;
    let scope = &world.server.asked()[1]["scope"];
    assert_eq!(scope, "notes:read offline_access notes:write");
    eventually("the whole list", async || {
        let tools = session.tools().await;
        tools.contains(&"echo".to_owned()).then_some(())
    })
    .await;
    world.gw.stop().await;
}
