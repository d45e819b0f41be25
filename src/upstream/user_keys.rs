//! `UserKeys`: the keys that callers have pasted for one upstream, one for each principal, from the vault.
//!
//! A call reads the vault's cache, and the headers that were made from the grant there; only the first one of a principal
//! waits for the database.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use moka::sync::Cache;

use super::account::Account;
use super::credentials::{Credential, Credentials, Requester, no_credential};
use super::user_accounts::{AccountKeeping, AccountState, UserAccounts};
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome, AuditSink};
use crate::call::OwnerKey;
use crate::cause::chain;
use crate::config::{UpstreamConfig, UserKeyConfig};
use crate::grants::{Challenge, HeldToken, PlacedToken, Renewal, TokenFailure};
use crate::vault::{
    AccountCheck, GrantKey, GrantKind, GrantRecord, StoredGrant, TokenPlacement, Vault,
};

/// Principals whose headers are kept.
const MAX_HELD: u64 = 10_000;

/// The keys of one upstream.
#[derive(Debug)]
pub(super) struct UserKeys {
    upstream: Arc<str>,
    /// The URL or program that gets the keys, for which users paste them.
    resource: String,
    placement: TokenPlacement,
    config: UserKeyConfig,
    /// Configured headers, which go with every key.
    fixed: HeaderMap,
    vault: Option<Vault>,
    audit: Option<AuditSink>,
    /// Headers by principal.
    held: Cache<OwnerKey, HeldKey>,
}

/// The headers that were made from a grant.
#[derive(Debug, Clone)]
struct HeldKey {
    version: i64,
    connection: i64,
    token: Arc<HeldToken>,
}

/// Why a principal has no key that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoKey {
    /// There is none for the URL and the header that the configuration has.
    Missing,
    /// The upstream refused it a moment ago.
    Refused,
}

impl From<NoKey> for TokenFailure {
    fn from(why: NoKey) -> Self {
        match why {
            NoKey::Missing => Self::not_connected(),
            NoKey::Refused => Self::refused(),
        }
    }
}

impl UserKeys {
    /// The keys of `upstream`, whose configured headers are `fixed`.
    pub(super) fn new(
        upstream: &UpstreamConfig,
        fixed: HeaderMap,
        (config, keeping): (&UserKeyConfig, Option<AccountKeeping<'_>>),
    ) -> Arc<Self> {
        Arc::new(Self {
            upstream: upstream.name.as_str().into(),
            resource: upstream.carrier.key_resource(),
            placement: TokenPlacement::of(&config.place),
            config: config.clone(),
            fixed,
            vault: keeping.map(|keeping| keeping.vault.clone()),
            audit: keeping.map(|keeping| keeping.audit.clone()),
            held: Cache::new(MAX_HELD),
        })
    }

    fn key(&self, owner: OwnerKey) -> GrantKey {
        GrantKey {
            owner,
            upstream: Arc::clone(&self.upstream),
        }
    }

    /// The key in the vault's cache; `None` if the cache has no entry.
    fn cached(&self, owner: OwnerKey) -> Option<Result<HeldKey, NoKey>> {
        let Some(vault) = &self.vault else {
            return Some(Err(NoKey::Missing));
        };
        let grant = vault.cached_grant(&self.key(owner))?;
        let grant = grant.ok_or(NoKey::Missing);
        Some(grant.and_then(|grant| self.held(vault, &grant)))
    }

    async fn read(&self, owner: OwnerKey) -> Result<Result<HeldKey, NoKey>, TokenFailure> {
        let Some(vault) = &self.vault else {
            return Ok(Err(NoKey::Missing));
        };
        let grant = vault.grant(&self.key(owner)).await?;
        if grant.is_none() {
            // Else `account_of` would name the key that was removed, once this leaves the vault's cache.
            self.held.invalidate(&owner);
        }
        let grant = grant.ok_or(NoKey::Missing);
        Ok(grant.and_then(|grant| self.held(vault, &grant)))
    }

    fn held(&self, vault: &Vault, grant: &StoredGrant) -> Result<HeldKey, NoKey> {
        if vault.counts_as_refused(grant) {
            return Err(NoKey::Refused);
        }
        vault.touch(grant);
        let owner = grant.key.owner;
        if let Some(held) = self.held.get(&owner)
            && held.version == grant.version
        {
            return Ok(held);
        }
        let placed = self.placed(&grant.record).ok_or(NoKey::Missing)?;
        let token = match grant.state.refused {
            None => HeldToken::lasting(placed),
            Some(_) => HeldToken::lasting(placed).on_trial(),
        };
        let held = HeldKey {
            version: grant.version,
            connection: grant.state.connection,
            token: Arc::new(token),
        };
        self.held.insert(owner, held.clone());
        Ok(held)
    }

    /// The token for a connection of `account`: that of another account is none. A connection from before the account was
    /// looked for, or there was one, has carried none.
    fn token_of(
        account: Account,
        held: Result<HeldKey, NoKey>,
    ) -> Result<Arc<HeldToken>, TokenFailure> {
        let held = held?;
        if [0, held.connection].contains(&account.connection()) {
            Ok(held.token)
        } else {
            Err(TokenFailure::replaced())
        }
    }

    /// Notes that the upstream refused the key `used`, or took it again. `false` where another key is kept by now.
    async fn note(&self, owner: OwnerKey, used: &Arc<HeldToken>, is_refused: bool) -> bool {
        let held = self.held.get(&owner);
        let held = held.filter(|held| Arc::ptr_eq(&held.token, used));
        let (Some(held), Some(vault)) = (held, &self.vault) else {
            return false;
        };
        let (key, upstream) = (self.key(owner), &*self.upstream);
        match vault.mark_refused(&key, held.version, is_refused).await {
            Ok(true) if is_refused => {
                tracing::warn!(
                    upstream, %owner,
                    "upstream refused a pasted key with HTTP status 401: its user is asked for another, and it is tried again in a minute"
                );
                if let Some(audit) = &self.audit {
                    let record = AccountRecord::new(AccountEvent::Refused, owner, upstream);
                    audit.account(record.reason(AuditOutcome::Denied, "upstream_401"));
                }
            }
            Ok(true) => {
                tracing::info!(upstream, %owner, "upstream takes a pasted key again that it had refused");
            }
            Ok(false) => {}
            Err(error) => tracing::error!(
                upstream, %owner, error = chain(&error), "refusal of a pasted key cannot be noted"
            ),
        }
        true
    }

    /// The key of `record` where it goes; `None` where it was pasted for another place than the configuration has now.
    fn placed(&self, record: &GrantRecord) -> Option<PlacedToken> {
        let is_ours = record.kind == GrantKind::UserKey
            && record.resource == self.resource
            && record.placement == self.placement;
        let key = record.access_token.as_ref().filter(|_| is_ours)?;
        PlacedToken::new(&self.fixed, &self.config.place, key)
    }
}

/// The state of the account by its held key.
fn state_of(held: Result<HeldKey, NoKey>) -> AccountState {
    match held {
        Ok(held) => AccountState::Connected(held.connection),
        Err(NoKey::Missing) => AccountState::Missing,
        Err(NoKey::Refused) => AccountState::Refused,
    }
}

impl UserAccounts for UserKeys {
    fn known(&self, owner: OwnerKey) -> Option<AccountState> {
        self.cached(owner).map(state_of)
    }

