//! Accounts of upstreams: made where the configuration has one.

use std::sync::Arc;

use http::HeaderMap;

use super::SetupError;
use crate::config::{
    AccountConfig, AccountKind, Config, HttpCarrier, LoginConfig, UpstreamAuth, UpstreamConfig,
    UserAccountConfig,
};
use crate::egress::EgressRules;
use crate::grants::{
    AccountSetupError, DocumentClients, LoginGrants, SharedClients, TokenSource, UpstreamAccount,
    UserAccount, UserTokens,
};
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::asserted_tokens::AssertedTokens;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::credentials::{CommonTokens, Credentials, ExchangedTokens, fixed_headers};
use crate::upstream::user_accounts::UserAccounts;
use crate::upstream::user_keys::{self, UserKeys};
use crate::upstream::user_tokens::PrincipalTokens;
use crate::vault::Vault;

/// An account, and the credentials of its requests.
type MadeAccount = (Arc<UpstreamAccount>, Arc<dyn Credentials>);

/// A client, and whose credentials its requests carry.
pub(super) struct MadeClient {
    pub(super) client: HttpClient,
    /// The gateway's own account.
    pub(super) account: Option<Arc<UpstreamAccount>>,
    /// The accounts of callers.
    pub(super) users: Option<Arc<dyn UserAccounts>>,
    /// Their tokens, where they agree at an authorization server.
    pub(super) tokens: Option<Arc<UserTokens>>,
}

/// Makes accounts, which share clients and kept logins.
pub(super) struct AccountFactory<'c> {
    rules: EgressRules,
    shared: Option<SharedClients>,
    tasks: TaskSpawner,
    /// `connect.login`.
    configured: &'c [LoginConfig],
    /// Made for the first upstream that needs them.
    logins: Option<Arc<LoginGrants>>,
}

impl<'c> AccountFactory<'c> {
    pub(super) fn new(config: &'c Config, tasks: TaskSpawner) -> Self {
        Self {
            rules: EgressRules::new(&config.egress),
            shared: None,
            tasks,
            configured: &config.connect.logins,
            logins: None,
        }
    }

    /// The kept logins, where an upstream needs them.
    pub(super) fn into_logins(self) -> Option<Arc<LoginGrants>> {
        self.logins
    }

    /// The client of `upstream`, which is reached by `carrier`, with the account of the gateway or the keys of callers where
    /// the configuration has them.
    ///
    /// # Errors
    /// A key, a header or `ca_file` cannot be used.
    pub(super) fn client(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        vault: Option<&Vault>,
    ) -> Result<MadeClient, SetupError> {
        let client = HttpClient::new(carrier).map_err(|source| SetupError::Client {
            upstream: upstream.name.clone(),
            source,
        })?;
        let mut made = MadeClient {
            client,
            account: None,
            users: None,
            tokens: None,
        };
        let credentials: Arc<dyn Credentials> = match &upstream.auth {
            None => return Ok(made),
            Some(UpstreamAuth::Gateway(config)) => {
                let (account, credentials) = self.make(upstream, carrier, config)?;
                made.account = Some(account);
                credentials
            }
            Some(UpstreamAuth::Login(config)) => {
                let account = self.account(upstream, carrier, &config.account)?;
                let logins = vault.map(|vault| self.logins(vault)).transpose();
                let logins = logins.map_err(|source| failed(upstream, source))?;
                let users = Arc::new(AssertedTokens::new(Arc::clone(&account), logins));
                made.account = Some(account);
                made.users = Some(Arc::<AssertedTokens>::clone(&users));
                users
            }
            Some(UpstreamAuth::User(config)) => {
                let tokens = match vault {
                    Some(vault) => Some(self.user_tokens(upstream, carrier, (config, vault))?),
                    None => None,
                };
                let name = upstream.name.as_str().into();
                let users = Arc::new(PrincipalTokens::new(
                    name,
                    tokens.clone(),
                    headers(upstream, carrier)?,
                ));
                made.tokens = tokens;
                made.users = Some(Arc::<PrincipalTokens>::clone(&users));
                users
            }
            Some(UpstreamAuth::UserKey(config)) => {
                let keys = user_keys::make(upstream, carrier, (config, vault))?;
                made.users = Some(Arc::<UserKeys>::clone(&keys));
                keys
            }
        };
        made.client = made.client.with_account(carrier, credentials);
        Ok(made)
    }

