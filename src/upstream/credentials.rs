//! Credentials of upstreams: asked for with every request, and kept by no connection.
//! Spec: SPEC A-22; DESIGN §6.

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::account::Account;
use super::carrier::http::client::ClientError;
use super::carrier::http::exchange_error::ExchangeError;
use crate::call::OwnerKey;
use crate::secret::Secret;

/// The credentials of one upstream.
pub trait Credentials: Send + Sync + std::fmt::Debug {
    /// The account whose credential requests for `owner` carry.
    fn account_of(&self, owner: OwnerKey) -> Account;

    /// The credential of one request, of `account`. Called for each request of every kind.
    fn for_request(&self, account: Account) -> Credential<'_>;
}

/// Credential headers of one request. A header that the request already has is left as it is.
pub enum Credential<'a> {
    /// At hand.
    Ready(&'a HeaderMap),
    /// To be waited for, such as a token that is refreshed.
    Awaited(BoxFuture<'a, Result<HeaderMap, ExchangeError>>),
}

/// The headers of the configuration, the same for everybody.
#[derive(Debug)]
pub(super) struct FixedHeaders(HeaderMap);

impl FixedHeaders {
    /// The headers of `configured`.
    ///
    /// # Errors
    /// [`ClientError::Header`] for one that cannot be sent.
    pub(super) fn new(configured: &[(String, Secret)]) -> Result<Self, ClientError> {
        let mut headers = HeaderMap::new();
        for (name, value) in configured {
            let bad = || ClientError::Header(name.clone());
            let name: HeaderName = name.parse().map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self(headers))
    }
}

impl Credentials for FixedHeaders {
    fn account_of(&self, _owner: OwnerKey) -> Account {
        Account::Common
    }

    fn for_request(&self, _account: Account) -> Credential<'_> {
        Credential::Ready(&self.0)
    }
}

impl std::fmt::Debug for Credential<'_> {
    /// Shows no credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Awaited(_) => "Awaited",
        })
    }
}
