//! `LoginGrants`: the kept logins of principals, by issuer, and the sources of upstream tokens that their ID tokens
//! obtain (`kind = "id_jag"`).

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::account::{AccountSetupError, UpstreamAccount};
use super::documents::SharedClients;
use super::failure::TokenFailure;
use super::identity_assertion::{IdTokens, IdentityProvider};
use super::token_source::TokenSource;
use super::user_account::UserAccount;
use super::user_tokens::{LoginState, UserTokens};
use crate::audit::AuditSink;
use crate::call::OwnerKey;
use crate::config::LoginConfig;
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;
use crate::vault::{GrantKey, Vault};

/// The kept logins of all principals.
#[derive(Debug)]
pub struct LoginGrants(Vec<IssuerLogins>);

/// Those at one issuer.
#[derive(Debug)]
struct IssuerLogins {
    tokens: Arc<UserTokens>,
    provider: Arc<IdentityProvider>,
}

/// ID tokens of kept logins.
#[derive(Debug)]
struct KeptIdTokens(Arc<UserTokens>);

impl LoginGrants {
    /// The grants at the issuers of `logins`. Sends no request.
    ///
    /// # Errors
    /// A `private_key` cannot be used, or an issuer is no URL.
    pub fn new(
        logins: &[LoginConfig],
        shared: &SharedClients,
        (vault, audit, tasks): (&Vault, &AuditSink, &TaskSpawner),
    ) -> Result<Arc<Self>, AccountSetupError> {
        let of_issuer = |login: &LoginConfig| {
            let parts = (vault.clone(), audit.clone(), tasks.clone());
            let account = UserAccount::of_login(login, shared.clone(), parts)?;
            let tokens = UserTokens::new(account);
            let id_tokens = Arc::new(KeptIdTokens(Arc::clone(&tokens)));
            let (issuer, client) = (&login.issuer, &login.client_id);
            let provider = IdentityProvider::new(issuer, client, &login.client_key, id_tokens)?;
            Ok(IssuerLogins { tokens, provider })
        };
        let all = logins.iter().map(of_issuer);
        Ok(Arc::new(Self(
            all.collect::<Result<_, AccountSetupError>>()?,
        )))
    }

    /// The tokens of each issuer.
    pub fn tokens(&self) -> impl Iterator<Item = &Arc<UserTokens>> {
        self.0.iter().map(|issuer| &issuer.tokens)
    }

    /// What memory says of the login of `owner`; `None` where the database has to be asked. No waiting.
    #[must_use]
    pub fn known(&self, owner: OwnerKey) -> Option<LoginState> {
        for issuer in &self.0 {
            match issuer.tokens.known_login(&issuer.key(owner))? {
                LoginState::Missing => {}
                login => return Some(login),
            }
        }
        Some(LoginState::Missing)
    }

    /// The [`Vault::generation`] of the logins of `owner`.
    #[must_use]
    pub fn generation(&self, owner: OwnerKey) -> Option<u64> {
        self.tokens().next().map(|tokens| tokens.generation(owner))
    }

    /// What the database says of the login of `owner`, which [`known`](Self::known) tells from then on.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn look_up(&self, owner: OwnerKey) -> Result<LoginState, TokenFailure> {
        let mut found = LoginState::Missing;
        for issuer in &self.0 {
            match issuer.tokens.read_login(&issuer.key(owner)).await? {
                LoginState::Missing => {}
                login => found = login,
            }
        }
        Ok(found)
    }

    /// The number of the connection of `owner`, from memory alone.
    #[must_use]
    pub fn connection(&self, owner: OwnerKey) -> Option<i64> {
        let mut all = self.0.iter();
        all.find_map(|issuer| issuer.tokens.connection(&issuer.key(owner)))
    }

    /// Names of kept logins in the vault, one per identity provider. The login of a principal has one of them.
    pub fn names(&self) -> impl Iterator<Item = Arc<str>> {
        self.tokens()
            .map(|tokens| Arc::clone(tokens.account().upstream()))
    }

    /// A source of the tokens of `owner` at the upstream of `account`, by the login with this number; `None` where that is
    /// not the login any more.
    #[must_use]
    pub fn source(
        &self,
        account: &Arc<UpstreamAccount>,
        (owner, connection): (OwnerKey, i64),
    ) -> Option<Arc<TokenSource>> {
        let has_it = |issuer: &&IssuerLogins| {
            issuer.tokens.connection(&issuer.key(owner)) == Some(connection)
        };
        let issuer = self.0.iter().find(has_it)?;
        let (account, provider) = (Arc::clone(account), Arc::clone(&issuer.provider));
        Some(TokenSource::of_person(account, provider, owner))
    }
}

impl IssuerLogins {
    fn key(&self, owner: OwnerKey) -> GrantKey {
        key_of(&self.tokens, owner)
    }
}

impl IdTokens for KeptIdTokens {
    fn id_token(&self, owner: OwnerKey) -> BoxFuture<'_, Result<Secret, TokenFailure>> {
        Arc::clone(&self.0).id_token(key_of(&self.0, owner)).boxed()
    }

    fn is_at_hand(&self, owner: OwnerKey) -> bool {
        let login = self.0.known_login(&key_of(&self.0, owner));
        matches!(login, Some(LoginState::Kept(_)))
    }

    fn another<'a>(
        &'a self,
        owner: OwnerKey,
        refused: &'a Secret,
    ) -> BoxFuture<'a, Result<Option<Secret>, TokenFailure>> {
        let key = key_of(&self.0, owner);
        Arc::clone(&self.0).another_id_token(key, refused).boxed()
    }
}

fn key_of(tokens: &UserTokens, owner: OwnerKey) -> GrantKey {
    GrantKey {
        owner,
        upstream: Arc::clone(tokens.account().upstream()),
    }
}
