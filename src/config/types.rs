//! The configuration as typed values, which all other modules use.
//!
//! Defines the types only; sibling modules read, check and document a file. Field names are the TOML keys of DESIGN
//! §11. Durations are [`Duration`], sizes are bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::account_types::{AccountLists, EgressConfig, UpstreamAuth};
use super::auth_types::AuthConfig;
use super::cluster_types::ClusterConfig;
use super::database_types::{ConnectConfig, DatabaseConfig};
use super::endpoint_types::{MergedConfig, NamedEndpoint};
use super::log_levels::LogLevels;
use super::problem::ConfigProblem;
use super::upstream_types::UpstreamConfig;
use super::words::{ConfigWord, word_enum};
use crate::protocol::MessageBounds;
use crate::secret::Secret;

/// One complete, checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The public listener.
    pub server: HttpServerConfig,
    /// The operators' listener.
    pub admin: AdminConfig,
    /// Health checks of idle upstreams.
    pub health: HealthConfig,
    /// Authentication of callers.
    pub auth: AuthConfig,
    /// The merged endpoint.
    pub mcp: MergedConfig,
    /// Further named endpoints, by name.
    pub endpoints: BTreeMap<String, NamedEndpoint>,
    /// MCP servers behind the gateway, in file order.
    pub upstreams: Vec<UpstreamConfig>,
    /// Session lifetimes and caps.
    pub sessions: SessionsConfig,
    /// Event log bounds.
    pub events: EventsConfig,
    /// Caps over all stdio children.
    pub stdio: StdioConfig,
    /// How long lists of upstreams are cached.
    pub lists: ListsConfig,
    /// Sizes, counts and rates.
    pub limits: LimitsConfig,
    /// Sealing keys.
    pub keys: KeysConfig,
    /// Destinations of URLs that documents name.
    pub egress: EgressConfig,
    /// Location of durable data.
    pub database: DatabaseConfig,
    /// Accounts of principals at upstreams.
    pub connect: ConnectConfig,
    /// Several replicas as one gateway.
    pub cluster: Option<ClusterConfig>,
    /// Logs, metrics and traces.
    pub telemetry: TelemetryConfig,
    /// Settings that are valid, but probably a mistake.
    pub warnings: Vec<ConfigProblem>,
}

impl Config {
    /// Whether callers have accounts of their own at an upstream.
    #[must_use]
    pub fn has_user_accounts(&self) -> bool {
        let mut upstreams = self.upstreams.iter();
        upstreams.any(|upstream| (upstream.auth.as_ref()).is_some_and(UpstreamAuth::is_of_users))
    }

    /// Whether the token or key of an account goes into the environment of children.
    #[must_use]
    pub fn has_child_accounts(&self) -> bool {
        let mut upstreams = self.upstreams.iter();
        upstreams.any(|upstream| upstream.carrier.is_stdio() && upstream.auth.is_some())
    }

    /// The upstreams with `auth.lists = "common"`.
    pub fn upstreams_with_common_lists(&self) -> impl Iterator<Item = Arc<str>> {
        let is_common = |auth: &UpstreamAuth| auth.lists() == AccountLists::Common;
        let upstreams = self.upstreams.iter();
        let common = upstreams.filter(move |one| one.auth.as_ref().is_some_and(is_common));
        common.map(|one| one.name.as_str().into())
    }
}

