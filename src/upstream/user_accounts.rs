//! `UserAccounts`: the accounts of callers at one upstream, whatever their kind.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::credentials::Credentials;
use crate::audit::AuditSink;
use crate::call::OwnerKey;
use crate::consent::LackingScopes;
use crate::grants::TokenFailure;
use crate::vault::{AccountCheck, Vault};

/// The vault of callers' accounts, and their audit log.
#[derive(Debug, Clone, Copy)]
pub struct AccountKeeping<'a> {
    pub(super) vault: &'a Vault,
    pub(super) audit: &'a AuditSink,
}

impl<'a> AccountKeeping<'a> {
    /// Accounts whose grants are in `vault`, and their audit records in `audit`.
    #[must_use]
    pub fn new(vault: &'a Vault, audit: &'a AuditSink) -> Self {
        Self { vault, audit }
    }
}

/// Whether calls of a principal can reach the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountState {
    /// There is an account whose credential can be sent, with the number of its connection.
    Connected(i64),
    /// The user has to connect one.
    Missing,
    /// The upstream refused it: the user has to connect again, or another one.
    Refused,
}

impl AccountState {
    /// Whether calls can go on.
    #[must_use]
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected(_))
    }
}

/// The accounts of one upstream, one for each principal. The gateway itself has none: its requests carry the configured
/// headers alone, and are of the account that is common to all.
pub(super) trait UserAccounts: Credentials {
    /// The state of the account of `owner` in memory; `None` if the database has to be asked. No waiting.
    fn known(&self, owner: OwnerKey) -> Option<AccountState>;

    /// How long calls of `owner` go on without asking again; `None` where they cannot go on, and where each call asks. No
    /// waiting.
    fn check(&self, _owner: OwnerKey) -> Option<AccountCheck> {
        None
    }

    /// The state of the account of `owner` in the database; [`known`](Self::known) returns it from then on. Fails if the
    /// database does. Dropping the future changes nothing.
    fn look_up(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>>;

    /// The state of the account of `owner` in the database, without a refresh: an expired token that can be refreshed
    /// counts as connected. Fails if the database does. Dropping the future changes nothing.
    fn kept(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>> {
        self.look_up(owner)
    }

    /// The names by which the vault has grants. Each principal has its grant by one of these names.
    fn grant_names(&self) -> Vec<Arc<str>>;

    /// The scopes that the upstream has asked for, and the connection of `owner` lacks. No waiting.
    fn wants_more(&self, _owner: OwnerKey) -> Option<LackingScopes> {
        None
    }
}
