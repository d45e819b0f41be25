//! `/status`: the state of a running gateway, as JSON and as text for people. It holds no secret, no URL of an upstream
//! and no data of callers; its size is bounded by the configuration.

mod account_table;
mod asked;
mod text;

pub use text::TextTable;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::asked::{AskedLogin, AskedOnce, AskedStore, AskedUpstream};
use crate::cause::ErrorCause;

/// The state of a gateway at one moment. Texts are single lines.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// The version of the program.
    pub version: String,
    /// When this snapshot was taken, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Whether the gateway is draining and accepts no new work.
    pub draining: bool,
    /// Whether children of stdio upstreams can read each other's environment and memory: `isolated` (they cannot),
    /// `trusted` (`stdio.trust_children`) or `unsupported` (Landlock cannot be used); absent without such upstreams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<String>,
    /// The other replicas; absent without `[cluster]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Every upstream, by name.
    pub upstreams: Vec<UpstreamStatus>,
    /// Every issuer, in the order of the configuration.
    pub issuers: Vec<IssuerStatus>,
}

/// The view that this replica has of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The number of this replica, hexadecimal; each start has a new one.
    pub node: String,
    /// Milliseconds left of this replica's lease; 0 without a lease.
    pub lease_ms: u64,
    /// Whether this replica is fenced: it does not serve its sessions, since other replicas may have adopted them.
    #[serde(default)]
    pub fenced: bool,
    /// Whether Redis is connected.
    pub redis: bool,
    /// All replicas with a lease; this replica comes first.
    pub replicas: Vec<ReplicaStatus>,
}

/// One replica.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Number of the replica, hexadecimal.
    pub node: String,
    /// Address of its internal listener.
    pub address: String,
    /// Release of the replica.
    pub version: String,
    /// Whether this entry is the answering replica.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether it drains.
    #[serde(default)]
    pub draining: bool,
    /// Whether its configuration equals this replica's, except for keys that may differ.
    pub same_configuration: bool,
}

/// Health of an upstream. The numbers are those of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamState {
    /// No attempt to reach the upstream has ended yet.
    Connecting = 0,
    /// The last attempt reached the upstream.
    Up = 1,
    /// The last attempt failed.
    Degraded = 2,
    /// Several attempts in a row failed.
    Down = 3,
}

/// One upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// Its name in the configuration.
    pub name: String,
    /// `stdio`, `auto`, `streamable`, `sse` or `websocket`.
    pub transport: String,
    /// Health.
    pub state: UpstreamState,
    /// Since when it has this state, RFC 3339 in UTC.
    pub since: String,
    /// Seconds in this state.
    pub since_s: u64,
    /// Why the upstream is not reached; while it is reached, why a call of the last 70 s failed.
    pub cause: Option<CauseStatus>,
    /// The account of its requests, or the accounts of callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountStatus>,
    /// `legacy` or `modern`; absent while unknown.
    pub era: Option<String>,
    /// Protocol revision used most recently.
    pub revision: Option<String>,
    /// Open sessions at the upstream.
    pub sessions: u64,
    /// Running children of the upstream.
    pub children: u64,
    /// Calls waiting for an answer.
    pub calls_in_flight: u64,
    /// Calls per minute, over the last 60 to 70 s.
    pub calls_per_minute: f64,
    /// Calls per minute that got a JSON-RPC error or no answer, over the same time.
    pub failures_per_minute: f64,
    /// Median duration of these calls, milliseconds; absent without calls.
    pub p50_ms: Option<f64>,
    /// 99th percentile of their duration, milliseconds.
    pub p99_ms: Option<f64>,
}

/// The account, or the accounts, of one upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AccountStatus {
    /// `client_credentials`, `token_exchange`, `id_jag`, `user` or `user_key`.
    pub kind: String,
    /// The accounts of callers, as of the last count; absent where callers connect none, and before the first count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<AccountNumbers>,
    /// Why the last token request failed, or why the upstream refused the token; absent after the next success.
    pub cause: Option<CauseStatus>,
}

/// Accounts of callers at one upstream, by whether calls can use them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountNumbers {
    /// They can be used.
    pub connected: u64,
    /// The upstream refused them last.
    pub refused: u64,
    /// Their token has ended, and nothing gets another one: their user has to connect again.
    pub ended: u64,
    /// They do not open: their key is missing, or they were edited in the database.
    pub unreadable: u64,
}

/// One issuer of tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IssuerStatus {
    /// Issuer identifier, without a query.
    pub issuer: String,
    /// Number of signature keys; absent before the first load.
    pub keys: Option<u64>,
    /// Seconds since the keys were loaded.
    pub keys_age_s: Option<u64>,
    /// Why the keys, or the issuer's answers about tokens, last failed; absent after the next success.
    pub cause: Option<CauseStatus>,
}

/// Why a part of the gateway fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CauseStatus {
    /// The error.
    pub text: String,
    /// The remedy for an operator, if one is known.
    pub remedy: Option<String>,
    /// When the error last occurred, RFC 3339 in UTC.
    pub at: String,
}

impl From<ErrorCause> for CauseStatus {
    fn from(cause: ErrorCause) -> Self {
        Self {
            text: cause.text,
            remedy: cause.remedy.map(std::borrow::Cow::into_owned),
            at: time_text(cause.at),
        }
    }
}

impl GatewayStatus {
    /// Whether no upstream is down or degraded, every issuer has keys or answers, and in a cluster Redis is connected
    /// and this replica has a lease and is not fenced.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_up = |one: &UpstreamStatus| {
            matches!(one.state, UpstreamState::Up | UpstreamState::Connecting)
        };
        let is_member =
            |cluster: &ClusterStatus| cluster.redis && cluster.lease_ms > 0 && !cluster.fenced;
        self.cluster.as_ref().is_none_or(is_member)
            && self.upstreams.iter().all(is_up)
            && self.issuers.iter().all(|one| one.cause.is_none())
    }
}

impl UpstreamState {
    /// The state as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

/// A time since the Unix epoch as RFC 3339 in UTC, to the second.
#[must_use]
pub fn time_text(at: Duration) -> String {
    let second = i64::try_from(at.as_secs()).ok();
    let at = second.and_then(|second| jiff::Timestamp::from_second(second).ok());
    at.unwrap_or_default().to_string()
}

/// Milliseconds, rounded to one decimal place.
#[must_use]
pub fn millis(took: Duration) -> f64 {
    tenth(took.as_secs_f64() * 1000.0)
}

/// A number rounded to one decimal place.
#[must_use]
pub fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