    fn check(&self, owner: OwnerKey) -> Option<AccountCheck> {
        let generation = self.vault.as_ref()?.generation(owner);
        let held = self.cached(owner)?.ok()?;
        Some(AccountCheck::new(held.connection, generation, None))
    }

    fn look_up(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>> {
        async move { self.read(owner).await.map(state_of) }.boxed()
    }

    fn grant_names(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.upstream)]
    }
}

impl Credentials for UserKeys {
    fn account_of(&self, owner: OwnerKey) -> Account {
        if owner.is_gateway() {
            return Account::Common;
        }
        let known = self.vault.as_ref();
        let known = known.and_then(|vault| vault.cached_grant(&self.key(owner)));
        let connection = match known {
            Some(grant) => grant.map(|grant| grant.state.connection),
            // Changed a moment ago: most changes are of the same account, and a request finds out.
            None => self.held.get(&owner).map(|held| held.connection),
        };
        Account::Connected(owner, connection.unwrap_or_default())
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        let account = requester.account;
        if account == Account::Common {
            return Credential::Ready(&self.fixed);
        }
        let Account::Connected(owner, _) = account else {
            return no_credential(TokenFailure::not_connected());
        };
        let Some(cached) = self.cached(owner) else {
            let read = async move { Ok(Self::token_of(account, self.read(owner).await?)?) };
            return Credential::Awaited(read.boxed());
        };
        match Self::token_of(account, cached) {
            Ok(token) => Credential::Held(token),
            Err(failure) => no_credential(failure),
        }
    }

    fn generation(&self, owner: OwnerKey) -> Option<u64> {
        Some(self.vault.as_ref()?.generation(owner))
    }

    /// No caller is there: a refusal tells as much as any other answer.
    fn for_check(&self, _requester: &Requester) -> Credential<'_> {
        Credential::Ready(&self.fixed)
    }

    fn refused(
        &self,
        requester: &Requester,
        used: Arc<HeldToken>,
        status: StatusCode,
        _challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        let account = requester.account;
        let refused = async move {
            let Account::Connected(owner, _) = account else {
                return Ok(Renewal::Stands);
            };
            if status != StatusCode::UNAUTHORIZED {
                return Ok(Renewal::Stands);
            }
            if self.note(owner, &used, true).await {
                Err(TokenFailure::refused())
            } else {
                Err(TokenFailure::replaced())
            }
        };
        refused.boxed()
    }

    fn accepted(&self, account: Account, used: Arc<HeldToken>) -> BoxFuture<'_, ()> {
        let accepted = async move {
            if let Account::Connected(owner, _) = account {
                self.note(owner, &used, false).await;
            }
        };
        accepted.boxed()
    }
}

#[cfg(test)]
mod tests;
