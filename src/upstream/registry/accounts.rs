//! Accounts of upstreams: made where the configuration has one.

use std::sync::Arc;

use http::HeaderMap;
use url::Url;

use super::setup_error::SetupError;
use crate::config::{
    AccountConfig, AccountKind, Config, HttpCarrier, LoginConfig, UpstreamAuth, UpstreamConfig,
    UserAccountConfig,
};
use crate::egress::EgressRules;
use crate::grants::{
    AccountProbe, AccountSetupError, DocumentClients, LoginGrants, SharedClients, TokenFailure,
    TokenSource, UpstreamAccount, UserAccount, UserTokens,
};
use crate::process::ChildIsolation;
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::asserted_tokens::AssertedTokens;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::credentials::{
    CommonTokens, Credentials, ExchangedTokens, WithheldTokens, fixed_headers,
};
use crate::upstream::user_accounts::{AccountKeeping, UserAccounts};
use crate::upstream::user_keys::UserKeys;
use crate::upstream::user_tokens::PrincipalTokens;
use crate::vault::GrantKind;

/// The accounts of an entry of the registry; all absent where its credentials are those of `headers`.
#[derive(Debug, Default)]
pub(super) struct EntryAccounts {
    /// The gateway's own account, or the accounts of exchanged tokens.
    pub(super) account: Option<Arc<UpstreamAccount>>,
    /// The accounts of callers.
    pub(super) users: Option<Arc<dyn UserAccounts>>,
    /// Their tokens, where they agree at an authorization server.
    pub(super) tokens: Option<Arc<UserTokens>>,
    /// In place of `tokens` where accounts are not kept but checked.
    pub(super) probe: Option<Arc<AccountProbe>>,
    /// Why no credential is used.
    pub(super) withheld: Option<TokenFailure>,
}

/// The credentials of requests or children, and whose they are.
pub(super) type MadeAccounts = (Arc<dyn Credentials>, EntryAccounts);

/// The user of an account's credential.
#[derive(Clone, Copy)]
enum AccountSite<'a> {
    /// Requests to a service.
    Http(&'a HttpCarrier),
    /// The children of an upstream, which call a service that only the configuration names.
    Children,
}

impl AccountSite<'_> {
    /// The resource of tokens: the URL of the service, or for children the configured one.
    fn url(self, resource: Option<&str>) -> Result<Url, AccountSetupError> {
        match self {
            Self::Http(carrier) => Ok(carrier.url.clone()),
            Self::Children => {
                let resource = resource.and_then(|resource| Url::parse(resource).ok());
                resource.ok_or(AccountSetupError::Resource)
            }
        }
    }
}

/// Makes accounts, which share clients and kept logins.
pub(super) struct AccountFactory<'c> {
    rules: EgressRules,
    shared: Option<SharedClients>,
    public_url: Url,
    tasks: TaskSpawner,
    /// `connect.login`.
    configured: &'c [LoginConfig],
    /// Made for the first upstream with such logins.
    logins: Option<Arc<LoginGrants>>,
}

