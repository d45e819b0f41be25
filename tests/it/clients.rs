//! Official clients in front, reference servers behind: whole tours.
//!
//! The tours are in `tests/clients`; each step is named there and here.

mod old_releases;
mod replicas;
mod written_servers;

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{Gateway, Setup, peers};

/// Steps of every tour of server-everything.
const STEPS: &[&str] = &[
    "tools",
    "tool_errors",
    "resources",
    "templates",
    "prompts",
    "completion",
    "logging",
    "progress",
    "cancellation",
    "sampling",
    "elicitation_form",
    "elicitation_url",
    "task",
    "roots",
    "subscriptions",
    "list_changed",
];

/// The same in the modern era: change notices come over one subscription, levels by request.
const MODERN_STEPS: &[&str] = &[
    "tools",
    "tool_errors",
    "resources",
    "templates",
    "prompts",
    "completion",
    "progress",
    "cancellation",
    "sampling",
    "elicitation_form",
    "elicitation_url",
    "task",
    "roots",
    "listening",
];

const SEVEN_STEPS: &[&str] = &[
    "all_listed",
    "everything",
    "files",
    "memory",
    "thinking",
    "fetch",
    "git",
    "time",
    "bare_name_resolves_where_it_is_unique",
    "prompts_and_resources",
];

fn npm_server(name: &str) -> String {
    peers::module(&format!(
        "@modelcontextprotocol/server-{name}/dist/index.js"
    ))
}

/// server-everything as a stdio child, alone.
async fn everything_alone() -> Gateway {
    let everything = npm_server("everything");
    let setup = Setup::secured();
    setup
        .stdio("everything", &peers::node(), &[&everything, "stdio"], "")
        .start()
        .await
}

