//! Official clients, a real authorization server, nobody at the keyboard: from 401 to a tool call,
//! and through a scope step-up. Spec: SPEC; CLIENTS "Discovery, as clients really do it".

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::peers::{self, Service};
use crate::harness::{Gateway, Setup};

struct World {
    gw: Gateway,
    _server: Service,
    directory: TempDir,
}

impl World {
    /// oidc-provider, and a gateway that trusts it and guards one tool with a further scope.
    async fn start() -> Self {
        let script = peers::script("as/server.mjs");
        let server = peers::serve(&peers::node(), &[&script], &[]).await;
        let gw = Setup::behind_issuer(&server.first_line)
            .toml("[[auth.tool_scopes]]\ntools = [\"state_*\"]\nscopes = [\"mcp:admin\"]")
            .stub("stub", &[])
            .start()
            .await;
        Self {
            gw,
            _server: server,
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
