//! `AccountProbe`: the accounts of callers at one upstream, as `check --online` sees them: without any caller, and
//! without a database.

use std::sync::Arc;

use url::Url;

use super::account_log::AccountLog;
use super::authorization::{GatewayClient, rehearse};
use super::discovery::DiscoveryHints;
use super::documents::DocumentClients;
use super::endpoint_check::PROBE_LIMIT;
use super::failure::TokenFailure;
use super::server_lookup::ServerLookup;
use crate::cause::ErrorCause;
use crate::config::{AccountKind, UserAccountConfig};

/// The accounts of users at one upstream, without the users.
#[derive(Debug)]
pub struct AccountProbe {
    config: UserAccountConfig,
    clients: DocumentClients,
    gateway: GatewayClient,
    lookup: ServerLookup,
    log: AccountLog,
}

impl AccountProbe {
    /// The accounts at `upstream`, whose MCP endpoint is `url`, for a gateway at `public_url`.
    #[must_use]
    pub fn new(
        upstream: Arc<str>,
        url: Url,
        config: UserAccountConfig,
        (clients, public_url): (DocumentClients, &Url),
    ) -> Arc<Self> {
        Arc::new(Self {
            lookup: ServerLookup::new(Arc::clone(&upstream), url, config.client.is_some()),
            log: AccountLog::new(upstream, AccountKind::User),
            gateway: GatewayClient::new(public_url),
            config,
            clients,
        })
    }

    /// Why users cannot be asked; `None` where they can, or before the first [`look`](Self::look).
    #[must_use]
    pub fn last_cause(&self) -> Option<ErrorCause> {
        self.log.last_cause()
    }

    /// Finds out which authorization server users are sent to, and whether it would let the gateway ask them. Takes 8 s
    /// at most; [`last_cause`](Self::last_cause) has the outcome.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub async fn look(&self) {
        let looked = tokio::time::timeout(PROBE_LIMIT, self.find()).await;
        let looked = looked.unwrap_or_else(|_| Err(TokenFailure::slow(PROBE_LIMIT)));
        if let Err(failure) = looked {
            self.log.failed(&failure, None);
        }
    }

    async fn find(&self) -> Result<(), TokenFailure> {
        let hints = DiscoveryHints::from(&self.config);
        let found = self.lookup.find(&self.clients, &hints).await?;
        let issuer = hints.trusted();
        let asking = (&self.clients, issuer.as_ref());
        rehearse(&found.server, (&self.config, &self.gateway), asking)
    }
}
