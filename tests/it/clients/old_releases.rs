//! Older releases of the official SDKs and of `FastMCP` that are still deployed, as clients and as servers.
//!
//! `tests/setup/python1-8.txt` and `python1-22.txt` are the Python environments, `sdk-1.10` and `sdk-1.22` of
//! `tests/package.json` the npm modules.

use rstest::rstest;
use serde_json::json;

use super::everything_alone;
use crate::harness::{Setup, peers};

/// Steps of every tour of an older client.
const STEPS: &[&str] = &[
    "tools",
    "slow_call",
    "logging",
    "sampling",
    "hundred_parallel_calls",
    "session_is_still_good",
];

enum Old {
    /// A folder of `tests/node_modules`.
    TypeScript(&'static str),
    /// A Python environment of `.cache`, and the script of the tour.
    Python(&'static str, &'static str),
}

// The Python SDK ends its session, with every call on it, on any status of 400 or more: 100 answers of 100.
#[rstest]
#[case::typescript_1_10(Old::TypeScript("sdk-1.10"), &["resources_and_prompts", "progress", "roots", "subscriptions"])]
#[case::typescript_1_22(Old::TypeScript("sdk-1.22"), &["resources_and_prompts", "progress", "roots", "elicitation"])]
#[case::python_1_8(Old::Python("python1-8", "old"), &["roots"])]
#[case::python_1_22(Old::Python("python1-22", "old"), &["roots"])]
#[case::fastmcp_2_13(Old::Python("python1-22", "fast"), &["elicitation"])]
#[tokio::test]
async fn old_client_tours_everything(#[case] client: Old, #[case] more: &[&str]) {
    if !peers::are_installed() {
        return;
    }
    let gw = everything_alone().await;
    let user = gw.principal("user");
    let elicits = more.contains(&"elicitation");
    let url = format!("{}/mcp/everything", gw.url);
    let options = json!({"url": url, "token": user.token(), "elicits": elicits}).to_string();
    let steps = [STEPS, more].concat();
    match client {
        Old::TypeScript(sdk) => {
            let script = peers::script("clients/old.mjs");
            peers::tour(&peers::node(), &[&script, sdk, &options], &steps).await;
        }
        Old::Python(environment, script) => {
            let script = peers::script(&format!("clients/{script}.py"));
            let python = peers::environment(environment);
            peers::tour(&python, &[&script, &options], &steps).await;
        }
    }
    gw.stop().await;
}

// Some of these servers break for all clients after an unknown first request, leave such a request unanswered, or
// redirect from `/mcp` to `/mcp/`. Spec: SPEC U-05.
#[rstest]
#[case::typescript_1_10_stateless("node", "sdk-1.10", "stateless-json")]
#[case::typescript_1_10("node", "sdk-1.10", "sessions")]
#[case::typescript_1_22("node", "sdk-1.22", "sessions")]
#[case::python_1_8_stateless("python1-8", "sdk", "stateless")]
#[case::python_1_8("python1-8", "sdk", "sessions")]
#[case::python_1_22_stateless("python1-22", "sdk", "stateless")]
#[case::fastmcp_2_13("python1-22", "fastmcp", "sessions")]
#[case::fastmcp_2_13_stateless("python1-22", "fastmcp", "stateless")]
#[tokio::test]
async fn old_server_is_served(#[case] runtime: &str, #[case] package: &str, #[case] mode: &str) {
    if !peers::are_installed() {
        return;
    }
    let (program, script) = match runtime {
        "node" => (peers::node(), peers::script("servers/old.mjs")),
        environment => (
            peers::environment(environment),
            peers::script("servers/old.py"),
        ),
    };
    let server = peers::serve(&program, &[&script, package, mode], &[]).await;
    let gw = Setup::secured()
        .url("old", &server.first_line, "")
        .start()
        .await;
    let expected = format!("hello of {package}");
    for path in ["/mcp/old", "/mcp"] {
        let session = gw.principal("user").open(path).await;
        assert_eq!(session.text("hello", json!({})).await, expected);
    }
    // The gateway's requests have not harmed the server's direct clients.
    let direct = peers::script("clients/hello.mjs");
    let args = [&direct, &server.first_line, &expected];
    peers::tour(&peers::node(), &args.map(String::as_str), &["hello"]).await;
    gw.stop().await;
}
