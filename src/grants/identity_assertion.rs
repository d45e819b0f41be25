//! Identity assertions: the identity provider exchanges a person's ID token for an ID-JAG, and the upstream's
//! authorization server accepts that for an access token. Spec: MCP, enterprise-managed authorization; RFC 8693 §2; RFC
//! 7523 §2.1.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use url::Url;

use super::client_key::{ClientKeyError, ClientProof};
use super::discovery::DiscoveredServer;
use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, MAX_SHOWN};
use super::exchange::{self, TOKEN_EXCHANGE};
use super::extension_grant::{self, RequestingClient};
use super::failure::TokenFailure;
use super::metadata_cache::{FoundServer, MetadataCache};
use super::server_metadata::{self, ServerMetadata};
use super::token_endpoint::{IssuedToken, TokenError};
use crate::call::OwnerKey;
use crate::config::ClientKey;
use crate::secret::Secret;
use crate::telemetry::redact::shown;
use crate::telemetry::trace::StepSpan;

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
/// ID tokens of persons, from their login at the identity provider.
pub trait IdTokens: std::fmt::Debug + Send + Sync {
    /// An unexpired ID token of `owner`, issued to the client of the login.
    ///
    /// # Errors
    /// Why there is none: for example, the person has to log in.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn id_token(&self, owner: OwnerKey) -> BoxFuture<'_, Result<Secret, TokenFailure>>;

    /// Whether [`id_token`](Self::id_token) can succeed, judged without a request: `false` if the login has ended and cannot
    /// be refreshed.
    fn is_at_hand(&self, _owner: OwnerKey) -> bool {
        true
    }

    /// Another ID token of `owner` than `refused`, which the identity provider does not take; `None` where there is
    /// none.
    ///
    /// # Errors
    /// As for [`id_token`](Self::id_token).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn another<'a>(
        &'a self,
        _owner: OwnerKey,
        _refused: &'a Secret,
    ) -> BoxFuture<'a, Result<Option<Secret>, TokenFailure>> {
        ready(Ok(None)).boxed()
    }
}

/// The identity provider, as the client of the login sees it.
#[derive(Debug)]
pub struct IdentityProvider {
    issuer: String,
    client_id: String,
    proof: ClientProof,
    tokens: Arc<dyn IdTokens>,
    metadata: MetadataCache<TokenFailure>,
}

/// The requested scopes, and the client at the upstream's server.
#[derive(Debug)]
pub(super) struct AssertedRequest<'a> {
    pub(super) client: RequestingClient<'a>,
    pub(super) found: &'a DiscoveredServer,
    pub(super) scopes: &'a [String],
}

impl IdentityProvider {
    /// The provider `issuer`, which knows the gateway as `client_id` with `key`, and whose ID tokens `tokens` has.
    ///
    /// # Errors
    /// `key` cannot be used.
    pub fn new(
        issuer: &str,
        client_id: &str,
        key: &ClientKey,
        tokens: Arc<dyn IdTokens>,
    ) -> Result<Arc<Self>, ClientKeyError> {
        Ok(Arc::new(Self {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            proof: ClientProof::new(key)?,
            tokens,
            metadata: MetadataCache::default(),
        }))
    }

    /// Whether `owner` has an ID token to be asserted by.
    pub(super) fn has_id_token(&self, owner: OwnerKey) -> bool {
        self.tokens.is_at_hand(owner)
    }

    /// A token of `owner` for the upstream.
    ///
    /// # Errors
    /// [`TokenFailure`], which says whose server refused.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub(super) async fn token(
        &self,
        clients: &DocumentClients,
        owner: OwnerKey,
        asked: &AssertedRequest<'_>,
    ) -> Result<IssuedToken, TokenFailure> {
        let id_token = self.tokens.id_token(owner).await?;
        let server = self.server(clients).await?;
        let mut assertion = self.assertion(clients, &server, &id_token, asked).await;
        if assertion.as_ref().is_err_and(is_of_subject)
            && let Some(another) = self.tokens.another(owner, &id_token).await?
        {
            assertion = self.assertion(clients, &server, &another, asked).await;
        }
        let assertion = match assertion {
            Ok(assertion) => assertion,
            Err(error) => {
                let failure = error.into_failure(&server.token_endpoint).at_provider();
                // A refusal of one person's token says nothing of the server.
                if !failure.is_of_caller() {
                    self.metadata.forget_old().await;
                }
                return Err(failure);
            }
        };
        let fields = [
            ("grant_type", JWT_BEARER),
            ("assertion", assertion.expose()),
        ];
        let granted = extension_grant::request(clients, &asked.client, &fields).await;
        let issued = granted.and_then(exchange::issued);
        issued.map_err(|error| {
            let failure = error.into_failure(&asked.client.server.token_endpoint);
            failure.of_assertion()
        })
    }

    /// The ID-JAG for the upstream's server.
    async fn assertion(
        &self,
        clients: &DocumentClients,
        server: &ServerMetadata,
        id_token: &Secret,
        asked: &AssertedRequest<'_>,
    ) -> Result<Secret, TokenError> {
        let trusted = Url::parse(&self.issuer).ok();
        let client = RequestingClient {
            server,
            client_id: &self.client_id,
            proof: &self.proof,
            trusted: trusted.as_ref(),
        };
        let scope = asked.scopes.join(" ");
        let mut fields = vec![
            ("grant_type", TOKEN_EXCHANGE),
            ("requested_token_type", ID_JAG),
            ("audience", asked.found.server.issuer.as_str()),
            ("resource", asked.found.resource.as_str()),
            ("subject_token", id_token.expose()),
            ("subject_token_type", ID_TOKEN),
        ];
        if !scope.is_empty() {
            fields.push(("scope", &scope));
        }
        let host = server.token_endpoint.host_str().unwrap_or_default();
        let span = StepSpan::token_request(host, None);
        let granted = extension_grant::request(clients, &client, &fields).await;
        span.end(granted.as_ref().map_or_else(TokenError::word, |_| "ok"));
        let granted = granted?;
        // `token_type` is N_A and not checked: an ID-JAG is not used at a resource.
        match granted.issued_type.as_deref() {
            Some(ID_JAG) => Ok(granted.token),
            other => Err(TokenError::OtherTokenType {
                found: shown(other.unwrap_or("none"), MAX_SHOWN).into_owned(),
            }),
        }
    }

    /// The metadata, fetched where it is not cached.
    async fn server(&self, clients: &DocumentClients) -> FoundServer<TokenFailure> {
        let fetch = async {
            let trusted = Url::parse(&self.issuer).ok();
            let fetched = server_metadata::fetch(clients, &self.issuer, trusted.as_ref()).await;
            fetched.map_err(DiscoveryError::into_provider_failure)
        };
        self.metadata.get(fetch).await
    }
}

/// Whether another ID token may be taken.
fn is_of_subject(error: &TokenError) -> bool {
    matches!(
        error,
        TokenError::OAuth {
            // RFC 8693 §2.2.2 wants `invalid_request` for a subject token that is no longer valid.
            code: "invalid_grant" | "invalid_token" | "invalid_request",
            ..
        }
    )
}