/// The official SDK of a tour.
enum Sdk {
    TypeScript(&'static str),
    Python(u8),
}

impl Sdk {
    async fn tour(&self, script: &str, options: &Value, steps: &[&str]) {
        let options = options.to_string();
        match self {
            Self::TypeScript(generation) => {
                let script = peers::script(&format!("clients/{script}.mjs"));
                peers::tour(&peers::node(), &[&script, generation, &options], steps).await;
            }
            Self::Python(generation) => {
                let script = peers::script(&format!("clients/{script}.py"));
                peers::tour(&peers::python(*generation), &[&script, &options], steps).await;
            }
        }
    }
}

// To modern clients the legacy server's questions are parked until the retry.
#[rstest]
#[case::typescript_1(Sdk::TypeScript("1"), "legacy", STEPS)]
#[case::typescript_2(Sdk::TypeScript("2"), "legacy", STEPS)]
#[case::modern_typescript_2(Sdk::TypeScript("2"), "modern", MODERN_STEPS)]
#[case::python_1(Sdk::Python(1), "legacy", STEPS)]
#[case::python_2(Sdk::Python(2), "legacy", STEPS)]
#[case::modern_python_2(Sdk::Python(2), "modern", MODERN_STEPS)]
#[tokio::test]
async fn every_sdk_tours_everything(#[case] sdk: Sdk, #[case] era: &str, #[case] steps: &[&str]) {
    if !peers::are_installed() {
        return;
    }
    let gw = everything_alone().await;
    let user = gw.principal("user");
    let url = format!("{}/mcp/everything", gw.url);
    let options = json!({"url": url, "token": user.token(), "era": era});
    sdk.tour("everything", &options, steps).await;
    gw.stop().await;
}

/// server-everything behind a gateway with every transport, seen at `path`.
async fn tour_over(sdk: Sdk, setup: Setup, scheme: &str, path: &str) {
    if !peers::are_installed() {
        return;
    }
    let on = "[server.sse]\nenabled = true\n[server.websocket]\nenabled = true";
    let everything = npm_server("everything");
    let setup = setup.server(on);
    let setup = setup.stdio("everything", &peers::node(), &[&everything, "stdio"], "");
    let gw = setup.start().await;
    let user = gw.principal("user");
    let url = format!("{}{path}", gw.url.replace("http:", scheme));
    let options = json!({"url": url, "token": user.token(), "era": "legacy"});
    sdk.tour("everything", &options, STEPS).await;
    gw.stop().await;
}

#[tokio::test]
async fn typescript_1_tours_everything_over_http_sse() {
    let sdk = Sdk::TypeScript("1");
    tour_over(sdk, Setup::secured(), "http:", "/sse/everything").await;
}

#[tokio::test]
async fn python_1_tours_everything_over_http_sse() {
    tour_over(Sdk::Python(1), Setup::secured(), "http:", "/sse/everything").await;
}

// The SDK's transport cannot show a token.
#[tokio::test]
async fn typescript_1_tours_everything_over_a_websocket() {
    let sdk = Sdk::TypeScript("1");
    tour_over(sdk, Setup::open(), "ws:", "/ws/everything").await;
}

// More questions at once than may be parked. Spec: BRIDGING §3.1 step 12.
#[rstest]
#[case::typescript(Sdk::TypeScript("2"))]
#[case::python(Sdk::Python(2))]
#[tokio::test]
async fn modern_client_answers_thirty_questions_at_once(#[case] sdk: Sdk) {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("servers/written.mjs");
    let server = peers::serve(&peers::node(), &[&script, "sessions"], &[]).await;
    let setup = Setup::secured().url("written", &server.first_line, "");
    let gw = setup.start().await;
    let url = format!("{}/mcp/written", gw.url);
    let user = gw.principal("user");
    let options = json!({"url": url, "token": user.token(), "era": "modern"});
    sdk.tour("parallel", &options, &["every_question_is_answered"])
        .await;
    gw.stop().await;
}

/// The gateway in front of the seven reference servers, and the directory they may work in.
async fn seven_servers() -> (Gateway, tempfile::TempDir) {
    let work = tempfile::tempdir().unwrap();
    let directory = work.path().to_str().unwrap();
    let git = tokio::process::Command::new("git");
    let repository = init_repository(git, directory).await;
    let node = peers::node();
    let python = peers::python(2);
    let script = |name: &str| npm_server(name);
    let memory = format!("env = {{ MEMORY_FILE_PATH = \"{directory}/memory.json\" }}");
    let setup = Setup::secured()
        .stdio("everything", &node, &[&script("everything"), "stdio"], "")
        .stdio("files", &node, &[&script("filesystem"), directory], "")
        .stdio("memory", &node, &[&script("memory")], &memory)
        .stdio("thinking", &node, &[&script("sequential-thinking")], "")
        .stdio(
            "fetch",
            &python,
            &[
                "-m",
                "mcp_server_fetch",
                "--ignore-robots-txt",
                "--allow-private-ips",
            ],
            "",
        )
        .stdio(
            "git",
            &python,
            &["-m", "mcp_server_git", "--repository", &repository],
            "",
        )
        .stdio(
            "time",
            &python,
            &["-m", "mcp_server_time", "--local-timezone", "UTC"],
            "",
        );
    (setup.start().await, work)
}

async fn init_repository(mut git: tokio::process::Command, directory: &str) -> String {
    let repository = format!("{directory}/repository");
    let done = git
        .args(["init", "--quiet", &repository])
        .status()
        .await
        .unwrap();
    assert!(done.success(), "git init");
    repository
}

async fn tour_seven(sdk: Sdk) {
    if !peers::are_installed() {
        return;
    }
    let (gw, work) = seven_servers().await;
    let directory = work.path().to_str().unwrap();
    let user = gw.principal("user");
    let options = json!({
        "url": format!("{}/mcp", gw.url), "token": user.token(), "upstream": "everything",
        "directory": directory, "repository": format!("{directory}/repository"),
    });
    if matches!(sdk, Sdk::TypeScript(_)) {
        sdk.tour("seven", &options, SEVEN_STEPS).await;
    }
    sdk.tour("everything", &options, STEPS).await;
    gw.stop().await;
}

#[tokio::test]
async fn typescript_1_uses_seven_servers_behind_one_url() {
    tour_seven(Sdk::TypeScript("1")).await;
}

#[tokio::test]
async fn typescript_2_uses_seven_servers_behind_one_url() {
    tour_seven(Sdk::TypeScript("2")).await;
}

#[tokio::test]
async fn python_1_uses_seven_servers_behind_one_url() {
    tour_seven(Sdk::Python(1)).await;
}

#[tokio::test]
async fn python_2_uses_seven_servers_behind_one_url() {
    tour_seven(Sdk::Python(2)).await;
}

/// Runs the Inspector's command line once and gives what it printed.
async fn inspect(url: &str, token: &str, args: &[&str]) -> Value {
    let launcher = peers::module("@modelcontextprotocol/inspector/clients/launcher/build/index.js");
    let header = format!("Authorization: Bearer {token}");
    let mut all = vec![
        launcher.as_str(),
        "--cli",
        url,
        "--transport",
        "http",
        "--header",
        &header,
    ];
    all.extend(["--format", "json"]);
    all.extend(args);
    let finished = peers::run(&peers::node(), &all).await;
    assert!(
        finished.is_success,
        "{args:?}\n{}\n{}",
        finished.stdout, finished.stderr
    );
    serde_json::from_str(&finished.stdout).unwrap()
}

// On the merged endpoint names have their upstream before them, and so have URIs.
#[rstest]
#[case::pure("/mcp/everything", "", "")]
#[case::merged("/mcp", "everything__", "everything+")]
#[tokio::test]
async fn inspector_lists_reads_and_calls(
    #[case] path: &str,
    #[case] prefix: &str,
    #[case] scheme: &str,
) {
    if !peers::are_installed() {
        return;
    }
    let everything = npm_server("everything");
    let args = [everything.as_str(), "stdio"];
    let setup = Setup::secured().stdio("everything", &peers::node(), &args, "");
    let gw = setup.stub("stub", &[]).start().await;
    let user = gw.principal("user");
    let url = format!("{}{path}", gw.url);
    let inspect =
        async |args: &[&str]| inspect(&url, user.token().unwrap(), args).await.to_string();
    for (method, expected) in [
        ("tools/list", format!("\"{prefix}get-sum\"")),
        (
            "resources/list",
            format!("\"{scheme}demo://resource/static/document/features.md\""),
        ),
        (
            "resources/templates/list",
            format!("\"{scheme}demo://resource/dynamic/text/{{resourceId}}\""),
        ),
        ("prompts/list", format!("\"{prefix}args-prompt\"")),
    ] {
        let listed = inspect(&["--method", method]).await;
        assert!(listed.contains(&expected), "{method}: {listed}");
        let is_merged = listed.contains("stub");
        assert_eq!(is_merged, path == "/mcp", "{method}: {listed}");
    }
    let tool = format!("{prefix}get-sum");
    let sum = [
        "--method",
        "tools/call",
        "--tool-name",
        &tool,
        "--tool-arg",
        "a=1",
        "b=41",
    ];
    assert!(inspect(&sum).await.contains("42"));
    let text = format!("{scheme}demo://resource/dynamic/text/3");
    let read = inspect(&["--method", "resources/read", "--uri", &text]).await;
    assert!(read.contains("Resource 3"), "{read}");
    let name = format!("{prefix}simple-prompt");
    let prompt = ["--method", "prompts/get", "--prompt-name", &name];
    assert!(inspect(&prompt).await.contains("messages"));
    gw.stop().await;
}