impl<'c> AccountFactory<'c> {
    pub(super) fn new(config: &'c Config, tasks: TaskSpawner) -> Self {
        Self {
            rules: EgressRules::new(&config.egress),
            shared: None,
            public_url: config.server.public_url.clone(),
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
        keeping: Option<AccountKeeping<'_>>,
    ) -> Result<(HttpClient, EntryAccounts), SetupError> {
        let client = HttpClient::new(carrier).map_err(|source| SetupError::Client {
            upstream: upstream.name.clone(),
            source,
        })?;
        Ok(
            match self.made(upstream, AccountSite::Http(carrier), keeping)? {
                Some((credentials, accounts)) => {
                    (client.with_account(carrier, credentials), accounts)
                }
                None => (client, EntryAccounts::default()),
            },
        )
    }

    /// The token or key for the children of `upstream`, if the configuration has an account. Withheld if children can read
    /// each other's environment, and the configuration does not accept that.
    ///
    /// # Errors
    /// A key cannot be used.
    pub(super) fn children(
        &mut self,
        upstream: &UpstreamConfig,
        isolation: ChildIsolation,
        keeping: Option<AccountKeeping<'_>>,
    ) -> Result<Option<MadeAccounts>, SetupError> {
        if upstream.auth.is_none() || isolation != ChildIsolation::Unsupported {
            return self.made(upstream, AccountSite::Children, keeping);
        }
        let accounts = EntryAccounts {
            withheld: Some(TokenFailure::children_not_isolated()),
            ..EntryAccounts::default()
        };
        Ok(Some((Arc::new(WithheldTokens), accounts)))
    }

    fn made(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        keeping: Option<AccountKeeping<'_>>,
    ) -> Result<Option<MadeAccounts>, SetupError> {
        Ok(Some(match &upstream.auth {
            None => return Ok(None),
            Some(UpstreamAuth::Gateway(config)) => self.gateway(upstream, site, config)?,
            Some(UpstreamAuth::Login(config)) => {
                self.asserted(upstream, site, (&config.account, keeping))?
            }
            Some(UpstreamAuth::User(config)) => {
                let (mut tokens, mut probe) = (None, None);
                if let Some(keeping) = keeping {
                    tokens = Some(self.user_tokens(upstream, site, (config, keeping))?);
                } else {
                    probe = Some(self.probe(upstream, site, config)?);
                }
                let users = Arc::new(PrincipalTokens {
                    upstream: upstream.name.as_str().into(),
                    tokens: tokens.clone(),
                    fixed: headers(upstream, site)?,
                });
                let accounts = EntryAccounts {
                    users: Some(Arc::<PrincipalTokens>::clone(&users)),
                    tokens,
                    probe,
                    ..EntryAccounts::default()
                };
                (users, accounts)
            }
            Some(UpstreamAuth::UserKey(config)) => {
                let fixed = headers(upstream, site)?;
                let keys = UserKeys::new(upstream, fixed, (config, keeping));
                let accounts = EntryAccounts {
                    users: Some(Arc::<UserKeys>::clone(&keys)),
                    ..EntryAccounts::default()
                };
                (keys, accounts)
            }
        }))
    }

    /// The account of the gateway, or those for which it exchanges callers' tokens.
    fn gateway(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        config: &AccountConfig,
    ) -> Result<MadeAccounts, SetupError> {
        let account = self.account(upstream, site, config)?;
        let credentials: Arc<dyn Credentials> = if account.kind() == AccountKind::TokenExchange {
            Arc::new(ExchangedTokens::new(Arc::clone(&account)))
        } else {
            Arc::new(CommonTokens(TokenSource::new(Arc::clone(&account))))
        };
        let accounts = EntryAccounts {
            account: Some(account),
            ..EntryAccounts::default()
        };
        Ok((credentials, accounts))
    }

    /// The accounts of callers whose kept logins are asserted.
    fn asserted(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        (config, keeping): (&AccountConfig, Option<AccountKeeping<'_>>),
    ) -> Result<MadeAccounts, SetupError> {
        let account = self.account(upstream, site, config)?;
        let logins = keeping.map(|keeping| self.logins(keeping)).transpose();
        let logins = logins.map_err(|source| failed(upstream, source))?;
        let users = Arc::new(AssertedTokens::new(Arc::clone(&account), logins));
        let accounts = EntryAccounts {
            account: Some(account),
            users: Some(Arc::<AssertedTokens>::clone(&users)),
            ..EntryAccounts::default()
        };
        Ok((users, accounts))
    }

    /// One account, without credentials of requests.
    fn account(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        config: &AccountConfig,
    ) -> Result<Arc<UpstreamAccount>, SetupError> {
        let failed = |source| failed(upstream, source);
        let fixed = headers(upstream, site)?;
        let url = site.url(config.resource.as_deref()).map_err(failed)?;
        let clients = self.clients(site, (config.issuer.as_deref(), &url));
        let account = UpstreamAccount::new(
            upstream.name.as_str().into(),
            url,
            config.clone(),
            (clients.map_err(failed)?, fixed),
            self.tasks.clone(),
        );
        account.map_err(failed)
    }

    /// The kept logins, which all upstreams share.
    ///
    /// # Errors
    /// The private key of a login cannot be used, or this machine has no trust anchors.
    fn logins(
        &mut self,
        keeping: AccountKeeping<'_>,
    ) -> Result<Arc<LoginGrants>, AccountSetupError> {
        if let Some(logins) = &self.logins {
            return Ok(Arc::clone(logins));
        }
        let shared = self.shared()?;
        let keeping = (keeping.vault, keeping.audit, &self.tasks);
        let logins = LoginGrants::new(self.configured, &shared, keeping)?;
        Ok(Arc::clone(self.logins.insert(logins)))
    }

    /// The tokens of callers at `upstream`.
    fn user_tokens(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        (config, keeping): (&UserAccountConfig, AccountKeeping<'_>),
    ) -> Result<Arc<UserTokens>, SetupError> {
        let failed = |source| failed(upstream, source);
        let fixed = headers(upstream, site)?;
        let url = site.url(config.resource.as_deref()).map_err(failed)?;
        let clients = self.clients(site, (config.issuer.as_deref(), &url));
        let account = UserAccount::new(
            GrantKind::User,
            upstream.name.as_str().into(),
            url,
            config.clone(),
            (clients.map_err(failed)?, fixed),
            (
                keeping.vault.clone(),
                keeping.audit.clone(),
                self.tasks.clone(),
            ),
        );
        Ok(UserTokens::new(account.map_err(failed)?))
    }

    /// The accounts of callers at `upstream`, to be checked alone.
    fn probe(
        &mut self,
        upstream: &UpstreamConfig,
        site: AccountSite<'_>,
        config: &UserAccountConfig,
    ) -> Result<Arc<AccountProbe>, SetupError> {
        let failed = |source| failed(upstream, source);
        let url = site.url(config.resource.as_deref()).map_err(failed)?;
        let clients = self.clients(site, (config.issuer.as_deref(), &url));
        let asking = (clients.map_err(failed)?, &self.public_url);
        let name = upstream.name.as_str().into();
        Ok(AccountProbe::new(name, url, config.clone(), asking))
    }

    fn clients(
        &mut self,
        site: AccountSite<'_>,
        (issuer, url): (Option<&str>, &Url),
    ) -> Result<DocumentClients, AccountSetupError> {
        let shared = self.shared()?;
        match site {
            AccountSite::Http(carrier) => Ok(DocumentClients::new(shared, carrier)?),
            AccountSite::Children => {
                let issuer = issuer.and_then(|issuer| Url::parse(issuer).ok());
                let trusted = issuer.unwrap_or_else(|| url.clone());
                Ok(DocumentClients::of_issuer(shared, trusted))
            }
        }
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

/// The configured headers; a child has none.
fn headers(upstream: &UpstreamConfig, site: AccountSite<'_>) -> Result<HeaderMap, SetupError> {
    let AccountSite::Http(carrier) = site else {
        return Ok(HeaderMap::new());
    };
    fixed_headers(&carrier.headers).map_err(|source| SetupError::Client {
        upstream: upstream.name.clone(),
        source,
    })
}
