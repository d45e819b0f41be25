//! `[mcp]` and `[endpoints.<name>]` as typed values.

use std::time::Duration;

use super::words::{ConfigWord, word_enum};

/// `[mcp]`, the merged endpoint.
#[derive(Debug, Clone)]
pub struct MergedConfig {
    /// Whether `/mcp` is served.
    pub enabled: bool,
    /// Upstreams shown, in this order.
    pub upstreams: Vec<String>,
    /// When names get a prefix.
    pub prefix: PrefixRule,
    /// How long a merged list waits for one upstream.
    pub connect_wait: Duration,
    /// How long a merged list waits for an upstream, counted from the upstream's first start.
    pub first_wait: Duration,
    /// Upstreams that are started, and whose lists are fetched, at the start.
    pub warm: Vec<String>,
    /// Whether clients are notified of changed lists.
    pub list_changed: bool,
    /// The name of merged endpoints that clients display.
    pub title: String,
    /// The operator's instructions, put before those of the upstreams.
    pub instructions: Option<String>,
    /// Required scopes; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to request at login; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Accepted audiences besides the resource identifier.
    pub audiences: Vec<String>,
}

word_enum! {
    /// `mcp.prefix`.
    pub enum PrefixRule {
        /// No prefix for a single upstream.
        Auto = "auto",
        /// Always.
        Always = "always",
    }
}

/// `[endpoints.<name>]`.
#[derive(Debug, Clone)]
pub struct NamedEndpoint {
    /// Upstreams shown, in this order.
    pub upstreams: Vec<String>,
    /// Tools shown, as `upstream:pattern`; empty means all.
    pub tools: Vec<String>,
    /// Required scopes; empty means `auth.required_scopes`.
    pub required_scopes: Vec<String>,
    /// Scopes to request at login; empty means `auth.login_scopes`.
    pub login_scopes: Vec<String>,
    /// Accepted audiences besides the resource identifier.
    pub audiences: Vec<String>,
    /// Accepted issuers; empty means all.
    pub issuers: Vec<String>,
}
