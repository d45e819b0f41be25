//! `UserTokens`: the tokens of all principals at one upstream, read from the vault.
//!
//! A call reads the vault's cache of grants and the headers cached for that grant: no lock, no database. Only the first
//! call of a principal reads the database. Only a call without a valid token waits for a refresh; all calls of this
//! process share one, and the grant's lease lets one process refresh at a time.
//! Spec: SPEC B-11, B-12, B-14

mod held_grants;
mod kept_login;
mod refresh;
mod refreshes;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use tokio::time::timeout;

use self::held_grants::HeldGrant;
pub use self::kept_login::LoginState;
use self::refresh::RefreshCause;
use self::refreshes::TokenRefreshes;
use super::challenge::Challenge;
use super::failure::TokenFailure;
use super::held_token::{HeldToken, NEXT_WITHIN};
use super::source_state::Outcome;
use super::token_source::Renewal;
use super::user_account::UserAccount;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::call::OwnerKey;
use crate::lock::lock;
use crate::vault::{GrantKey, StoredGrant, Vault};

/// The tokens of all principals at one upstream.
#[derive(Debug)]
pub struct UserTokens {
    account: Arc<UserAccount>,
    refreshes: Arc<TokenRefreshes>,
}

/// The state of a principal's token, known without waiting.
#[derive(Debug)]
pub enum UserToken {
    /// Valid.
    Good(Arc<HeldToken>),
    /// Missing; only the user can change that.
    Missing,
    /// The upstream refused it less than a minute ago.
    Refused,
    /// Unknown without waiting: the database must be read, or the token refreshed.
    Awaited,
}

impl UserTokens {
    /// The tokens of `account`.
    #[must_use]
    pub fn new(account: Arc<UserAccount>) -> Arc<Self> {
        Arc::new(Self {
            refreshes: Arc::new(TokenRefreshes::new(Arc::clone(&account))),
            account,
        })
    }

    /// The settings of the accounts.
    #[must_use]
    pub fn account(&self) -> &Arc<UserAccount> {
        &self.account
    }

    /// The state of the token of `key`. Starts a refresh in the background when one is due.
    #[must_use]
    pub fn held(self: &Arc<Self>, key: &GrantKey) -> UserToken {
        match self.vault().cached_grant(key) {
            None => UserToken::Awaited,
            Some(None) => UserToken::Missing,
            Some(Some(grant)) => self.token_of(&grant),
        }
    }

    /// The [`Vault::generation`] of the grants of `owner`.
    #[must_use]
    pub fn generation(&self, owner: OwnerKey) -> u64 {
        self.vault().generation(owner)
    }

    /// The connection number of `key`, if it is cached.
    #[must_use]
    pub fn connection(&self, key: &GrantKey) -> Option<i64> {
        match self.vault().cached_grant(key) {
            Some(grant) => grant.map(|grant| grant.state.connection),
            // The grant has just left the vault's cache: most changes are refreshes of the same account, and the next
            // request checks.
            None => self
                .refreshes
                .held
                .get(key)?
                .token
                .as_ref()
                .map(|token| token.connection()),
        }
    }