/// `[server]`.
#[derive(Debug, Clone)]
pub struct HttpServerConfig {
    /// Where to listen for MCP traffic.
    pub listen: SocketAddr,
    /// The URL that clients use; no trailing slash, may have a path.
    pub public_url: Url,
    /// Origins allowed besides that of `public_url`.
    pub allowed_origins: Vec<String>,
    /// Hosts allowed besides that of `public_url`.
    pub allowed_hosts: Vec<String>,
    /// Threads that serve connections.
    pub threads: usize,
    /// CIDR blocks of proxies whose `X-Forwarded-For` and `x-request-id` headers are trusted.
    pub trusted_proxies: Vec<String>,
    /// Certificate and key, both PEM files.
    pub tls: Option<TlsConfig>,
    /// How long a request head may take.
    pub header_timeout: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long a request body may take.
    pub body_timeout: Duration,
    /// How long a connection may be open without a request.
    pub idle_timeout: Duration,
    /// Longest time without progress of a write to a peer.
    pub stall_timeout: Duration,
    /// How long a connection stays open after a refused token, unless a valid one follows.
    pub refused_idle_timeout: Duration,
    /// Open connections at once.
    pub max_connections: usize,
    /// Connections of one address without a valid token, while permits are short; `None` means a quarter of
    /// `max_connections`.
    pub connections_per_address: Option<usize>,
    /// Open exchanges and streams of one principal; `None` means a quarter of `max_connections`.
    pub exchanges_per_principal: Option<usize>,
    /// When a call without output turns into an event stream, on a 2025-11-25 session.
    pub sse_after: Duration,
    /// Interval of keep-alive comments on a quiet stream.
    pub keep_alive: Duration,
    /// Grace period of a drain.
    pub drain: Duration,
    /// How long quiet connections are still served, counted from the start of a drain.
    pub drain_linger: Duration,
    /// Paths of the 2024-11-05 transport; `None` when disabled.
    pub sse: Option<EventPaths>,
    /// Path of the WebSocket transport; `None` when disabled.
    pub websocket: Option<String>,
}

/// `[server.sse]`. Paths start with a slash and do not end with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPaths {
    /// Path of event streams.
    pub stream: String,
    /// Path of posted messages.
    pub messages: String,
}

/// `server.tls`.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// PEM file with the chain.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// Interval between checks of the files for a change.
    pub reload: Duration,
}

/// `[admin]`.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// Where to listen for probes, metrics and `/status`.
    pub listen: SocketAddr,
    /// Host names allowed besides addresses and loopback names.
    pub allowed_hosts: Vec<String>,
    /// Bearer token for requests from other machines; at least 16 bytes of printable ASCII.
    pub token: Option<Secret>,
}

/// `[health]`.
#[derive(Debug, Clone, Copy)]
pub struct HealthConfig {
    /// Interval between health checks of an upstream, from 1 s to 1 h; `None` disables them.
    pub interval: Option<Duration>,
}

/// `[sessions]`.
#[derive(Debug, Clone)]
pub struct SessionsConfig {
    /// Lifetime without a request or open stream.
    pub idle: Duration,
    /// Lifetime in any case, except for running calls of an implicit session.
    pub absolute: Duration,
    /// Live sessions of one principal.
    pub max_per_principal: usize,
    /// Live sessions.
    pub max_total: usize,
    /// Calls that run on after their connection broke, at once.
    pub max_detached: usize,
    /// How long a question that belongs to no call waits for a stream of its client.
    pub hold_question: Duration,
    /// Lifetime of a GET stream after its token expired.
    pub token_grace: Duration,
}

/// `[events]`.
#[derive(Debug, Clone)]
pub struct EventsConfig {
    /// How long an event can be replayed.
    pub max_age: Duration,
    /// Bytes kept per session.
    pub per_session: usize,
    /// Bytes kept in all.
    pub total: usize,
}

/// `[stdio]`.
#[derive(Debug, Clone)]
pub struct StdioConfig {
    /// Children at once.
    pub max_children: usize,
    /// Children of one principal at once.
    pub max_children_per_principal: usize,
    /// How long an unused child keeps running.
    pub idle: Duration,
    /// How long a caller waits for a permit under these caps.
    pub spawn_wait: Duration,
    /// Whether children may read each other's environment and memory.
    pub trust_children: bool,
}

/// `[lists]`.
#[derive(Debug, Clone)]
pub struct ListsConfig {
    /// How long a list of a legacy upstream is fresh; three times as long while its change notices arrive.
    pub fresh: Duration,
    /// All lists together, bytes.
    pub total: usize,
    /// Cache lifetime announced to 2026-07-28 clients for lists of upstreams that announce none.
    pub ttl: Duration,
}

