//! Accounts of upstreams: made where the configuration has one.

use std::sync::Arc;

use super::SetupError;
use crate::config::{AccountKind, EgressConfig, HttpCarrier, UpstreamAuth, UpstreamConfig};
use crate::egress::EgressRules;
use crate::grants::{
    AccountSetupError, DocumentClients, SharedClients, TokenSource, UpstreamAccount,
};
use crate::runtime::lifecycle::TaskSpawner;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::credentials::{CommonTokens, Credentials, ExchangedTokens, fixed_headers};
use crate::upstream::user_accounts::UserAccounts;
use crate::upstream::user_keys::{self, UserKeys};
use crate::vault::Vault;

/// An account, and the credentials of its requests.
type MadeAccount = (Arc<UpstreamAccount>, Arc<dyn Credentials>);

/// A client, and whose credentials its requests carry.
pub(super) type ClientAndAccounts = (
    HttpClient,
    Option<Arc<UpstreamAccount>>,
    Option<Arc<dyn UserAccounts>>,
);

/// Makes accounts, which share clients.
pub(super) struct AccountFactory {
    rules: EgressRules,
    shared: Option<SharedClients>,
    tasks: TaskSpawner,
}

impl AccountFactory {
    pub(super) fn new(egress: &EgressConfig, tasks: TaskSpawner) -> Self {
        Self {
            rules: EgressRules::new(egress),
            shared: None,
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
        vault: Option<&Vault>,
    ) -> Result<ClientAndAccounts, SetupError> {
        let client = HttpClient::new(carrier).map_err(|source| SetupError::Client {
            upstream: upstream.name.clone(),
            source,
        })?;
        if let Some((account, credentials)) = self.make(upstream, carrier)? {
            let client = client.with_account(carrier, credentials);
            return Ok((client, Some(account), None));
        }
        if let Some(keys) = user_keys::make(upstream, carrier, vault)? {
            let credentials: Arc<dyn Credentials> = Arc::<UserKeys>::clone(&keys);
            return Ok((client.with_account(carrier, credentials), None, Some(keys)));
        }
        Ok((client, None, None))
    }

    /// The account of `upstream`, which is reached by `carrier`, and the credentials of its requests; `None` where the
    /// configuration has none.
    ///
    /// # Errors
    /// A key, a header or `ca_file` cannot be used.
    fn make(
        &mut self,
        upstream: &UpstreamConfig,
        carrier: &HttpCarrier,
    ) -> Result<Option<MadeAccount>, SetupError> {
        let Some(UpstreamAuth::Gateway(config)) = &upstream.auth else {
            return Ok(None);
        };
        let failed = |source: AccountSetupError| SetupError::Account {
            upstream: upstream.name.clone(),
            source,
        };
        let fixed = fixed_headers(&carrier.headers).map_err(|source| SetupError::Client {
            upstream: upstream.name.clone(),
            source,
        })?;
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
            AccountKind::ClientCredentials => {
                let source = TokenSource::new(Arc::clone(&account));
                Arc::new(CommonTokens::new(source))
            }
            AccountKind::IdJag | AccountKind::UserKey => {
                return Err(failed(AccountSetupError::NoLogin));
            }
            AccountKind::TokenExchange => Arc::new(ExchangedTokens::new(Arc::clone(&account))),
        };
        Ok(Some((account, credentials)))
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
