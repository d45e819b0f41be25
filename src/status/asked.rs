//! The findings of `check --online`: the entries of `/status` after each issuer and upstream was asked once.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{IssuerStatus, UpstreamState, UpstreamStatus};
use crate::config::ConfigDoubt;

/// Issuers and upstreams that were each asked once. Its size is bounded by the configuration.
#[derive(Debug, Clone, Serialize)]
pub struct AskedOnce {
    /// Every issuer, in the order of the configuration.
    pub issuers: Vec<IssuerStatus>,
    /// Every upstream, by name.
    pub upstreams: Vec<AskedUpstream>,
    /// Doubts about the configuration that the answers raise.
    #[serde(skip)]
    pub doubts: Vec<ConfigDoubt>,
}

/// One upstream, and the lengths of its lists.
#[derive(Debug, Clone, Serialize)]
pub struct AskedUpstream {
    /// The entry as in `/status`: `up` where all requests succeeded, `degraded` where the upstream was opened and then
    /// failed, `down` where it could not be opened.
    #[serde(flatten)]
    pub status: UpstreamStatus,
    /// Number of entries of each list, by the list's name in MCP (`tools`, `resourceTemplates`).
    pub lists: BTreeMap<String, u64>,
}

impl AskedOnce {
    /// Whether every upstream is up, and no issuer has a cause.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_up = |one: &AskedUpstream| one.status.state == UpstreamState::Up;
        self.upstreams.iter().all(is_up) && self.issuers.iter().all(|one| one.cause.is_none())
    }
}
