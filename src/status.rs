//! What a running gateway says of itself on `/status`: as JSON, and as text that people read. It holds no
//! secret, no URL of an upstream and nothing of callers; its size is bounded by the configuration.

mod asked;
mod text;

pub use text::TextTable;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::asked::{AskedOnce, AskedUpstream};
use crate::cause::ErrorCause;

/// A gateway at one moment. Texts are single lines.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// The version of the program.
    pub version: String,
    /// When this was true, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Whether it is about to stop and takes no new work.
    pub draining: bool,
    /// Whether children of stdio upstreams can read each other's environment and memory: `isolated` (they cannot),
    /// `trusted` (`stdio.trust_children`) or `unsupported` (the kernel has no Landlock); absent without such upstreams.
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

/// The cluster as one replica knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The number of this replica, hexadecimal: another one at each start.
    pub node: String,
    /// Milliseconds left of its lease; 0 where it has none.
    pub lease_ms: u64,
    /// Whether Redis is connected.
    pub redis: bool,
    /// Every replica with a lease, this one first.
    pub replicas: Vec<ReplicaStatus>,
}

/// One replica.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its number, hexadecimal.
    pub node: String,
    /// Where the others reach it.
    pub address: String,
    /// Its release.
    pub version: String,
    /// Whether it is the one that says this.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether its configuration is that of this replica, but for what may differ.
    pub same_configuration: bool,
}

/// How an upstream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamState {
    /// No attempt to reach it has ended yet.
    Connecting,
    /// It was reached at the last attempt.
    Up,
    /// The last attempt failed.
    Degraded,
    /// The last attempts failed.
    Down,
}

/// One upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// Its name in the configuration.
    pub name: String,
    /// `stdio`, `auto`, `streamable`, `sse` or `websocket`.
    pub transport: String,
    /// How it does.
    pub state: UpstreamState,
    /// Since when, RFC 3339 in UTC.
    pub since: String,
    /// For how many seconds.
    pub since_s: u64,
    /// Why it is not reached; while it is, why a call of the last 70 s failed.
    pub cause: Option<CauseStatus>,
    /// The account, or the accounts of callers, that its requests use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountStatus>,
    /// `legacy` or `modern`; absent while that is unknown.
    pub era: Option<String>,
    /// Protocol revision spoken most recently.
    pub revision: Option<String>,
    /// Open sessions with it.
    pub sessions: u64,
    /// Running children of it.
    pub children: u64,
    /// Calls without an answer yet.
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
    /// `client_credentials`, `token_exchange` or `user_key`.
    pub kind: String,
    /// Why the last token could not be had, or was refused; absent once one was had.
    pub cause: Option<CauseStatus>,
}

/// One issuer of tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IssuerStatus {
    /// Its identifier, without a query.
    pub issuer: String,
    /// Keys that verify signatures; absent before the first were loaded.
    pub keys: Option<u64>,
    /// Seconds since they were loaded.
    pub keys_age_s: Option<u64>,
    /// Why they, or its answers about tokens, could not be had last; absent once they can.
    pub cause: Option<CauseStatus>,
}

/// Why something fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CauseStatus {
    /// What is wrong.
    pub text: String,
    /// What an operator can do.
    pub remedy: Option<String>,
    /// When it was last seen, RFC 3339 in UTC.
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
    /// Whether no upstream is down or degraded, no issuer is without usable keys or answers, and in a cluster Redis is
    /// connected and there is a lease.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_up = |one: &UpstreamStatus| {
            matches!(one.state, UpstreamState::Up | UpstreamState::Connecting)
        };
        let is_member = |cluster: &ClusterStatus| cluster.redis && cluster.lease_ms > 0;
        self.cluster.as_ref().is_none_or(is_member)
            && self.upstreams.iter().all(is_up)
            && self.issuers.iter().all(|one| one.cause.is_none())
    }
}

impl UpstreamState {
    /// The word for it, as in JSON.
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

/// Milliseconds to one place behind the point.
#[must_use]
pub fn millis(took: Duration) -> f64 {
    tenth(took.as_secs_f64() * 1000.0)
}

/// A number to one place behind the point.
#[must_use]
pub fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