    /// The account of `upstream`, which is reached by `carrier`, and the credentials of its requests.
    ///
    /// # Errors
    /// A key, a header or `ca_file` cannot be used.
    fn make(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        config: &AccountConfig,
    ) -> Result<MadeAccount, SetupError> {
        let account = self.account(upstream, carrier, config)?;
        let credentials: Arc<dyn Credentials> = if account.kind() == AccountKind::TokenExchange {
            Arc::new(ExchangedTokens::new(Arc::clone(&account)))
        } else {
            let source = TokenSource::new(Arc::clone(&account));
            Arc::new(CommonTokens::new(source))
        };
        Ok((account, credentials))
    }

    /// The account alone.
    ///
    /// # Errors
    /// As for [`make`](Self::make).
    fn account(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        config: &AccountConfig,
    ) -> Result<Arc<UpstreamAccount>, SetupError> {
        let failed = |source| failed(upstream, source);
        let fixed = headers(upstream, carrier)?;
        let clients = self.clients(carrier).map_err(failed)?;
        let account = UpstreamAccount::new(
            upstream.name.as_str().into(),
            carrier.url.clone(),
            config.clone(),
            (clients, fixed),
            self.tasks.clone(),
        );
        account.map_err(failed)
    }

    /// The kept logins, which all upstreams have in common.
    ///
    /// # Errors
    /// The private key of a login cannot be used, or this machine has no trust anchors.
    fn logins(&mut self, vault: &Vault) -> Result<Arc<LoginGrants>, AccountSetupError> {
        if let Some(logins) = &self.logins {
            return Ok(Arc::clone(logins));
        }
        let shared = self.shared()?;
        let logins = LoginGrants::new(self.configured, &shared, (vault, &self.tasks))?;
        Ok(Arc::clone(self.logins.insert(logins)))
    }

    /// The tokens of callers at `upstream`, which is reached by `carrier`.
    ///
    /// # Errors
    /// As for [`make`](Self::make).
    fn user_tokens(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        (config, vault): (&UserAccountConfig, &Vault),
    ) -> Result<Arc<UserTokens>, SetupError> {
        let failed = |source| failed(upstream, source);
        let fixed = headers(upstream, carrier)?;
        let clients = self.clients(carrier).map_err(failed)?;
        let account = UserAccount::new(
            upstream.name.as_str().into(),
            carrier.url.clone(),
            config.clone(),
            (clients, fixed),
            (vault.clone(), self.tasks.clone()),
        );
        Ok(UserTokens::new(account.map_err(failed)?))
    }

    fn clients(&mut self, carrier: &HttpCarrier) -> Result<DocumentClients, AccountSetupError> {
        Ok(DocumentClients::new(self.shared()?, carrier)?)
    }

    fn shared(&mut self) -> Result<SharedClients, AccountSetupError> {
        Ok(match &self.shared {
            Some(shared) => shared.clone(),
            None => self
                .shared
                .insert(SharedClients::new(self.rules.clone())?)
                .clone(),
        })
    }
}

fn failed(upstream: &UpstreamConfig, source: AccountSetupError) -> SetupError {
    SetupError::Account {
        upstream: upstream.name.clone(),
        source,
    }
}

/// The configured headers.
fn headers(upstream: &UpstreamConfig, carrier: &HttpCarrier) -> Result<HeaderMap, SetupError> {
    fixed_headers(&carrier.headers).map_err(|source| SetupError::Client {
        upstream: upstream.name.clone(),
        source,
    })
}
