//! `CallerAccounts`: the accounts that callers have of their own, at all upstreams.

use std::collections::HashMap;
use std::sync::Arc;

use super::entries::RegistryEntry;
use crate::call::OwnerKey;
use crate::consent::LackingScopes;
use crate::grants::{LoginGrants, TokenFailure, UserTokens};
use crate::upstream::user_accounts::AccountState;
use crate::vault::{AccountCheck, GrantKey, Vault};

/// The accounts of callers.
#[derive(Debug, Clone, Copy)]
pub struct CallerAccounts<'a> {
    pub(super) entries: &'a HashMap<Arc<str>, RegistryEntry>,
    /// Whether there are any.
    pub(super) is_any: bool,
    /// The vault that keeps them.
    pub(super) vault: Option<&'a Vault>,
    /// The kept logins of callers, where an upstream needs them.
    pub(super) logins: Option<&'a LoginGrants>,
}

impl<'a> CallerAccounts<'a> {
    /// Whether callers have accounts of their own at any upstream.
    #[must_use]
    pub fn is_any(self) -> bool {
        self.is_any
    }

    /// Whether callers have accounts of their own at the upstream.
    #[must_use]
    pub fn has(self, upstream: &str) -> bool {
        // Most gateways have none, and their calls skip the look-up.
        self.is_any
            && self
                .entries
                .get(upstream)
                .is_some_and(|entry| entry.accounts.users.is_some())
    }

    /// The upstreams where callers have accounts of their own.
    pub fn upstreams(self) -> impl Iterator<Item = &'a str> {
        let with_users = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.accounts.users.is_some());
        with_users.map(|(name, _)| &**name)
    }

    /// The upstreams whose accounts are not used, and why.
    pub fn withheld(self) -> impl Iterator<Item = (Arc<str>, TokenFailure)> {
        let entries = self.entries.iter();
        entries.filter_map(|(name, entry)| {
            let withheld = entry.accounts.withheld.as_ref()?;
            Some((Arc::clone(name), withheld.clone()))
        })
    }

    /// The tokens of callers at each upstream where they agree at an authorization server, and those of their kept logins
    /// at each issuer.
    pub fn tokens(self) -> impl Iterator<Item = &'a Arc<UserTokens>> {
        let entries = self.entries.values();
        let of_upstreams = entries.filter_map(|entry| entry.accounts.tokens.as_ref());
        of_upstreams.chain(self.logins.into_iter().flat_map(LoginGrants::tokens))
    }

    /// The upstreams that the grant of `key` is an account at: one, or all upstreams that use a kept login.
    #[must_use]
    pub fn upstreams_of(self, key: &GrantKey) -> Vec<Arc<str>> {
        if let Some((name, _)) = self.entries.get_key_value(&key.upstream) {
            return vec![Arc::clone(name)];
        }
        let has_it = |entry: &RegistryEntry| {
            let users = entry.accounts.users.as_ref();
            users.is_some_and(|users| users.grant_names().contains(&key.upstream))
        };
        let entries = self.entries.iter().filter(|(_, entry)| has_it(entry));
        entries.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// The keys under which the vault may have the grant of `owner` for the upstream.
    #[must_use]
    pub fn grant_keys(self, upstream: &str, owner: OwnerKey) -> Vec<GrantKey> {
        let entry = self.entries.get(upstream);
        let users = entry.and_then(|entry| entry.accounts.users.as_ref());
        let names = users.map_or_else(Vec::new, |users| users.grant_names());
        let keys = names.into_iter();
        keys.map(|upstream| GrantKey { owner, upstream }).collect()
    }

    /// Whether `owner` has an account at the upstream that calls can use; `None` where callers have none of their own, and
    /// for the gateway itself. No waiting where the account was used lately.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn state(
        self,
        upstream: &str,
        owner: OwnerKey,
    ) -> Result<Option<AccountState>, TokenFailure> {
        let entry = self.entries.get(upstream).filter(|_| !owner.is_gateway());
        let Some(users) = entry.and_then(|entry| entry.accounts.users.as_ref()) else {
            return Ok(None);
        };
        match users.known(owner) {
            Some(known) => Ok(Some(known)),
            None => users.look_up(owner).await.map(Some),
        }
    }

    /// [`state`](Self::state) as the database has it, without waiting for a token to be refreshed: one
    /// that can be is connected.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn kept(
        self,
        upstream: &str,
        owner: OwnerKey,
    ) -> Result<Option<AccountState>, TokenFailure> {
        let entry = self.entries.get(upstream);
        match entry.and_then(|entry| entry.accounts.users.as_ref()) {
            Some(users) => users.kept(owner).await.map(Some),
            None => Ok(None),
        }
    }

    /// The scopes that the upstream has asked for, and the connection of `owner` lacks; `None` where it has not.
    #[must_use]
    pub fn wants_more(self, upstream: &str, owner: OwnerKey) -> Option<LackingScopes> {
        self.entries
            .get(upstream)?
            .accounts
            .users
            .as_ref()?
            .wants_more(owner)
    }

    /// The [`Vault::generation`] of the accounts of `owner`, where any are kept.
    #[must_use]
    pub fn generation(self, owner: OwnerKey) -> Option<u64> {
        Some(self.vault?.generation(owner))
    }

    /// How long calls of `owner` may use the account at the upstream without asking for its state again; `None` where each
    /// call asks. No waiting.
    #[must_use]
    pub fn check(self, upstream: &str, owner: OwnerKey) -> Option<AccountCheck> {
        let entry = self.entries.get(upstream)?;
        entry.accounts.users.as_ref()?.check(owner)
    }
}
