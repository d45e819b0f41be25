//! Official clients and a real authorization server, without a user at the keyboard: from 401 to a tool call, and
//! through a scope step-up. Spec: SPEC; CLIENTS "Discovery, as clients really do it".

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::peers::{self, Service};
use crate::harness::{Gateway, Setup};

struct World {
    gw: Gateway,
    server: Service,
    directory: TempDir,
}

impl World {
    /// oidc-provider, and a gateway that trusts it and guards one tool with a further scope.
    async fn start() -> Self {
        let script = peers::script("as/server.mjs");
        let server = peers::serve(&peers::node(), &[&script], &[]).await;
        Self::before(server, "").await
    }

    /// The same with opaque tokens; the gateway introspects a token again after one second.
    async fn start_opaque() -> Self {
        let script = peers::script("as/server.mjs");
        let server = peers::serve(&peers::node(), &[&script, "0", "opaque"], &[]).await;
        let introspection = "introspection = { client_id = \"gateway\", \
            client_secret = \"a gateway's secret\", max_age = \"1s\" }";
        Self::before(server, introspection).await
    }

    async fn before(server: Service, keys: &str) -> Self {
        Self::with_auth(server, keys, "").await
    }

    /// The same with further keys of `[auth]`.
    async fn with_auth(server: Service, keys: &str, auth: &str) -> Self {
        let gw = Setup::behind_issuer(&server.first_line)
            .auth(&format!(
                "mode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]\n{auth}"
            ))
            .toml(keys)
            .toml("[[auth.tool_scopes]]\ntools = [\"state_*\"]\nscopes = [\"mcp:admin\"]")
            .stub("stub", &[])
            .start()
            .await;
        Self {
            gw,
            server,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn options(&self) -> Value {
        json!({
            "url": format!("{}/mcp/stub", self.gw.url), "plainTool": "echo",
            "scopedTool": "state_get", "scope": "mcp:admin", "directory": self.directory.path(),
        })
    }
}

const STEPS: &[&str] = &["from_401_to_a_tool_call", "through_a_step_up"];

async fn typescript(generation: &str) {
    if !peers::are_installed() {
        return;
    }
    let world = World::start().await;
    let (script, options) = (
        peers::script("clients/oauth.mjs"),
        world.options().to_string(),
    );
    peers::tour(&peers::node(), &[&script, generation, &options], STEPS).await;
    world.gw.stop().await;
}

async fn python(generation: u8) {
    if !peers::are_installed() {
        return;
    }
    let world = World::start().await;
    let (script, options) = (
        peers::script("clients/oauth.py"),
        world.options().to_string(),
    );
    peers::tour(&peers::python(generation), &[&script, &options], STEPS).await;
    world.gw.stop().await;
}

#[tokio::test]
async fn typescript_1_signs_in_and_steps_up() {
    typescript("1").await;
}

// For clients that cannot step up, and authorization servers that hold a client to its first scopes.
#[tokio::test]
async fn login_scopes_make_a_step_up_needless() {
    if !peers::are_installed() {
        return;
    }
    let script = peers::script("as/server.mjs");
    let server = peers::serve(&peers::node(), &[&script], &[]).await;
    let world = World::with_auth(server, "", "login_scopes = [\"mcp:admin\"]").await;
    let mut options = world.options();
    options["atLogin"] = true.into();
    let (script, options) = (peers::script("clients/oauth.mjs"), options.to_string());
    peers::tour(&peers::node(), &[&script, "1", &options], STEPS).await;
    world.gw.stop().await;
}

// SPEC A-20; RFC 7662
#[tokio::test]
async fn opaque_tokens_of_a_real_server_are_asked_about_and_end_when_revoked() {
    if !peers::are_installed() {
        return;
    }
    let world = World::start_opaque().await;
    let mut options = world.options();
    options["issuer"] = world.server.first_line.as_str().into();
    let (script, options) = (peers::script("clients/oauth.mjs"), options.to_string());
    let steps = [STEPS, &["a_revoked_token_ends"]].concat();
    peers::tour(&peers::node(), &[&script, "1", &options], &steps).await;
    let log = world.gw.log().join("\n");
    assert!(!log.contains("a gateway's secret"), "{log}");
    assert!(
        world
            .gw
            .metric("drawbridge_introspection_requests_total", "")
            .await
            >= 3.0
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn an_authorization_server_that_is_down_gives_503_and_no_challenge() {
    let introspection = "introspection = { client_id = \"gateway\", \
        client_secret = \"a gateway's secret\", endpoint = \"http://127.0.0.1:9/ask\" }";
    let gw = Setup::behind_issuer("http://127.0.0.1:9")
        .toml(introspection)
        .stub("stub", &[])
        .start()
        .await;
    let answer = gw.bearer("opaque-token").get("/mcp/stub", &[]).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.header("retry-after").is_some());
    assert!(answer.header("www-authenticate").is_none());
    let log = gw.log().join("\n");
    assert!(
        !log.contains("opaque-token") && !log.contains("gateway's secret"),
        "{log}"
    );
    gw.stop().await;
}

#[tokio::test]
async fn typescript_2_signs_in_and_steps_up() {
    typescript("2").await;
}

#[tokio::test]
async fn python_1_signs_in_and_steps_up() {
    python(1).await;
}

#[tokio::test]
async fn python_2_signs_in_and_steps_up() {
    python(2).await;
}

#[tokio::test]
async fn mcp_remote_signs_in_and_steps_up() {
    if !peers::are_installed() {
        return;
    }
    let world = World::start().await;
    let (script, options) = (
        peers::script("clients/mcp-remote.mjs"),
        world.options().to_string(),
    );
    peers::tour(&peers::node(), &[&script, &options], STEPS).await;
    world.gw.stop().await;
}
