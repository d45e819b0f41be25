//! Shared links of accounts that callers connect: they end with the account, whether sessions use them or not.

use std::collections::HashSet;
use std::sync::Arc;

use super::{PoolKey, SharedLinks};
use crate::call::OwnerKey;
use crate::upstream::account::Account;
use crate::upstream::link::negotiated::EraLink;

impl SharedLinks {
    /// Whether links of accounts of `owner` to `upstream` are kept.
    pub(in crate::upstream) fn has_accounts(&self, upstream: &str, owner: OwnerKey) -> bool {
        let mut all = self.0.iter();
        all.any(|entry| entry.key().connection_of(upstream, owner).is_some())
    }

    /// The principals whose accounts have links.
    pub(in crate::upstream) fn account_owners(&self) -> HashSet<OwnerKey> {
        let owners = self.0.iter().filter_map(|entry| match entry.key().account {
            Account::Connected(owner, _) => Some(owner),
            Account::Common | Account::Principal(_) => None,
        });
        owners.collect()
    }

    /// Takes the links to `upstream` of other accounts of `owner` than that of `connection`. A session that still has a
    /// place at one gets another link with its next call, as that looks for the account.
    pub(in crate::upstream) fn take_other_accounts(
        &self,
        upstream: &str,
        owner: OwnerKey,
        connection: i64,
    ) -> Vec<Arc<EraLink>> {
        let mut taken = Vec::new();
        self.0.retain(|key, pooled| {
            let of = key.connection_of(upstream, owner);
            let is_other = of.is_some_and(|of| of != connection);
            if is_other {
                taken.push(Arc::clone(&pooled.link));
            }
            !is_other
        });
        taken
    }
}

impl PoolKey {
    /// The connection number of the account, if it is one of `owner` at `upstream`.
    fn connection_of(&self, upstream: &str, owner: OwnerKey) -> Option<i64> {
        match self.account {
            Account::Connected(of, number) if of == owner && *self.upstream == *upstream => {
                Some(number)
            }
            _ => None,
        }
    }
}
