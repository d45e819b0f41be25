//! `SharedAccounts`: links of accounts that several sessions may share, which end with the account.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::entries::RegistryEntry;
use crate::call::{OwnerKey, UpstreamLink as _};
use crate::config::Isolation;
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::link::shared::SharedLinks;

/// The links of accounts at all upstreams that several sessions may share.
#[derive(Debug, Clone, Copy)]
pub struct SharedAccounts<'a> {
    pub(super) entries: &'a HashMap<Arc<str>, RegistryEntry>,
    pub(super) shared: &'a SharedLinks,
    pub(super) tasks: &'a TaskSpawner,
}

impl SharedAccounts<'_> {
    /// Whether links of accounts of `owner` to `upstream` are kept.
    #[must_use]
    pub fn has(self, upstream: &str, owner: OwnerKey) -> bool {
        let entry = self.entries.get(upstream);
        let is_shared = entry.is_some_and(|it| it.settings.isolation != Isolation::Session);
        is_shared && self.shared.has_accounts(upstream, owner)
    }

    /// The principals whose accounts have links.
    #[must_use]
    pub fn owners(self) -> HashSet<OwnerKey> {
        self.shared.account_owners()
    }

    /// Ends the links to `upstream` of other accounts of `owner` than that of `connection`, with the calls that run on
    /// them: in the background.
    pub fn end_others(self, upstream: &str, owner: OwnerKey, connection: i64) {
        for link in self.shared.take_other_accounts(upstream, owner, connection) {
            self.tasks.spawn_service(async move { link.close().await });
        }
    }
}
