//! The findings of `check --online`: the entries of `/status` after each issuer and upstream was asked once.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CauseStatus, IssuerStatus, UpstreamState, UpstreamStatus};
use crate::config::ConfigDoubt;

/// Issuers and upstreams that were each asked once. Its size is bounded by the configuration.
#[derive(Debug, Clone, Serialize)]
pub struct AskedOnce {
    /// Every issuer, in the order of the configuration.
    pub issuers: Vec<IssuerStatus>,
    /// Every upstream, by name.
    pub upstreams: Vec<AskedUpstream>,
    /// Every login for the connect pages, in the order of the configuration.
    pub logins: Vec<AskedLogin>,
    /// The servers that keep data of the gateway.
    pub stores: Vec<AskedStore>,
    /// Doubts about the configuration that the answers raise.
    #[serde(skip)]
    pub doubts: Vec<ConfigDoubt>,
}

/// One login for the connect pages.
#[derive(Debug, Clone, Serialize)]
pub struct AskedLogin {
    /// Where people log in.
    pub issuer: String,
    /// Why they could not; absent where its metadata has all that is needed.
    pub cause: Option<CauseStatus>,
}

/// A server that keeps data of the gateway.
#[derive(Debug, Clone, Serialize)]
pub struct AskedStore {
    /// `Redis` or `PostgreSQL`.
    pub name: String,
    /// Why it cannot be used; absent where it can.
    pub cause: Option<CauseStatus>,
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
    /// Whether it was not opened: its children are started with the tokens of callers, and none is here.
    #[serde(skip)]
    pub is_unopened: bool,
}

impl AskedOnce {
    /// Whether every upstream that could be opened is up, every account can be had, and no issuer, login or store has a
    /// cause.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let is_up = |one: &AskedUpstream| one.is_unopened || one.status.state == UpstreamState::Up;
        let has_account = |one: &AskedUpstream| {
            let account = one.status.account.as_ref();
            account.is_none_or(|account| account.cause.is_none())
        };
        self.upstreams
            .iter()
            .all(|one| is_up(one) && has_account(one))
            && self.issuers.iter().all(|one| one.cause.is_none())
            && self.logins.iter().all(|one| one.cause.is_none())
            && self.stores.iter().all(|one| one.cause.is_none())
    }
}
