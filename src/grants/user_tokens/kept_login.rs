//! Kept logins: the state of a login, and its ID token.

use std::sync::Arc;

use super::UserTokens;
use super::refresh::RefreshCause;
use crate::grants::failure::TokenFailure;
use crate::lock::lock;
use crate::secret::Secret;
use crate::vault::{GrantKey, StoredGrant};

/// What is known of the kept login of a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginState {
    /// It has an ID token, or gets the next one, with the number of its connection.
    Kept(i64),
    /// Its ID token has ended, and nothing gets the next one.
    Ended(i64),
    /// There is none.
    Missing,
}

impl UserTokens {
    /// What memory says of the login of `key`; `None` where the database has to be asked. No waiting, no refresh.
    pub(in crate::grants) fn known_login(&self, key: &GrantKey) -> Option<LoginState> {
        let grant = self.vault().cached_grant(key)?;
        Some(grant.map_or(LoginState::Missing, |grant| self.login_of(&grant)))
    }

    /// What the database says of the login of `key`. No refresh.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(in crate::grants) async fn read_login(
        &self,
        key: &GrantKey,
    ) -> Result<LoginState, TokenFailure> {
        let Some(grant) = self.vault().grant(key).await? else {
            // Else `connection` would name the login that was removed, once this leaves the vault's cache.
            self.refreshes.held.forget(key);
            return Ok(LoginState::Missing);
        };
        Ok(self.login_of(&grant))
    }

    fn login_of(&self, grant: &StoredGrant) -> LoginState {
        self.vault().touch(grant);
        let (held, connection) = (self.refreshes.held.of(grant), grant.state.connection);
        match &held.token {
            // The provider has given none for the refresh token; what the last one obtained may still be good.
            None if grant.record.access_token.is_none() => LoginState::Ended(connection),
            None => LoginState::Missing,
            Some(token) if token.has_ended() && !held.is_refreshable => {
                LoginState::Ended(connection)
            }
            Some(_) => LoginState::Kept(connection),
        }
    }

    /// The ID token of the login of `key`, refreshed where it has ended.
    ///
    /// # Errors
    /// As for [`token`](Self::token).
    ///
    /// # Cancel safety
    /// As for [`token`](Self::token).
    pub(in crate::grants) async fn id_token(
        self: Arc<Self>,
        key: GrantKey,
    ) -> Result<Secret, TokenFailure> {
        Arc::clone(&self).token(key.clone()).await?;
        self.stored_token(&key).await
    }

    /// Another ID token than `refused` for the login of `key`; `None` where there is none, or one was had less than a
    /// minute ago.
    ///
    /// # Errors
    /// As for [`token`](Self::token).
    ///
    /// # Cancel safety
    /// As for [`token`](Self::token).
    pub(in crate::grants) async fn another_id_token(
        self: Arc<Self>,
        key: GrantKey,
        refused: &Secret,
    ) -> Result<Option<Secret>, TokenFailure> {
        let grant = self.vault().grant(&key).await?;
        let grant = grant.ok_or_else(TokenFailure::not_connected)?;
        let current = grant.record.access_token.as_ref();
        if let Some(current) = current.filter(|current| current.expose() != refused.expose()) {
            return Ok(Some(current.clone()));
        }
        let is_refreshable = self.refreshes.held.of(&grant).is_refreshable;
        if !is_refreshable || lock(&self.refreshes.state(&key)).force(grant.version)? {
            return Ok(None);
        }
        let refreshed = self
            .refreshes
            .refreshed(key.clone(), &grant, RefreshCause::Refusal);
        refreshed.await?;
        self.stored_token(&key).await.map(Some)
    }

    async fn stored_token(&self, key: &GrantKey) -> Result<Secret, TokenFailure> {
        let grant = self.vault().grant(key).await?;
        let token = grant.and_then(|grant| grant.record.access_token.clone());
        token.ok_or_else(TokenFailure::not_connected)
    }
}
