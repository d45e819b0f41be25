//! `server/discover`. Spec: SPEC M-50 to M-53.

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Modern;
use crate::harness::Setup;

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

fn check(said: &Value) {
    assert_eq!(said["resultType"], "complete");
    assert_eq!(said["supportedVersions"][0], "2026-07-28");
    assert_eq!(said["supportedVersions"].as_array().unwrap().len(), 5);
    assert!(said["ttlMs"].as_u64().is_some());
    assert_eq!(said["cacheScope"], "private");
    assert_eq!(said.get("serverInfo"), None);
    assert!(said["_meta"][SERVER_INFO]["name"].is_string());
}

#[tokio::test]
async fn an_endpoint_says_what_it_can_do() {
    let gw = Setup::open()
        .stub("one", &[])
        .stub("two", &[])
        .start()
        .await;
    let one = Modern::new(gw.anonymous(), "/mcp/one");
    let said = one.send("server/discover", json!({})).await.unwrap();
    check(&said);
    assert!(said["capabilities"]["tools"].is_object());
    assert_ne!(said["_meta"][SERVER_INFO]["name"], "drawbridge");
    let merged = Modern::new(gw.anonymous(), "/mcp");
    let said = merged.send("server/discover", json!({})).await.unwrap();
    check(&said);
    assert_eq!(said["_meta"][SERVER_INFO]["name"], "drawbridge");
    gw.stop().await;
}

// Spec: SPEC M-51. An undeclared capability would count as missing for the client's whole life.
#[tokio::test]
async fn it_is_answered_while_every_upstream_is_down() {
    let gw = Setup::open()
        .url("one", "http://127.0.0.1:9/mcp", "")
        .url("two", "http://127.0.0.1:9/mcp", "")
        .start()
        .await;
    for path in ["/mcp", "/mcp/one"] {
        let user = Modern::new(gw.anonymous(), path);
        let said = user.send("server/discover", json!({})).await.unwrap();
        check(&said);
        assert!(said["ttlMs"].as_u64().unwrap() <= 1000, "{said}");
        assert!(said["capabilities"]["tools"].is_object(), "{said}");
        let listed = user.send("tools/list", json!({})).await;
        assert_eq!(listed.is_err(), path == "/mcp/one", "{listed:?}");
    }
    gw.stop().await;
}

// Spec: SPEC M-51, G-03. For a hung upstream the gateway declares tools, and lets that be kept for a second only.
#[tokio::test]
async fn a_server_alone_that_hangs_is_not_taken_for_one_without_tools() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", silent.local_addr().unwrap());
    let setup = Setup::open().url("hung", &url, "connect_timeout = \"1s\"");
    let gw = setup.start().await;
    let user = Modern::new(gw.anonymous(), "/mcp/hung");
    // The first two wait for the upstream, which is then known to hang.
    for _ in 0..3 {
        let said = user.send("server/discover", json!({})).await.unwrap();
        check(&said);
        assert!(said["capabilities"]["tools"].is_object(), "{said}");
        assert!(said["ttlMs"].as_u64() <= Some(1000), "{said}");
    }
    gw.stop().await;
}

// Spec: SPEC M-52. Clients take what is not declared for missing, and do not ask again.
#[tokio::test]
async fn a_server_alone_is_waited_for_and_several_are_not() {
    let wait = "[mcp]\nconnect_wait = \"50ms\"";
    let late = ["--slow-start", "1500"];
    let setup = Setup::open().toml(wait).stub("late", &late);
    let gw = setup.stub("later", &late).start().await;
    let discover = async |path: &str| {
        let user = Modern::new(gw.anonymous(), path);
        user.send("server/discover", json!({})).await.unwrap()
    };
    // A merged answer that did not wait for the upstream does not mark the upstream as hung.
    for _ in 0..2 {
        let merged = discover("/mcp").await;
        check(&merged);
        assert!(merged["ttlMs"].as_u64() <= Some(1000), "{merged}");
    }
    let alone = discover("/mcp/late").await;
    check(&alone);
    assert!(alone["capabilities"]["tools"].is_object(), "{alone}");
    assert!(alone["ttlMs"].as_u64() > Some(1000), "{alone}");
    gw.stop().await;
}

// SPEC C-60.
#[tokio::test]
async fn lists_of_a_caller_are_equal_on_every_connection() {
    let setup = Setup::secured().stub("a", &[]);
    let gw = setup.stub("b", &["--era", "modern"]).start().await;
    let list = async |method: &str| {
        let user = Modern::new(gw.principal("alice"), "/mcp");
        let mut list = user.send(method, json!({})).await.expect("a list");
        // It counts down.
        list.as_object_mut().unwrap().remove("ttlMs");
        list.to_string()
    };
    for method in ["tools/list", "prompts/list", "resources/list"] {
        let first = list(method).await;
        let user = Modern::new(gw.principal("alice"), "/mcp");
        let arguments = json!({"key": "k", "value": "v"});
        user.call("a__state_set", arguments)
            .await
            .expect("a result");
        assert_eq!(list(method).await, first, "{method}");
    }
    gw.stop().await;
}
