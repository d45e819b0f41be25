//! Scopes, audiences and issuers: for which endpoint a token is good.

use serde_json::json;

use super::super::samples::endpoint;
use super::super::*;
use super::{ISSUER, World, assert_invalid};

// SPEC A-11
#[tokio::test]
async fn a_token_without_the_scope_of_the_endpoint_gets_403_and_keeps_what_it_has() {
    let world = World::with(|config| {
        config.tool_scopes.push(config::ToolScope {
            tools: vec!["admin_*".to_owned()],
            upstreams: Vec::new(),
            scopes: vec!["mcp:admin".to_owned()],
        });
    });
    let claims = json!({"scope": "unrelated mcp:admin"});
    let denied = world.present_changed(json!({}), claims).await;
    let denied = denied.expect_err("a scope is missing");
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    let challenge = denied.challenge.expect("a challenge");
    let challenge = challenge.to_str().expect("ASCII");
    assert!(
        challenge.contains("error=\"insufficient_scope\""),
        "{challenge}"
    );
    assert!(
        challenge.ends_with("scope=\"mcp:tools mcp:admin\""),
        "{challenge}"
    );
}

// SPEC A-13
#[tokio::test]
async fn a_broader_scope_satisfies_what_needs_a_narrower_one() {
    let world = World::with(|config| {
        config.scope_implies.push(config::ScopeImplies {
            scope: "mcp:admin".to_owned(),
            implies: vec!["mcp:tools".to_owned()],
        });
    });
    let claims = json!({"scope": "mcp:admin"});
    let principal = world.present_changed(json!({}), claims).await;
    let principal = principal.expect("the narrower scope is implied");
    assert_eq!(principal.scopes(), ["mcp:admin", "mcp:tools"]);
}

// SPEC A-20, G-01
#[tokio::test]
async fn a_token_for_one_endpoint_is_refused_on_another() {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    world
        .present(&token)
        .await
        .expect("good on its own endpoint");
    let mut other = endpoint();
    other.name = "git".into();
    other.resource = "https://gw.test/mcp/git".to_owned();
    assert_invalid(world.present_on(&other, &token).await, "token_audience");
}

#[tokio::test]
async fn configured_audiences_are_accepted_where_they_are_configured() {
    let world = World::with(|config| config.issuers[0].audiences.push("everywhere".to_owned()));
    let token = world.changed(&json!({}), &json!({"aud": "everywhere"}));
    world
        .present(&token)
        .await
        .expect("an audience of the issuer");
    let token = world.changed(&json!({}), &json!({"aud": "here"}));
    let mut here = endpoint();
    here.audiences.push("here".to_owned());
    world
        .present_on(&here, &token)
        .await
        .expect("an audience of the endpoint");
    assert_invalid(World::new().present(&token).await, "token_audience");
}

// SPEC A-21
#[tokio::test]
async fn an_endpoint_refuses_issuers_that_it_does_not_name() {
    let world = World::new();
    let token = world.signer.mint(ISSUER);
    let mut other = endpoint();
    other.issuers.push("https://other.test".to_owned());
    assert_invalid(world.present_on(&other, &token).await, "token_issuer");
}
