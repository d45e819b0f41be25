//! Methods that go the wrong way, and methods whose capability the upstream did not declare.
//! Spec: SPEC L-04, C-21, C-50.

use serde_json::{Value, json};

use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup};
use crate::modern::Modern;

/// Declares neither prompts nor other optional capabilities, and serves all of them.
const SECRETIVE: [&str; 8] = [
    "--undeclared",
    "prompts",
    "--undeclared",
    "resources.subscribe",
    "--undeclared",
    "completions",
    "--undeclared",
    "logging",
];

/// A gateway before two servers; `b` serves more than its capabilities declare.
async fn gateway() -> (Gateway, HttpStub) {
    let stub = HttpStub::start(&SECRETIVE).await;
    let setup = Setup::open().stub("a", &[]).http("b", &stub, "");
    (setup.start().await, stub)
}

async fn refused(user: &Session, method: &str, params: Value) {
    let reply = user.request(method, params).await;
    assert_eq!(reply.expect_err(method)["code"], -32601, "{method}");
}

// SPEC L-04: the modern front is tested with its other refusals.
#[tokio::test]
async fn wrong_way_requests_of_legacy_clients_are_unknown() {
    let (gw, stub) = gateway().await;
    for path in ["/mcp/b", "/mcp"] {
        let user = gw.anonymous().open(path).await;
        for method in [
            "sampling/createMessage",
            "elicitation/create",
            "roots/list",
            "notifications/message",
            "notifications/cancelled",
            "subscriptions/listen",
        ] {
            refused(&user, method, json!({})).await;
            assert_eq!(stub.counted(method).await, 0, "{method}");
        }
    }
    gw.stop().await;
}

// Some servers serve undeclared methods.
#[tokio::test]
async fn upstream_of_a_pure_endpoint_answers_for_itself() {
    let (gw, stub) = gateway().await;
    let legacy = gw.anonymous().open("/mcp/b").await;
    let modern = Modern::new(gw.anonymous(), "/mcp/b");
    assert_eq!(legacy.hello["capabilities"]["prompts"], Value::Null);
    let prompt = json!({"name": "plain"});
    let complete = json!({"ref": {"type": "ref/prompt", "name": "greet"},
                          "argument": {"name": "name", "value": "a"}});
    for (method, params) in [
        ("prompts/list", json!({})),
        ("prompts/get", prompt),
        ("completion/complete", complete),
    ] {
        let told = legacy.request(method, params.clone()).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"));
        let told = modern.send(method, params).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"));
    }
    let uri = json!({"uri": "stub://static/1"});
    assert_eq!(
        legacy.request("resources/subscribe", uri).await,
        Ok(json!({}))
    );
    let level = json!({"level": "error"});
    assert_eq!(
        legacy.request("logging/setLevel", level).await,
        Ok(json!({}))
    );
    assert_eq!(stub.counted("logging/setLevel").await, 1);
    gw.stop().await;
}

// SPEC L-04, C-50.
#[tokio::test]
async fn undeclared_method_is_unknown_on_merged_endpoints() {
    let (gw, stub) = gateway().await;
    let legacy = gw.anonymous().open("/mcp").await;
    let modern = Modern::new(gw.anonymous(), "/mcp");
    let complete = |up: &str| {
        json!({"ref": {"type": "ref/prompt", "name": format!("{up}__greet")},
               "argument": {"name": "name", "value": "a"}})
    };
    let of = |up: &str| {
        [
            ("prompts/get", json!({"name": format!("{up}__plain")})),
            ("completion/complete", complete(up)),
        ]
    };
    for (method, params) in of("a") {
        let told = legacy.request(method, params.clone()).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"));
        let told = modern.send(method, params).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"));
    }
    for (method, params) in of("b") {
        refused(&legacy, method, params.clone()).await;
        let reply = modern.send(method, params).await;
        assert_eq!(reply.expect_err(method)["code"], -32601, "{method}");
        assert_eq!(stub.counted(method).await, 0, "{method}");
    }
    let uri = |up: &str| json!({"uri": format!("{up}+stub://static/1")});
    let followed = legacy.request("resources/subscribe", uri("a")).await;
    assert_eq!(followed, Ok(json!({})));
    refused(&legacy, "resources/subscribe", uri("b")).await;
    assert_eq!(stub.counted("resources/subscribe").await, 0);
    gw.stop().await;
}

// SPEC C-21.
#[tokio::test]
async fn log_level_is_unknown_where_no_upstream_logs() {
    let mute = ["--undeclared", "logging"];
    let setup = Setup::open().stub("a", &mute).stub("b", &mute);
    let gw = setup.start().await;
    let user = gw.anonymous().open("/mcp").await;
    assert_eq!(user.hello["capabilities"]["logging"], Value::Null);
    refused(&user, "logging/setLevel", json!({"level": "error"})).await;
    gw.stop().await;
}
