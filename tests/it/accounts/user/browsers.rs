//! Consent in a real browser (headless Chromium), at the real `oidc-provider`: programs on the SDKs show their users the link,
//! and their first call leads to its result.

use rstest::rstest;
use serde_json::json;

use super::consent::is_for;
use super::world::{setup, tables};
use crate::accounts::world::{AuthServer, GuardedUpstream, Verdict};
use crate::harness::peers::{self, Service};
use crate::harness::{Gateway, Setup};

const STEPS: [&str; 2] = [
    "the_first_call_leads_to_a_result",
    "the_next_call_asks_nobody",
];

/// What the tokens of a child are for.
const API: &str = "https://api.test/v1";

/// A gateway without authentication before an upstream that wants an account of its user.
struct World {
    gw: Gateway,
    issuer: String,
    is_child: bool,
    _upstream: Option<GuardedUpstream>,
    _server: Service,
    _state: tempfile::TempDir,
}

impl World {
    /// The upstream is a child, or reached by URL. `keys` are further tables.
    async fn start(is_child: bool, keys: &str) -> Self {
        let server = peers::serve(&peers::node(), &[&peers::script("as/server.mjs")], &[]).await;
        let issuer = server.first_line.clone();
        let state = tempfile::tempdir().unwrap();
        let (setup, upstream) = if is_child {
            let database = format!("sqlite:{}", state.path().join("test.db").display());
            let account = format!(
                "env = \"TRACKER_TOKEN\"\nissuer = \"{issuer}\"\nresource = \"{API}\"\nscopes = [\"mcp:tools\"]"
            );
            let tables = tables(state.path(), &database, &account);
            (Setup::open().stub("up", &[]).toml(&tables), None)
        } else {
            let unused = AuthServer::start().await;
            let upstream = GuardedUpstream::start(&unused, &["--era", "dual"]).await;
            upstream.publishes(json!({
                "resource": upstream.url(), "authorization_servers": [issuer], "scopes_supported": ["mcp:tools"],
            }));
            let (expected, resource) = (issuer.clone(), upstream.url());
            upstream.judges(move |token, _| Verdict::of(is_for(token, &expected, &resource)));
            (setup(&upstream, state.path(), ""), Some(upstream))
        };
        Self {
            gw: setup.toml(keys).start().await,
            issuer,
            is_child,
            _upstream: upstream,
            _server: server,
            _state: state,
        }
    }

    fn url(&self) -> String {
        format!("{}/mcp/up", self.gw.url)
    }

    /// Ends the world. A child was given a token of the server, for the service that it calls; other upstreams have judged
    /// the tokens themselves.
    async fn end(self) {
        if self.is_child {
            let user = self.gw.anonymous();
            let session = user.open("/mcp/up").await;
            let token = session.text("env", json!({"name": "TRACKER_TOKEN"})).await;
            assert!(is_for(Some(&token), &self.issuer, API), "{token}");
        }
        self.gw.stop().await;
    }
}

enum Program {
    TypeScript(&'static str),
    Python(u8),
    /// On the SDK of TypeScript, and it cannot show links.
    Plain,
}

#[rstest]
#[case::typescript_1(Program::TypeScript("1"), "legacy")]
#[case::typescript_2(Program::TypeScript("2"), "legacy")]
#[case::modern_typescript_2(Program::TypeScript("2"), "modern")]
#[case::python_1(Program::Python(1), "legacy")]
#[case::python_2(Program::Python(2), "legacy")]
#[case::modern_python_2(Program::Python(2), "modern")]
#[case::plain(Program::Plain, "legacy")]
#[case::modern_plain(Program::Plain, "modern")]
#[tokio::test]
async fn first_call_leads_through_a_browser_to_its_result(
    #[case] program: Program,
    #[case] era: &str,
    #[values(false, true)] is_child: bool,
) {
    let Some(chromium) = peers::chromium().filter(|_| peers::are_installed()) else {
        return;
    };
    let world = World::start(is_child, "").await;
    let node = peers::node();
    let is_plain = matches!(program, Program::Plain);
    let options = json!({"url": world.url(), "era": era, "node": node, "plain": is_plain});
    let (options, env) = (options.to_string(), [("CHROMIUM", chromium)]);
    let (interpreter, script, generation) = match program {
        Program::Python(generation) => (peers::python(generation), "clients/consent.py", None),
        Program::TypeScript(generation) => (node, "clients/consent.mjs", Some(generation)),
        Program::Plain => (node, "clients/consent.mjs", Some("2")),
    };
    let script = peers::script(script);
    let args: Vec<&str> = std::iter::once(&*script)
        .chain(generation)
        .chain([&*options])
        .collect();
    peers::tour_with(&interpreter, &args, &env, &STEPS).await;
    world.end().await;
}

/// What the command line of MCP Inspector prints about a call of `echo`.
async fn inspected(url: &str, text: &str) -> String {
    let launcher = peers::module("@modelcontextprotocol/inspector/clients/launcher/build/index.js");
    let argument = format!("text={text}");
    let args = [
        &*launcher,
        "--cli",
        url,
        "--transport",
        "http",
        "--format",
        "json",
        "--method",
        "tools/call",
        "--tool-name",
        "echo",
        "--tool-arg",
        &argument,
    ];
    let done = peers::run(&peers::node(), &args).await;
    done.stdout + &done.stderr
}

#[rstest]
#[tokio::test]
async fn inspector_prints_the_link_and_then_the_result(#[values(false, true)] is_child: bool) {
    let Some(chromium) = peers::chromium().filter(|_| peers::are_installed()) else {
        return;
    };
    let world = World::start(is_child, "[connect]\nwait = \"2s\"\n").await;
    let said = inspected(&world.url(), "first").await;
    let at = said.find(&format!("{}/connect/up?", world.gw.url));
    let link = &said[at.unwrap_or_else(|| panic!("no link: {said}"))..];
    let end = link.find(|char: char| char.is_whitespace() || "\"\\".contains(char));
    let (agree, link) = (
        peers::script("clients/agree.mjs"),
        &link[..end.unwrap_or(link.len())],
    );
    let env = [("CHROMIUM", chromium)];
    let agreed = peers::run_with(&peers::node(), &[&agree, link], &env).await;
    assert!(agreed.is_success, "{}", agreed.stderr);
    let said = inspected(&world.url(), "second").await;
    assert!(
        said.contains("second") && !said.contains("/connect/up?"),
        "{said}"
    );
    world.end().await;
}
