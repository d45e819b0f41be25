//! The tokens of callers as credentials of one upstream's requests.

use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt as _, TryFutureExt as _};
use http::{HeaderMap, StatusCode};

use super::account::Account;
use super::carrier::http::exchange_error::ExchangeError;
use super::credentials::{Credential, Credentials, Requester, no_credential};
use super::user_accounts::{AccountState, UserAccounts};
use crate::call::OwnerKey;
use crate::consent::LackingScopes;
use crate::grants::{Challenge, HeldToken, Renewal, TokenFailure, UserToken, UserTokens};
use crate::vault::{AccountCheck, GrantKey};

/// Tokens of callers, each for its own requests.
#[derive(Debug)]
pub(super) struct PrincipalTokens {
    pub(super) upstream: Arc<str>,
    /// `None` where the gateway keeps no accounts, as while it is only checked.
    pub(super) tokens: Option<Arc<UserTokens>>,
    /// Configured headers, which go with every token.
    pub(super) fixed: HeaderMap,
}

impl PrincipalTokens {
    fn key(&self, owner: OwnerKey) -> GrantKey {
        GrantKey {
            owner,
            upstream: Arc::clone(&self.upstream),
        }
    }

    /// The tokens, and the key of the one that requests of `account` carry.
    fn of(&self, account: Account) -> Option<(&Arc<UserTokens>, GrantKey)> {
        match (account, &self.tokens) {
            (Account::Connected(owner, _), Some(tokens)) => Some((tokens, self.key(owner))),
            _ => None,
        }
    }
}

/// The state of the account by its `token`; `None` if the token has to be waited for.
fn state_of(token: &UserToken) -> Option<AccountState> {
    match token {
        UserToken::Good(token) => Some(AccountState::Connected(token.connection())),
        UserToken::Missing => Some(AccountState::Missing),
        UserToken::Refused => Some(AccountState::Refused),
        UserToken::Awaited => None,
    }
}

/// `token`, if it is of the account that the connection belongs to.
fn of_account(account: Account, token: Arc<HeldToken>) -> Result<Arc<HeldToken>, TokenFailure> {
    if token.connection() == account.connection() {
        Ok(token)
    } else {
        Err(TokenFailure::replaced())
    }
}

impl UserAccounts for PrincipalTokens {
    fn known(&self, owner: OwnerKey) -> Option<AccountState> {
        match &self.tokens {
            Some(tokens) => state_of(&tokens.held(&self.key(owner))),
            None => Some(AccountState::Missing),
        }
    }

    fn check(&self, owner: OwnerKey) -> Option<AccountCheck> {
        let tokens = self.tokens.as_ref()?;
        let generation = tokens.generation(owner);
        match tokens.held(&self.key(owner)) {
            UserToken::Good(token) => {
                let due = token.due();
                Some(AccountCheck::new(token.connection(), generation, due))
            }
            UserToken::Missing | UserToken::Refused | UserToken::Awaited => None,
        }
    }

    fn look_up(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>> {
        let Some(tokens) = &self.tokens else {
            return ready(Ok(AccountState::Missing)).boxed();
        };
        let token = Arc::clone(tokens).look_up(self.key(owner));
        let state = token.map_ok(|token| state_of(&token).unwrap_or(AccountState::Missing));
        state.boxed()
    }

    fn kept(&self, owner: OwnerKey) -> BoxFuture<'_, Result<AccountState, TokenFailure>> {
        let Some(tokens) = &self.tokens else {
            return ready(Ok(AccountState::Missing)).boxed();
        };
        let kept = async move {
            let (token, connection) = tokens.kept(&self.key(owner)).await?;
            Ok(state_of(&token).unwrap_or(AccountState::Connected(connection)))
        };
        kept.boxed()
    }

    fn grant_names(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.upstream)]
    }

    fn wants_more(&self, owner: OwnerKey) -> Option<LackingScopes> {
        let (tokens, key) = (self.tokens.as_ref()?, self.key(owner));
        let scopes = tokens.wider(&key);
        let connection = tokens.connection(&key).filter(|_| !scopes.is_empty())?;
        Some(LackingScopes { connection, scopes })
    }
}

impl Credentials for PrincipalTokens {
    fn account_of(&self, owner: OwnerKey) -> Account {
        if owner.is_gateway() {
            return Account::Common;
        }
        let tokens = self.tokens.as_ref();
        let connection = tokens.and_then(|tokens| tokens.connection(&self.key(owner)));
        Account::Connected(owner, connection.unwrap_or_default())
    }

    fn for_request(&self, requester: &Requester) -> Credential<'_> {
        let account = requester.account;
        if account == Account::Common {
            return Credential::Ready(&self.fixed);
        }
        let Some((tokens, key)) = self.of(account) else {
            return no_credential(TokenFailure::not_connected());
        };
        match tokens.held(&key) {
            UserToken::Good(token) => match of_account(account, token) {
                Ok(token) => Credential::Held(token),
                Err(failure) => no_credential(failure),
            },
            UserToken::Missing => no_credential(TokenFailure::not_connected()),
            UserToken::Refused => no_credential(TokenFailure::refused()),
            UserToken::Awaited => {
                let token = Arc::clone(tokens).token(key);
                Credential::Awaited(async move { Ok(of_account(account, token.await?)?) }.boxed())
            }
        }
    }

    fn for_child(
        &self,
        requester: &Requester,
        due: Arc<HeldToken>,
    ) -> BoxFuture<'_, Result<Arc<HeldToken>, ExchangeError>> {
        let account = requester.account;
        let next = async move {
            let Some((tokens, key)) = self.of(account) else {
                return Ok(due);
            };
            Ok(of_account(account, tokens.next(&key, due).await?)?)
        };
        next.boxed()
    }

    fn generation(&self, owner: OwnerKey) -> Option<u64> {
        Some(self.tokens.as_ref()?.generation(owner))
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
        challenge: Challenge,
    ) -> BoxFuture<'_, Result<Renewal, TokenFailure>> {
        match self.of(requester.account) {
            Some((tokens, key)) => Arc::clone(tokens)
                .answered(key, used, status, challenge)
                .boxed(),
            None => ready(Ok(Renewal::Stands)).boxed(),
        }
    }

    fn accepted(&self, account: Account, used: Arc<HeldToken>) -> BoxFuture<'_, ()> {
        let accepted = async move {
            if let Some((tokens, key)) = self.of(account) {
                tokens.accepted(&key, &used).await;
            }
        };
        accepted.boxed()
    }
}
