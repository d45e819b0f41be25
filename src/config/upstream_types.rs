//! The configuration of one upstream as typed values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::account_types::UpstreamAuth;
use crate::secret::Secret;

/// `[upstreams.<name>]`.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of its own in the file"
)]
pub struct UpstreamConfig {
    /// `[a-z][a-z0-9-]{0,19}`.
    pub name: String,
    /// How it is reached.
    pub carrier: CarrierConfig,
    /// The account that its requests use.
    pub auth: Option<UpstreamAuth>,
    /// Whose traffic may share a session or child.
    pub isolation: Isolation,
    /// Which protocol era it speaks.
    pub era: EraPin,
    /// Lifetime of the verdict "legacy" when `era` is not configured.
    pub era_recheck: Duration,
    /// Shown on `/mcp`.
    pub merged: bool,
    /// Serves `/mcp/<name>`.
    pub direct: bool,
    /// Scopes of `/mcp/<name>`; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to ask for at a login to `/mcp/<name>`; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Audiences accepted on `/mcp/<name>` besides the resource identifier.
    pub audiences: Vec<String>,
    /// For opening a session, handshake included.
    pub connect_timeout: Duration,
    /// Without any frame of the call.
    pub idle_timeout: Duration,
    /// For a whole call.
    pub total_timeout: Duration,
    /// For one question to the client.
    pub ask_timeout: Duration,
    /// For a call that may be asked, behind another one on its connection; and for a question to a modern client,
    /// behind its parked calls.
    pub ask_wait: Duration,
    /// Most open questions of this upstream per session.
    pub open_questions: usize,
    /// Whether a lost session may be rebuilt elsewhere.
    pub restartable: bool,
    /// Tools that may be called again after a lost reply.
    pub retry_safe: Vec<String>,
    /// Whether tasks are run for clients that know none.
    pub run_tasks: bool,
    /// Whether clients are told that its lists may change, and when they do.
    pub list_changed: bool,
}

#[cfg(test)]
impl UpstreamConfig {
    /// An HTTP upstream with these keys.
    pub(crate) fn sample(keys: &str) -> Self {
        let start = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
        let config = super::parse(&format!("{start}{keys}"), "test.toml", &|_| None).unwrap();
        config.upstreams.into_iter().next().unwrap()
    }
}

/// How an upstream is reached.
#[derive(Debug, Clone)]
pub enum CarrierConfig {
    /// A child process, one JSON-RPC message per line.
    Stdio(StdioCarrier),
    /// An HTTP service.
    Http(HttpCarrier),
}

impl CarrierConfig {
    /// Whether it is a child process.
    #[must_use]
    pub fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio(_))
    }
}

/// A stdio child.
#[derive(Debug, Clone)]
pub struct StdioCarrier {
    /// Program, looked up in PATH.
    pub command: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Working directory; empty means the private HOME.
    pub cwd: Option<PathBuf>,
    /// Variables set for the child.
    pub env: BTreeMap<String, Secret>,
    /// Names of our own variables that the child inherits.
    pub inherit: Vec<String>,
    /// Resource limits by name (`nofile`, `as`, `cpu`, `nproc`, `core`, `fsize`).
    pub rlimits: BTreeMap<String, u64>,
    /// From closed stdin to SIGTERM.
    pub stop_eof: Duration,
    /// From SIGTERM to SIGKILL.
    pub stop_term: Duration,
    /// Children of this upstream at once.
    pub max_children: usize,
}

/// An HTTP upstream.
#[derive(Debug, Clone)]
pub struct HttpCarrier {
    /// The MCP endpoint.
    pub url: Url,
    /// Which HTTP transport.
    pub transport: TransportKind,
    /// Fixed request headers.
    pub headers: Vec<(String, Secret)>,
    /// Extra trust anchors, PEM.
    pub ca_file: Option<PathBuf>,
    /// Forward proxy.
    pub proxy: Option<Url>,
    /// How long an idle HTTP/1.1 connection is used again where the upstream names no time.
    pub pool_idle: Duration,
}

/// `upstreams.*.transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// Find out.
    Auto,
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// WebSocket.
    WebSocket,
}

/// `upstreams.*.isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// One upstream session per downstream session.
    Session,
    /// One per principal.
    Principal,
    /// One for all.
    Shared,
}

/// `upstreams.*.era`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraPin {
    /// Probe.
    Auto,
    /// `initialize` handshake.
    Legacy,
    /// Self-contained requests.
    Modern,
    /// Exactly this revision.
    Revision(&'static str),
}
