//! What `[mcp]` and `[endpoints.<name>]` become.

use std::time::Duration;

/// `[mcp]`, the merged endpoint.
#[derive(Debug, Clone)]
pub struct MergedConfig {
    /// Whether `/mcp` is served.
    pub enabled: bool,
    /// Upstreams shown, in order.
    pub upstreams: Vec<String>,
    /// When names get a prefix.
    pub prefix: PrefixRule,
    /// How long a merged list waits for one upstream.
    pub connect_wait: Duration,
    /// How long after the beginning of an upstream's first start a merged list waits for it.
    pub first_wait: Duration,
    /// Upstreams that are started and listed at start.
    pub warm: Vec<String>,
    /// Whether clients are told of changed lists.
    pub list_changed: bool,
    /// What clients show as the name of merged endpoints.
    pub title: String,
    /// What the operator has to say before the upstreams do.
    pub instructions: Option<String>,
    /// Scopes needed; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to ask for at login; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Audiences accepted besides the resource identifier.
    pub audiences: Vec<String>,
}

/// `mcp.prefix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixRule {
    /// None for a single upstream.
    Auto,
    /// Always.
    Always,
}

/// `[endpoints.<name>]`.
#[derive(Debug, Clone)]
pub struct NamedEndpoint {
    /// Upstreams shown, in order.
    pub upstreams: Vec<String>,
    /// Tools shown, as `upstream:pattern`; empty means all.
    pub tools: Vec<String>,
    /// Scopes needed; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to ask for at login; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Audiences accepted besides the resource identifier.
    pub audiences: Vec<String>,
    /// Issuers accepted; empty means all.
    pub issuers: Vec<String>,
}