/// `[limits]`.
#[derive(Debug, Clone)]
pub struct LimitsConfig {
    /// Request body, bytes.
    pub body: usize,
    /// Weight of the messages of one caller that are received or stored, bytes.
    pub bytes_per_principal: usize,
    /// Weight of the messages of all callers, bytes.
    pub bytes_total: usize,
    /// Weight of the replies for one caller that are received or not yet written, bytes.
    pub replies_per_principal: usize,
    /// Weight of the replies for all callers, bytes.
    pub replies_total: usize,
    /// Request head, bytes.
    pub headers: usize,
    /// One message from an upstream, bytes.
    pub upstream_message: usize,
    /// One event from an upstream, bytes.
    pub sse_event: usize,
    /// Nesting of a JSON message.
    pub json_depth: usize,
    /// Values in the parts of a client's JSON message that the gateway does not read.
    pub json_values: usize,
    /// Elements of a JSON-RPC array.
    pub batch: usize,
    /// Open GET streams of a session; each running call may have a stream beside them.
    pub streams_per_session: usize,
    /// Open subscriptions of an implicit session.
    pub subscriptions_per_session: usize,
    /// Running calls of a session.
    pub calls_per_session: usize,
    /// Running calls of a principal.
    pub calls_per_principal: usize,
    /// How long a request beyond these limits, or beyond the rate, waits.
    pub call_wait: Duration,
    /// Parked calls of a principal; further questions wait for `ask_wait`.
    pub parked_per_principal: usize,
    /// Parked calls waiting for answers to questions of one upstream.
    pub parked_per_upstream: usize,
    /// Parked calls.
    pub parked_total: usize,
    /// Tasks of 2025-11-25 per session.
    pub tasks_per_session: usize,
    /// Limits of tasks of 2025-11-25 that the gateway runs.
    pub hosted_tasks: HostedTaskLimits,
    /// Tasks that one subscription follows.
    pub tasks_per_subscription: usize,
    /// Bytes that a client of HTTP+SSE or WebSocket may leave unread.
    pub unread: usize,
    /// Requests of one principal.
    pub rate: RateConfig,
}

impl LimitsConfig {
    /// Limits of a client's message other than its bytes.
    #[must_use]
    pub fn of_messages(&self) -> MessageBounds {
        MessageBounds {
            depth: self.json_depth,
            values: self.json_values,
        }
    }
}

/// `[limits]` of tasks of 2025-11-25 that the gateway runs.
#[derive(Debug, Clone, Copy)]
pub struct HostedTaskLimits {
    /// How long a task is kept.
    pub ttl: Duration,
    /// Stored results of one principal, bytes.
    pub results_per_principal: usize,
    /// Stored results in all, bytes.
    pub results_total: usize,
}

/// A sustained rate with a burst of twice its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// Requests.
    pub count: u32,
    /// Per this period.
    pub per: Duration,
}

/// `[keys]`.
#[derive(Debug, Clone)]
pub struct KeysConfig {
    /// Sealing keys: the first seals, all open. Empty means a random key per process.
    pub seal: Vec<SealKey>,
    /// Keys of the vault: the first seals, all open. Empty means a key file in the state directory.
    pub vault: Vec<SealKey>,
    /// Position of the first of them that a file has, also the configuration itself: others come from variables.
    pub vault_in_file: Option<usize>,
}

/// One of `keys.seal` or `keys.vault`.
#[derive(Debug, Clone)]
pub struct SealKey {
    /// Short name, written into every handle.
    pub id: String,
    /// At least 32 bytes of key material.
    pub key: Secret,
}

/// `[telemetry]`.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// OTLP over HTTP; off when absent.
    pub otlp_endpoint: Option<Url>,
    /// Whether lines of successful requests are exported too.
    pub otlp_every_request: bool,
    /// Share of root traces that are recorded, 0 to 1.
    pub sample_ratio: f64,
    /// Rate of traces recorded beyond `sample_ratio` at the request of callers; a burst of one period's count.
    pub caller_traces: RateConfig,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Minimum levels of log lines, per target.
    pub log_level: LogLevels,
    /// `service.name`.
    pub service_name: String,
}

word_enum! {
    /// `telemetry.log_format`.
    pub enum LogFormat {
        /// One JSON object per line.
        Json = "json",
        /// Text for people.
        Text = "text",
    }
}
