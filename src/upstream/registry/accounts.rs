//! Accounts of upstreams: made where the configuration has one.

use std::sync::Arc;

use http::HeaderMap;
use url::Url;

use super::SetupError;
use crate::config::{
    AccountConfig, AccountKind, Config, HttpCarrier, UpstreamAuth, UpstreamConfig,
    UserAccountConfig,
};
use crate::egress::EgressRules;
use crate::grants::{
    AccountProbe, AccountSetupError, DocumentClients, SharedClients, TokenSource, UpstreamAccount,
    UserAccount, UserTokens,
};
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::credentials::{CommonTokens, Credentials, ExchangedTokens, fixed_headers};
use crate::upstream::user_accounts::{AccountKeeping, UserAccounts};
use crate::upstream::user_keys::{self, UserKeys};
use crate::upstream::user_tokens::PrincipalTokens;

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
    /// In place of `tokens` where accounts are not kept but checked.
    pub(super) probe: Option<Arc<AccountProbe>>,
}

/// Makes accounts, which share clients.
pub(super) struct AccountFactory {
    rules: EgressRules,
    shared: Option<SharedClients>,
    public_url: Url,
    tasks: TaskSpawner,
}

impl AccountFactory {
    pub(super) fn new(config: &Config, tasks: TaskSpawner) -> Self {
        Self {
            rules: EgressRules::new(&config.egress),
            shared: None,
            public_url: config.server.public_url.clone(),
            tasks,
        }
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
        keeping: Option<AccountKeeping<'_>>,
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
            probe: None,
        };
        let credentials: Arc<dyn Credentials> = match &upstream.auth {
            None => return Ok(made),
            Some(UpstreamAuth::Gateway(config)) => {
                let (account, credentials) = self.make(upstream, carrier, config)?;
                made.account = Some(account);
                credentials
            }
            Some(UpstreamAuth::User(config)) => {
                let tokens = if let Some(keeping) = keeping {
                    Some(self.user_tokens(upstream, carrier, (config, keeping))?)
                } else {
                    made.probe = Some(self.probe(upstream, carrier, config)?);
                    None
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
                let keys = user_keys::make(upstream, carrier, (config, keeping))?;
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
        let account = account.map_err(failed)?;
        let credentials: Arc<dyn Credentials> = match account.kind() {
            AccountKind::TokenExchange => Arc::new(ExchangedTokens::new(Arc::clone(&account))),
            AccountKind::ClientCredentials => {
                let source = TokenSource::new(Arc::clone(&account));
                Arc::new(CommonTokens::new(source))
            }
            AccountKind::IdJag | AccountKind::User | AccountKind::UserKey => {
                return Err(failed(AccountSetupError::NoLogin));
            }
        };
        Ok((account, credentials))
    }

    /// The tokens of callers at `upstream`, which is reached by `carrier`.
    ///
    /// # Errors
    /// As for [`make`](Self::make).
    fn user_tokens(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        (config, keeping): (&UserAccountConfig, AccountKeeping<'_>),
    ) -> Result<Arc<UserTokens>, SetupError> {
        let failed = |source| failed(upstream, source);
        let fixed = headers(upstream, carrier)?;
        let clients = self.clients(carrier).map_err(failed)?;
        let account = UserAccount::new(
            upstream.name.as_str().into(),
            carrier.url.clone(),
            config.clone(),
            (clients, fixed),
            (
                keeping.vault.clone(),
                keeping.audit.clone(),
                self.tasks.clone(),
            ),
        );
        Ok(UserTokens::new(account.map_err(failed)?))
    }

    /// The accounts of callers at `upstream`, to be looked up alone.
    ///
    /// # Errors
    /// As for [`make`](Self::make).
    fn probe(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
        config: &UserAccountConfig,
    ) -> Result<Arc<AccountProbe>, SetupError> {
        let clients = self.clients(carrier);
        let clients = clients.map_err(|source| failed(upstream, source))?;
        let asking = (clients, &self.public_url);
        let name = upstream.name.as_str().into();
        Ok(AccountProbe::new(
            name,
            carrier.url.clone(),
            config.clone(),
            asking,
        ))
    }

    fn clients(&mut self, carrier: &HttpCarrier) -> Result<DocumentClients, AccountSetupError> {
        let shared = match &self.shared {
            Some(shared) => shared.clone(),
            None => self
                .shared
                .insert(SharedClients::new(self.rules.clone())?)
                .clone(),
        };
        Ok(DocumentClients::new(shared, carrier)?)
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
