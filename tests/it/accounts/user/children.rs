//! Accounts of users at an upstream that is started by `command`: their tokens are in the environment of their children.

use std::path::Path;

use serde_json::{Value, json};

use super::server::ConsentServer;
use super::world::{Browser, path_in, tables};
use crate::accounts::watch::checked;
use crate::harness::session::{Session, text_of};
use crate::harness::{Gateway, Setup, eventually};

/// A file of a gateway whose user has accounts of `server` in the environment of children.
fn setup(server: &ConsentServer, state: &Path) -> Setup {
    let database = format!("sqlite:{}", state.join("test.db").display());
    let keys = format!(
        "env = \"TRACKER_TOKEN\"\nissuer = \"{}\"\nresource = \"https://api.test/v1\"",
        server.origin
    );
    Setup::open()
        .stub("up", &[])
        .toml(&tables(state, &database, &keys))
}

async fn gateway(server: &ConsentServer, state: &Path) -> Gateway {
    setup(server, state).start().await
}

/// What the child has in the variable of its account.
async fn token(session: &Session) -> String {
    session.text("env", json!({"name": "TRACKER_TOKEN"})).await
}

async fn connected(gw: &Gateway) -> Session {
    let text = Browser::of(gw).connect("/connect/up").await;
    assert!(text.contains("is connected"), "{text}");
    gw.anonymous().open("/mcp/up").await
}

/// The link of a call without an account.
async fn asked(session: &Session) -> String {
    let result = session.call("pid", json!({})).await.unwrap();
    path_in(text_of(&result))
}

#[tokio::test]
async fn token_of_the_user_is_refreshed_for_another_child_and_asked_for_once_it_has_ended() {
    let server = ConsentServer::start().await;
    server.lifetime(2);
    let state = tempfile::tempdir().unwrap();
    let gw = gateway(&server, state.path()).await;
    let plain = gw
        .anonymous()
        .open_as("/mcp/up", "2025-06-18", json!({}))
        .await;
    let link = asked(&plain).await;
    assert!(link.starts_with("/connect/up?"), "{link}");

    let session = connected(&gw).await;
    let asked_for = server.asked().pop().unwrap();
    assert_eq!(asked_for["resource"], "https://api.test/v1");
    let (first, pid) = (token(&session).await, session.text("pid", json!({})).await);
    assert!(server.knows(&first));
    let second = eventually("another token", async || {
        let now = token(&session).await;
        (now != first).then_some(now)
    })
    .await;
    assert!(server.knows(&second));
    assert_ne!(session.text("pid", json!({})).await, pid);

    server.forgets_all();
    eventually("a question", async || {
        let result = plain.call("pid", json!({})).await.unwrap();
        text_of(&result).contains("/connect/up?").then_some(())
    })
    .await;
    gw.stop().await;
}

// A token of 20 s is refreshed up to 3.6 s, and at least 0.4 s, before its end.
#[tokio::test]
async fn newer_token_replaces_no_child() {
    let server = ConsentServer::start().await;
    server.lifetime(20);
    let state = tempfile::tempdir().unwrap();
    let gw = gateway(&server, state.path()).await;
    let session = connected(&gw).await;
    let before = (token(&session).await, session.text("pid", json!({})).await);
    eventually("a refresh ahead", async || {
        session.text("pid", json!({})).await;
        (!server.forms("refresh_token").is_empty()).then_some(())
    })
    .await;
    let after = (token(&session).await, session.text("pid", json!({})).await);
    assert_eq!(after, before);
    gw.stop().await;
}

#[tokio::test]
async fn check_finds_out_where_users_of_children_would_be_asked() {
    let server = ConsentServer::start().await;
    let state = tempfile::tempdir().unwrap();
    let (code, found) = checked(setup(&server, state.path())).await;
    assert_eq!(code, Some(0), "{found}");
    let upstream = &found["upstreams"][0];
    assert_eq!(upstream["account"]["cause"], Value::Null);
    // No caller is here whose token a child could have.
    assert_eq!(upstream["state"], "connecting");
    assert_eq!(server.looked_up(), 1);
    assert!(server.registered().is_empty() && server.asked().is_empty());

    server.publishes("code_challenge_methods_supported", Value::Null);
    let (code, found) = checked(setup(&server, state.path())).await;
    let cause = &found["upstreams"][0]["account"]["cause"];
    assert_eq!(code, Some(1), "{found}");
    assert!(cause["text"].as_str().unwrap().contains("S256"), "{cause}");
}
