//! `AssertedTokens`: tokens that callers get by assertions of their identity provider, as credentials of one upstream's
//! requests (`kind = "id_jag"`). The tokens are in memory alone, and are not used after the end of the kept login.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::StatusCode;
use moka::sync::Cache;

use super::account::Account;
use super::carrier::http::exchange_error::ExchangeError;
use super::credentials::{Credential, Credentials, Requester, next_of, no_credential, of_source};
use super::user_accounts::{AccountState, UserAccounts};
use crate::call::OwnerKey;
use crate::grants::{
    Challenge, HeldToken, LoginGrants, LoginState, Renewal, TokenFailure, TokenSource,
    UpstreamAccount,
};
use crate::vault::AccountCheck;

/// Principals whose tokens are held.
const MAX_HELD: u64 = 16_384;
/// How long a token is held after its last use.
const IDLE: Duration = Duration::from_hours(1);

/// Tokens of callers, each for its own requests.
#[derive(Debug)]
pub(super) struct AssertedTokens {
    account: Arc<UpstreamAccount>,
    /// `None` where the gateway keeps no logins, as while it is only checked.
    logins: Option<Arc<LoginGrants>>,
    /// One for each login.
    sources: Cache<(OwnerKey, i64), Arc<TokenSource>>,
}

impl AssertedTokens {
    /// Those at the upstream of `account`, by `logins`.
    pub(super) fn new(account: Arc<UpstreamAccount>, logins: Option<Arc<LoginGrants>>) -> Self {
        let sources = Cache::builder().max_capacity(MAX_HELD).time_to_idle(IDLE);
        Self {
            account,
            logins,
            sources: sources.build(),
        }
    }

    /// The account state that follows from `login`. A cached upstream token outlives the ID token that obtained it.
    fn state_of(&self, owner: OwnerKey, login: LoginState) -> AccountState {
        match login {
            LoginState::Kept(connection) => AccountState::Connected(connection),
            LoginState::Ended(connection) => {
                let source = self.sources.get(&(owner, connection));
                match source.and_then(|source| source.held()) {
                    Some(_) => AccountState::Connected(connection),
                    None => AccountState::Missing,
                }
            }
            LoginState::Missing => AccountState::Missing,
        }
    }

    /// The source of the tokens for a connection of `account` at the upstream; that of another login is none.
    ///
    /// # Errors
    /// The user has to log in, or has logged in again.
    fn source(
        &self,
        account: Account,
        login: LoginState,
    ) -> Result<Arc<TokenSource>, TokenFailure> {
        let (Account::Connected(owner, opened_by), Some(logins)) = (account, &self.logins) else {
            return Err(TokenFailure::not_connected());
        };
        let AccountState::Connected(connection) = self.state_of(owner, login) else {
            return Err(TokenFailure::not_connected());
        };
        if connection != opened_by {
            return Err(TokenFailure::replaced());
        }
        let of = (owner, connection);
        if let Some(source) = self.sources.get(&of) {
            return Ok(source);
        }
        let made = logins.source(&self.account, of);
        let made = made.ok_or_else(TokenFailure::replaced)?;
        Ok(self.sources.get_with(of, || made))
    }

    /// The source of the tokens for `account`, if it has been made.
    fn held_source(&self, account: Account) -> Option<Arc<TokenSource>> {
        match account {
            Account::Connected(owner, connection) => self.sources.get(&(owner, connection)),
            Account::Common | Account::Principal(_) => None,
        }
    }

    async fn awaited(&self, account: Account) -> Result<Arc<HeldToken>, TokenFailure> {
        let login = match (account, &self.logins) {
            (Account::Connected(owner, _), Some(logins)) => logins.look_up(owner).await?,
            _ => LoginState::Missing,
        };
        self.source(account, login)?.token().await
    }
}

impl UserAccounts for AssertedTokens {
    fn known(&self, owner: OwnerKey) -> Option<AccountState> {
        let login = match &self.logins {
            Some(logins) => logins.known(owner)?,
            None => LoginState::Missing,
        };
        Some(self.state_of(owner, login))
    }

    fn check(&self, owner: OwnerKey) -> Option<AccountCheck> {
        let logins = self.logins.as_ref()?;
        let generation = logins.generation(owner)?;
        let AccountState::Connected(connection) = self.state_of(owner, logins.known(owner)?) else {
            return None;
        };
        let token = self.sources.get(&(owner, connection))?.held()?;
        Some(AccountCheck::new(connection, generation, token.due()))
    }

    fn look_up(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>> {
        let look_up = async move {
            let login = match &self.logins {
                Some(logins) => logins.look_up(owner).await?,
                None => LoginState::Missing,
            };
            Ok(self.state_of(owner, login))
        };
        look_up.boxed()
    }

    fn grant_names(&self) -> Vec<Arc<str>> {
        let logins = self.logins.as_ref();
        logins.map_or_else(Vec::new, |logins| logins.names().collect())
    }
}

impl Credentials for AssertedTokens {
    fn account_of(&self, owner: OwnerKey) -> Account {
        if owner.is_gateway() {
            return Account::Common;
        }
        let logins = self.logins.as_ref();
        let connection = logins.and_then(|logins| logins.connection(owner));
        Account::Connected(owner, connection.unwrap_or_default())
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        let account = requester.account;
        if account == Account::Common {
            return Credential::Ready(self.account.fixed_headers());
        }
        let known = match (account, &self.logins) {
            (Account::Connected(owner, _), Some(logins)) => logins.known(owner),
            _ => Some(LoginState::Missing),
        };
        match known.map(|login| self.source(account, login)) {
            Some(Ok(source)) => of_source(&source),
            Some(Err(failure)) => no_credential(failure),
            None => {
                let token = async move { Ok(self.awaited(account).await?) };
                Credential::Awaited(token.boxed())
            }
        }
    }

    fn generation(&self, owner: OwnerKey) -> Option<u64> {
        // Both only grow: their sum is the same while both are.
        let logins = self.logins.as_ref()?.generation(owner)?;
        Some(logins.wrapping_add(self.account.tokens()))
    }

    fn for_child(
        &self,
        requester: &Requester,
        due: Arc<HeldToken>,
    ) -> BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>> {
        next_of(self.held_source(requester.account), due)
    }

    /// No caller is there: a refusal tells as much as any other answer.
    fn for_check(&self, _requester: &Requester) -> Credential<'_> {
        Credential::Ready(self.account.fixed_headers())
    }

    /// A refused token does not ask the user: another login would get the same assertion.
    fn refused(
        &self,
        requester: &Requester,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        match self.held_source(requester.account) {
            Some(source) => source.answered(used, status, challenge).boxed(),
            None => ready(Ok(Renewal::Stands)).boxed(),
        }
    }
}
