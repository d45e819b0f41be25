//! The configuration of one upstream as typed values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::account_types::UpstreamAuth;
use super::words::{ConfigWord, word_enum};
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
    /// How the upstream is reached.
    pub carrier: CarrierConfig,
    /// The account of its requests.
    pub auth: Option<UpstreamAuth>,
    /// Which callers may share a session or child.
    pub isolation: Isolation,
    /// Protocol era of the upstream.
    pub era: EraPin,
    /// How long the verdict "legacy" is cached when `era` is not configured.
    pub era_recheck: Duration,
    /// Whether `/mcp` shows it.
    pub merged: bool,
    /// Whether it has an endpoint of its own, `/mcp/<name>`.
    pub direct: bool,
    /// Scopes of `/mcp/<name>`; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to request at a login for `/mcp/<name>`; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Accepted audiences on `/mcp/<name>` besides the resource identifier.
    pub audiences: Vec<String>,
    /// Time limit for opening a session, handshake included.
    pub connect_timeout: Duration,
    /// Time limit between two frames of a call.
    pub idle_timeout: Duration,
    /// Time limit of a whole call.
    pub total_timeout: Duration,
    /// Time limit of one question to the client.
    pub ask_timeout: Duration,
    /// How long a call that may ask questions waits behind another one on its connection, and a question to a modern
    /// client behind its parked calls.
    pub ask_wait: Duration,
    /// Most open questions of this upstream per session.
    pub open_questions: usize,
    /// Whether a lost session may be rebuilt elsewhere.
    pub restartable: bool,
    /// Tools that may be called again after a lost reply.
    pub retry_safe: Vec<String>,
    /// Whether the gateway runs tasks to completion for clients without task support.
    pub run_tasks: bool,
    /// Whether clients are told that its lists may change, and are notified of changes.
    pub list_changed: bool,
}

#[cfg(test)]
impl UpstreamConfig {
    /// An HTTP upstream with these additional keys.
    pub(crate) fn sample(keys: &str) -> Self {
        let start = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
        let config = super::parse(&format!("{start}{keys}"), "test.toml", &|_| None).unwrap();
        config.upstreams.into_iter().next().unwrap()
    }
}

#[cfg(test)]
impl StdioCarrier {
    /// A child that runs `command`, with nothing else configured.
    pub(crate) fn sample(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            args: Vec::new(),
            cwd: None,
            env: BTreeMap::new(),
            inherit: Vec::new(),
            rlimits: BTreeMap::new(),
            stop_eof: Duration::ZERO,
            stop_term: Duration::ZERO,
            max_children: 1,
        }
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
    /// Whether the upstream is a child process.
    #[must_use]
    pub fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio(_))
    }

    /// What a pasted key is for: the URL that it is sent to, or the program whose environment holds it.
    #[must_use]
    pub fn key_resource(&self) -> String {
        match self {
            Self::Stdio(stdio) => format!("stdio:{}", stdio.command),
            Self::Http(http) => http.url.to_string(),
        }
    }
}

/// A stdio child.
#[derive(Debug, Clone)]
pub struct StdioCarrier {
    /// Program, looked up in PATH.
    pub command: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Working directory; `None` means the private HOME.
    pub cwd: Option<PathBuf>,
    /// Variables set for the child.
    pub env: BTreeMap<String, Secret>,
    /// Names of the gateway's own variables that the child inherits.
    pub inherit: Vec<String>,
    /// Resource limits by name (`nofile`, `as`, `cpu`, `nproc`, `core`, `fsize`).
    pub rlimits: BTreeMap<String, u64>,
    /// Time from closed stdin to SIGTERM.
    pub stop_eof: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub stop_term: Duration,
    /// Simultaneous children of this upstream.
    pub max_children: usize,
}

impl StdioCarrier {
    /// The last part of `command`, for callers.
    #[must_use]
    pub fn program(&self) -> &str {
        let command = self.command.as_str();
        command.rsplit('/').next().unwrap_or(command)
    }
}

/// An HTTP upstream.
#[derive(Debug, Clone)]
pub struct HttpCarrier {
    /// The MCP endpoint.
    pub url: Url,
    /// The HTTP transport.
    pub transport: TransportKind,
    /// Fixed request headers.
    pub headers: Vec<(String, Secret)>,
    /// Extra trust anchors, PEM.
    pub ca_file: Option<PathBuf>,
    /// Forward proxy.
    pub proxy: Option<Url>,
    /// How long an idle HTTP/1.1 connection is reused if the upstream names no time.
    pub pool_idle: Duration,
}

word_enum! {
    /// `upstreams.*.transport`.
    pub enum TransportKind {
        /// Detected by probing.
        Auto = "auto",
        /// Streamable HTTP.
        Streamable = "streamable",
        /// HTTP+SSE of 2024-11-05.
        Sse = "sse",
        /// WebSocket.
        WebSocket = "websocket",
    }
}

word_enum! {
    /// `upstreams.*.isolation`.
    #[derive(Hash)]
    pub enum Isolation {
        /// One upstream session per downstream session.
        Session = "session",
        /// One upstream session per principal.
        Principal = "principal",
        /// One upstream session for all.
        Shared = "shared",
    }
}

/// `upstreams.*.era`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraPin {
    /// Detected by probing.
    Auto,
    /// Legacy: `initialize` handshake.
    Legacy,
    /// Modern: self-contained requests.
    Modern,
    /// The era of this revision, and no other revision.
    Revision(&'static str),
}

impl ConfigWord for EraPin {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("legacy", Self::Legacy),
        ("modern", Self::Modern),
        ("2024-11-05", Self::Revision("2024-11-05")),
        ("2025-03-26", Self::Revision("2025-03-26")),
        ("2025-06-18", Self::Revision("2025-06-18")),
        ("2025-11-25", Self::Revision("2025-11-25")),
        ("2026-07-28", Self::Revision("2026-07-28")),
    ];
}
