//! An endpoint: one URL path, its own OAuth resource, showing one or more upstreams.

use std::sync::Arc;

/// What one path shows, and to whom. Built once from the configuration.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `mcp` for the merged endpoint, else the last path segment.
    pub name: Arc<str>,
    /// The path below `public_url`: `/mcp` or `/mcp/<name>`.
    pub path: String,
    /// The resource identifier: `public_url` + path, without a trailing slash. Spec: RFC 9728 §1.2.
    pub resource: String,
    /// URL of this endpoint's metadata, path-aware. Spec: RFC 9728 §3.1.
    pub metadata_url: String,
    /// Upstreams shown, in configured order.
    pub upstreams: Vec<Arc<str>>,
    /// Whether names and URIs pass unchanged.
    pub pure: bool,
    /// Scopes that every request needs.
    pub required_scopes: Vec<String>,
    /// Audiences accepted besides `resource`.
    pub audiences: Vec<String>,
    /// Issuers accepted; empty means all configured.
    pub issuers: Vec<String>,
    /// Tools shown, as (upstream, pattern); empty means all.
    pub tools: Vec<(String, String)>,
}