    /// The token of `key`: reads the database, or refreshes the token, where needed.
    ///
    /// # Errors
    /// Why there is none: where [`asks_user`](TokenFailure::asks_user), its user has to connect. Other failures are
    /// cached for 0.5 to 15 s.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    pub async fn token(self: Arc<Self>, key: GrantKey) -> Outcome {
        let Some(grant) = self.vault().grant(&key).await? else {
            self.refreshes.held.forget(&key);
            return Err(TokenFailure::not_connected());
        };
        match self.token_of(&grant) {
            UserToken::Good(token) => Ok(token),
            UserToken::Missing => Err(TokenFailure::not_connected()),
            UserToken::Refused => Err(TokenFailure::refused()),
            UserToken::Awaited => {
                if let Some(failure) = lock(&self.refreshes.state(&key))
                    .source
                    .current_failure(None)
                {
                    return Err(failure.clone());
                }
                self.refreshes
                    .refreshed(key, &grant, RefreshCause::Age)
                    .await
            }
        }
    }

    /// The token of `key` for a child, which keeps it: the one that is being got in place of `due`, waited for 5 s at most,
    /// else `due`.
    ///
    /// # Errors
    /// The refresh has found that the user has to connect.
    ///
    /// # Cancel safety
    /// As for [`token`](Self::token).
    pub async fn next(&self, key: &GrantKey, due: Arc<HeldToken>) -> Outcome {
        let Some(running) = self.refreshes.running(key) else {
            return Ok(due);
        };
        match timeout(NEXT_WITHIN, running.result()).await {
            Ok(Some(Ok(next))) => Ok(next),
            Ok(Some(Err(failure))) if failure.asks_user() => Err(failure),
            Ok(_) | Err(_) => Ok(due),
        }
    }

    /// The state of the token of `key` after reading the database or refreshing the token where needed; never
    /// [`UserToken::Awaited`].
    ///
    /// # Errors
    /// The database or the refresh fails.
    ///
    /// # Cancel safety
    /// As for [`token`](Self::token).
    pub async fn look_up(self: Arc<Self>, key: GrantKey) -> Result<UserToken, TokenFailure> {
        match Arc::clone(&self).token(key.clone()).await {
            Ok(token) => Ok(UserToken::Good(token)),
            // The grant may have changed meanwhile: read the state again.
            Err(failure) if failure.asks_user() => Ok(match self.held(&key) {
                UserToken::Awaited => UserToken::Missing,
                known => known,
            }),
            Err(failure) => Err(failure),
        }
    }

    /// The state of the token of `key` in the database, and its connection number. Does not wait for a refresh.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn kept(self: &Arc<Self>, key: &GrantKey) -> Result<(UserToken, i64), TokenFailure> {
        let Some(grant) = self.vault().grant(key).await? else {
            // Else `connection` would name the account that was removed, once this leaves the vault's cache.
            self.refreshes.held.forget(key);
            return Ok((UserToken::Missing, 0));
        };
        Ok((self.token_of(&grant), grant.state.connection))
    }

    /// Records that the upstream accepted `used`, which is on trial.
    ///
    /// # Cancel safety
    /// Recorded or not: the next request reports it again.
    pub async fn accepted(&self, key: &GrantKey, used: &Arc<HeldToken>) {
        let held = self.refreshes.held.get(key);
        let is_current = |held: &Arc<HeldGrant>| {
            held.token
                .as_ref()
                .is_some_and(|token| Arc::ptr_eq(token, used))
        };
        if let Some(held) = held.filter(is_current) {
            self.mark(key, held.version, false).await;
        }
    }

    /// Decides about an answer to a request of `key` that carried `used`. A 401 causes a refresh, once a minute at
    /// most; a 403 that names scopes asks the user, three times for the same scopes.
    ///
    /// # Errors
    /// No other token can be had, or the user has to act.
    ///
    /// # Cancel safety
    /// As for [`token`](Self::token).
    // Spec: SPEC B-11
    pub async fn answered(
        self: Arc<Self>,
        key: GrantKey,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> Result<Renewal, TokenFailure> {
        let Some(grant) = self.vault().grant(&key).await? else {
            return Err(TokenFailure::not_connected());
        };
        let held = self.refreshes.held.of(&grant);
        let is_another = |token: &&Arc<HeldToken>| !Arc::ptr_eq(token, &used) && !token.has_ended();
        if held.token.as_ref().is_some_and(|token| is_another(&token)) {
            return Ok(Renewal::Renewed);
        }
        if status != StatusCode::UNAUTHORIZED {
            return self.lacks_scopes(&grant, &challenge);
        }
        let is_fresh = lock(&self.refreshes.state(&key)).force(grant.version)?;
        // The upstream may have changed its authorization server: the user is sent to the present one.
        self.account.forget();
        if is_fresh || !held.is_refreshable {
            self.account.log.refused(status.as_u16());
            self.mark(&key, grant.version, true).await;
            return Err(TokenFailure::refused());
        }
        let refreshed = self
            .refreshes
            .refreshed(key.clone(), &grant, RefreshCause::Refusal);
        match refreshed.await {
            Ok(_) => Ok(Renewal::Renewed),
            Err(failure) => {
                if failure.asks_user() {
                    // The grant may still exist, with a token that the upstream alone refuses.
                    self.mark(&key, grant.version, true).await;
                }
                Err(failure)
            }
        }
    }

    /// Scopes that challenges of the upstream named for `key` and that its grant lacks; none once its user has connected
    /// again.
    #[must_use]
    pub fn wider(&self, key: &GrantKey) -> Vec<String> {
        let Some(state) = self.refreshes.known_state(key) else {
            return Vec::new();
        };
        let connection = self.connection(key);
        let state = lock(&state);
        // The user may have connected again at another replica.
        if connection.is_some_and(|connection| connection != state.lacking) {
            return Vec::new();
        }
        state.source.further.clone()
    }

    /// Clears [`wider`](Self::wider), once the user was asked for these scopes.
    pub fn forget_wider(&self, key: &GrantKey) {
        if let Some(state) = self.refreshes.known_state(key) {
            lock(&state).source.further.clear();
        }
    }

    fn lacks_scopes(
        &self,
        grant: &StoredGrant,
        challenge: &Challenge,
    ) -> Result<Renewal, TokenFailure> {
        let is_fixed = !self.account.config.scopes.is_empty();
        let lacks = |scope: &&String| !grant.record.scopes.contains(scope);
        let wanted: BTreeSet<String> = challenge.scopes.iter().filter(lacks).cloned().collect();
        let asks = !is_fixed && challenge.asks_for_scopes(StatusCode::FORBIDDEN);
        let state = self.refreshes.state(&grant.key);
        let mut state = lock(&state);
        if !asks || wanted.is_empty() || state.source.count_step_up(&wanted).is_none() {
            self.account.log.refused(StatusCode::FORBIDDEN.as_u16());
            return Ok(Renewal::Stands);
        }
        let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let names = names.join(" ");
        state.source.further = wanted.into_iter().collect();
        state.lacking = grant.state.connection;
        Err(TokenFailure::needs_scopes(&names, grant.state.connection))
    }

    async fn mark(&self, key: &GrantKey, version: i64, is_refused: bool) {
        match self.vault().mark_refused(key, version, is_refused).await {
            Ok(true) if is_refused => {
                let record = AccountRecord::new(AccountEvent::Refused, key.owner, &key.upstream);
                let record = record.reason(AuditOutcome::Denied, "upstream_401");
                self.account.audit.account(record);
            }
            Ok(_) => {}
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(upstream = %key.upstream, error, "cannot note whether an account is refused");
            }
        }
    }

    fn token_of(self: &Arc<Self>, grant: &Arc<StoredGrant>) -> UserToken {
        if self.vault().counts_as_refused(grant) {
            return UserToken::Refused;
        }
        self.vault().touch(grant);
        let held = self.refreshes.held.of(grant);
        let Some(token) = &held.token else {
            return UserToken::Missing;
        };
        match (token.has_ended(), held.is_refreshable) {
            (false, is_refreshable) => {
                if is_refreshable && token.is_due() {
                    self.refreshes.refresh_ahead(grant);
                }
                UserToken::Good(Arc::clone(token))
            }
            (true, true) => UserToken::Awaited,
            (true, false) => UserToken::Missing,
        }
    }

    fn vault(&self) -> &Vault {
        &self.account.vault
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::authorization::account_with;
    use super::refresh::tests::{key, record};
    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use crate::vault::samples::vault;

    #[tokio::test]
    async fn removed_account_has_no_connection() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = UserTokens::new(account_with(&dir, "").await);
        let (here, there) = (tokens.vault().clone(), vault(&dir).await);
        here.poll_changes().await.unwrap();
        let record = record("token", None, "https://as.test/token");
        for reading in ["state", "token", "login"] {
            here.put_grant(&key(), &record).await.unwrap();
            let (state, connection) = tokens.kept(&key()).await.unwrap();
            assert!(matches!(state, UserToken::Good(_)), "{state:?}");
            assert_eq!(tokens.connection(&key()), Some(connection));
            here.remove_grant(&key()).await.unwrap();
            match reading {
                "token" => drop(Arc::clone(&tokens).token(key()).await.unwrap_err()),
                "login" => assert_eq!(
                    tokens.read_login(&key()).await.unwrap(),
                    LoginState::Missing
                ),
                _ => drop(tokens.kept(&key()).await.unwrap()),
            }
            // Has it leave the cache of the vault.
            there.put_grant(&key(), &record).await.unwrap();
            there.remove_grant(&key()).await.unwrap();
            here.poll_changes().await.unwrap();
            assert!(here.cached_grant(&key()).is_none());
            assert_eq!(tokens.connection(&key()), None, "{reading}");
        }
    }

    // As after a callback that another replica has answered.
    #[tokio::test]
    async fn scopes_are_wanted_until_the_user_connects_again_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = UserTokens::new(account_with(&dir, "").await);
        let (here, there) = (tokens.vault().clone(), vault(&dir).await);
        here.poll_changes().await.unwrap();
        let record = record("token", None, "https://as.test/token");
        here.put_grant(&key(), &record).await.unwrap();
        let used = Arc::clone(&tokens).token(key()).await.unwrap();
        let challenge = Challenge {
            error: Some("insufficient_scope".to_owned()),
            scopes: vec!["more".to_owned()],
            ..Challenge::default()
        };
        let answered = Arc::clone(&tokens).answered(key(), used, StatusCode::FORBIDDEN, challenge);
        let failure = answered.await.unwrap_err();
        assert_eq!(failure.insufficient(), tokens.connection(&key()));
        assert_eq!(tokens.wider(&key()), ["more"]);
        there.put_grant(&key(), &record).await.unwrap();
        here.poll_changes().await.unwrap();
        tokens.kept(&key()).await.unwrap();
        assert!(tokens.wider(&key()).is_empty());
    }

    // SPEC B-12
    #[tokio::test]
    async fn token_that_is_due_is_used_while_it_is_refreshed() {
        let dir = tempfile::tempdir().unwrap();
        let account = account_with(&dir, "[egress]\nallow = [\"127.0.0.1\"]").await;
        let tokens = UserTokens::new(account);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/token", listener.local_addr().unwrap());
        let ends = SystemClock.now() + Duration::from_secs(1000);
        let ends = u64::try_from(ends.as_millis()).ok();
        let record = record("token", ends, &endpoint);
        tokens.vault().put_grant(&key(), &record).await.unwrap();
        let is_good = async || {
            let (state, _) = tokens.kept(&key()).await.unwrap();
            matches!(state, UserToken::Good(_))
        };
        assert!(is_good().await);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(950)).await;
        tokio::time::resume();
        assert!(is_good().await);
        // The server is asked, and gives no answer.
        let asked = timeout(Duration::from_secs(10), listener.accept());
        let _asked = asked.await.expect("a refresh ahead").unwrap();
        assert!(is_good().await);
    }
}
