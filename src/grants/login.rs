//! `LoginClient`: the gateway as the client of an issuer where people log in for the connect pages.
//!
//! `LoginClient` builds the URL that a browser is sent to, and redeems the code that the browser brings back. `auth`
//! decides whose the tokens are; the connect pages tie an answer to its browser.
//! Spec: RFC 6749 §4.1; RFC 7636; RFC 8707 §2; RFC 9207 §2.4; `OpenID` Connect Core §3.1.2.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use url::Url;

use super::account::AccountSetupError;
use super::authorization::proof_key;
use super::client_key::ClientProof;
use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, DocumentError, SharedClients};
use super::login_failure::LoginFailure;
use super::metadata_cache::{FoundServer, MetadataCache};
use super::server_metadata::{self, ServerMetadata};
use super::token_claims;
use super::token_endpoint::{self, TokenError, TokenGrant, TokenRequest};
use crate::config::LoginConfig;
use crate::lock::lock;
use crate::secret::Secret;
use crate::telemetry::trace::StepSpan;
use crate::vault::{GrantKind, GrantRecord, TokenPlacement};

/// Time limit for discovery and the token request together.
const LIMIT: Duration = Duration::from_secs(20);
/// Time limit for all documents of the issuer's metadata, and for a wait that includes another caller's search for them.
const METADATA_LIMIT: Duration = Duration::from_secs(8);
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// How long a page waits for metadata that it can be shown without, and for how long no page waits after one has done so
/// in vain.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
const AFTER_DELAY: Duration = Duration::from_secs(30);
/// The scope of a login that ends with an ID token.
pub const OPENID: &str = "openid";
/// The scope of a grant that outlives the person's session. Spec: `OpenID` Connect Core 1.0 §11
pub(crate) const OFFLINE: &str = "offline_access";

/// One `connect.login`.
#[derive(Debug)]
pub struct LoginClient {
    issuer: String,
    client_id: String,
    proof: ClientProof,
    clients: DocumentClients,
    metadata: MetadataCache<LoginFailure>,
    /// When the metadata last came too late for a page.
    late: Mutex<Option<Instant>>,
}

/// The scopes of a login that is kept.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptScopes {
    /// All scopes that the login is going to ask for.
    pub scopes: Vec<String>,
    /// Whether `offline_access` is among them.
    pub has_offline: bool,
    /// Whether the issuer's metadata were there; else the issuer may have no `offline_access`.
    pub is_certain: bool,
}

/// The parameters of the URL that a browser is sent to.
pub struct LoginRequest<'a> {
    /// Where the server sends the browser back.
    pub redirect_uri: &'a Url,
    /// Ties the answer to the browser.
    pub state: &'a str,
    /// Ties the ID token to this request; sent with the scope `openid`.
    pub nonce: &'a str,
    /// The PKCE verifier, whose digest is sent.
    pub verifier: &'a Secret,
    /// Scopes to request; an empty list sends no `scope`.
    pub scopes: &'a [String],
    /// The resource of the access token, where an access token is requested.
    pub resource: Option<&'a str>,
    /// Whether the server must ask for credentials even if it knows the browser (`prompt=login`).
    pub asks_again: bool,
    /// Whether it is for a login that is kept: also for `openid`, and `offline_access` where the server has that.
    pub keeps: bool,
    /// Whether `offline_access` may be asked for: a server may refuse it to a client or a user.
    pub may_outlast: bool,
}

impl std::fmt::Debug for LoginRequest<'_> {
    /// Shows neither `state` nor `nonce`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginRequest")
            .field("scopes", &self.scopes)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

/// The answer that a browser brings back.
#[derive(Debug)]
pub struct LoginResponse<'a> {
    /// The code.
    pub code: &'a Secret,
    /// `iss`. Spec: RFC 9207 §2
    pub issuer: Option<&'a str>,
    /// [`LoginRequest::redirect_uri`].
    pub redirect_uri: &'a Url,
    /// [`LoginRequest::verifier`].
    pub verifier: &'a Secret,
    /// [`LoginRequest::resource`].
    pub resource: Option<&'a str>,
}

/// The tokens that a code was redeemed for.
#[derive(Debug)]
pub struct LoginTokens {
    /// The access token.
    pub access_token: Secret,
    /// The ID token, if the server gave one.
    pub id_token: Option<Secret>,
    /// What gets the next ID token.
    refresh_token: Option<Secret>,
    /// The granted scopes, if the server names them.
    scopes: Option<Vec<String>>,
    server: Arc<ServerMetadata>,
}

impl LoginClient {
    /// The client of `config`. Sends no request.
    ///
    /// # Errors
    /// `private_key` cannot be used.
    pub fn new(config: &LoginConfig, shared: SharedClients) -> Result<Self, AccountSetupError> {
        let origin = Url::parse(&config.issuer).map_err(|_| AccountSetupError::Issuer)?;
        Ok(Self {
            issuer: config.issuer.clone(),
            client_id: config.client_id.clone(),
            proof: ClientProof::new(&config.client_key)?,
            clients: DocumentClients::of_issuer(shared, origin),
            metadata: MetadataCache::default(),
            late: Mutex::default(),
        })
    }

    /// The URL that a browser is sent to.
    ///
    /// # Errors
    /// The issuer's metadata cannot be had or used.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the search under way.
    pub async fn authorization_url(&self, request: &LoginRequest<'_>) -> Result<Url, LoginFailure> {
        let server = self.server().await?;
        let mut url = self.authorization_endpoint(&server, request.resource.is_some())?;
        let (scopes, prompt) = asked(request, &server);
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", request.redirect_uri.as_str())
            .append_pair("state", request.state)
            .append_pair("code_challenge", &proof_key::challenge(request.verifier))
            .append_pair("code_challenge_method", "S256");
        if !scopes.is_empty() {
            query.append_pair("scope", &scopes.join(" "));
        }
        if scopes.contains(&OPENID) {
            query.append_pair("nonce", request.nonce);
        }
        if let Some(resource) = request.resource {
            query.append_pair("resource", resource);
        }
        if !prompt.is_empty() {
            query.append_pair("prompt", &prompt.join(" "));
        }
        drop(query);
        Ok(url)
    }

    /// Redeems a code. The caller has verified that the answer is this issuer's.
    ///
    /// # Errors
    /// [`LoginFailure`], which holds no secret.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way; the code may be used up.
    pub async fn redeem(&self, answer: &LoginResponse<'_>) -> Result<LoginTokens, LoginFailure> {
        let redeemed = timeout(LIMIT, async {
            let server = self.server().await?;
            self.check_issuer(answer.issuer, &server)?;
            let request = TokenRequest {
                server: &server,
                client_id: &self.client_id,
                proof: &self.proof,
                scopes: &[],
                resource: answer.resource,
                grant: TokenGrant::Code {
                    code: answer.code,
                    verifier: answer.verifier,
                    redirect_uri: answer.redirect_uri.as_str(),
                },
            };
            let host = server.token_endpoint.host_str().unwrap_or_default();
            let span = StepSpan::token_request(host, None);
            let issued = token_endpoint::request(&self.clients, &request, None).await;
            span.end(issued.as_ref().map_or_else(TokenError::word, |_| "ok"));
            let is_refusal = |error: &TokenError| matches!(error, TokenError::OAuth { .. });
            if issued.as_ref().is_err_and(|error| !is_refusal(error)) {
                // The token endpoint may have moved.
                self.metadata.forget_old().await;
            }
            let issued = issued
                .map_err(|error| LoginFailure::of_token_request(&error, &server.token_endpoint));
            Ok((issued?, server))
        });
        let (issued, server) = redeemed
            .await
            .unwrap_or_else(|_| Err(LoginFailure::slow(LIMIT)))?;
        Ok(LoginTokens {
            access_token: issued.token,
            id_token: issued.id_token,
            refresh_token: issued.refresh,
            scopes: issued.scopes,
            server,
        })
    }

    /// The login of `tokens`, whose ID token was verified, as it is kept; `None` without an ID token.
    #[must_use]
    pub fn kept(&self, tokens: LoginTokens) -> Option<GrantRecord> {
        tokens.id_token.is_some().then(|| self.record(tokens))
    }

    /// The login of `tokens`, which are refused, for their revocation; `None` without a refresh token.
    #[must_use]
    pub fn unkept(&self, tokens: LoginTokens) -> Option<GrantRecord> {
        tokens.refresh_token.is_some().then(|| self.record(tokens))
    }

    fn record(&self, tokens: LoginTokens) -> GrantRecord {
        let (server, id_token) = (&tokens.server, tokens.id_token);
        let revocation = server.consent.revocation_endpoint.as_ref();
        let asked = || vec![OPENID.to_owned(), OFFLINE.to_owned()];
        GrantRecord {
            kind: GrantKind::Login,
            issuer: self.issuer.clone(),
            token_endpoint: Some(server.token_endpoint.to_string()),
            revocation_endpoint: revocation.map(Url::to_string),
            resource: self.issuer.clone(),
            client_id: Some(self.client_id.clone()),
            auth_method: Some(self.proof.method(server.client_auth.as_deref()).to_owned()),
            placement: TokenPlacement::None,
            scopes: tokens.scopes.unwrap_or_else(asked),
            requested: Vec::new(),
            account: id_token.as_ref().and_then(token_claims::subject),
            access_ends: id_token.as_ref().and_then(token_claims::ends),
            access_token: id_token,
            refresh_token: tokens.refresh_token,
        }
    }

    /// Whether a login could be begun and ended, by the issuer's metadata: as [`is_pairwise`](Self::is_pairwise)
    /// where it could. `is_for_access`: it would end with an access token.
    ///
    /// # Errors
    /// What is in the way.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the search under way.
    pub async fn rehearse(&self, is_for_access: bool) -> Result<bool, LoginFailure> {
        let server = self.server().await?;
        self.authorization_endpoint(&server, is_for_access)?;
        let url = &server.token_endpoint;
        if let Err(refusal) = self.clients.check(url, None) {
            let error = TokenError::Request(DocumentError::Refused(refusal));
            return Err(LoginFailure::of_token_request(&error, url));
        }
        Ok(server.consent.is_pairwise)
    }

    /// Whether the server gives each client another subject, and offers nothing else.
    ///
    /// # Errors
    /// The issuer's metadata cannot be had.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the search under way.
    pub async fn is_pairwise(&self) -> Result<bool, LoginFailure> {
        Ok(self.server().await?.consent.is_pairwise)
    }

    /// All scopes of a login that is kept and would else ask for `scopes`, for a page: waits 2 s at most. If it `may_outlast`,
    /// `offline_access` is among them also where the issuer's metadata are not there.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the search under way.
    pub async fn kept_scopes(&self, scopes: &[String], may_outlast: bool) -> KeptScopes {
        let server = self.server_for_page().await;
        let has_offline = may_outlast && server.as_deref().is_none_or(takes_offline);
        let scopes = scopes.iter().map(String::as_str).collect();
        let all = with_kept(scopes, has_offline);
        KeptScopes {
            scopes: all.into_iter().map(str::to_owned).collect(),
            has_offline,
            is_certain: server.is_some(),
        }
    }

    /// The issuer's metadata for a page; `None` where they are not there in time, or cannot be had.
    async fn server_for_page(&self) -> Option<Arc<ServerMetadata>> {
        if lock(&self.late).is_some_and(|at| at.elapsed() < AFTER_DELAY) {
            return self.metadata.known();
        }
        let found = timeout(SHOWN_WITHIN, self.server()).await;
        if found.is_err() {
            *lock(&self.late) = Some(Instant::now());
        }
        found.ok()?.ok()
    }

    /// The issuer's metadata, fetched where it is not cached.
    async fn server(&self) -> FoundServer<LoginFailure> {
        let fetch = async {
            let fetched = server_metadata::fetch(&self.clients, &self.issuer, None);
            match timeout(METADATA_LIMIT, fetched).await {
                Ok(fetched) => fetched.map_err(|error| LoginFailure::of_discovery(&error)),
                Err(_) => Err(LoginFailure::slow(METADATA_LIMIT)),
            }
        };
        let found = timeout(WAIT_LIMIT, self.metadata.get(fetch)).await;
        found.unwrap_or_else(|_| Err(LoginFailure::slow(WAIT_LIMIT)))
    }

    /// The authorization endpoint, which a document names and may thus be `javascript:` or an address inside. Spec:
    /// SPEC X-01
    fn authorization_endpoint(
        &self,
        server: &ServerMetadata,
        is_for_access: bool,
    ) -> Result<Url, LoginFailure> {
        let Some(mut url) = server.consent.authorization_endpoint.clone() else {
            return Err(LoginFailure::no_endpoint(&self.issuer));
        };
        if let Err(refusal) = self.clients.check(&url, None) {
            let source = DocumentError::Refused(refusal);
            return Err(LoginFailure::of_discovery(&DiscoveryError::Fetch {
                url,
                source,
            }));
        }
        // Servers that list no methods may still support PKCE (Entra does): the challenge is sent anyway, and the nonce
        // protects the code as well. An access token has no nonce.
        if !server.consent.lists_s256.unwrap_or(!is_for_access) {
            return Err(LoginFailure::no_pkce(&self.issuer));
        }
        url.set_fragment(None);
        Ok(url)
    }

    /// Checks `iss` of the answer. Spec: RFC 9207 §2.4
    fn check_issuer(
        &self,
        named: Option<&str>,
        server: &ServerMetadata,
    ) -> Result<(), LoginFailure> {
        match named {
            Some(named) if named == self.issuer => Ok(()),
            None if !server.consent.names_issuer => Ok(()),
            named => Err(LoginFailure::other_issuer(&self.issuer, named)),
        }
    }
}

/// Whether `server` lists `offline_access`, or no scopes at all.
fn takes_offline(server: &ServerMetadata) -> bool {
    let known = &server.consent.scopes;
    known.is_empty() || known.iter().any(|scope| scope == OFFLINE)
}

/// `scopes` with those of a login that is kept.
fn with_kept(mut scopes: Vec<&str>, has_offline: bool) -> Vec<&str> {
    for scope in std::iter::once(OPENID).chain(has_offline.then_some(OFFLINE)) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes
}

/// Scopes and prompts of `request`.
fn asked<'a>(
    request: &'a LoginRequest<'_>,
    server: &ServerMetadata,
) -> (Vec<&'a str>, Vec<&'static str>) {
    let mut scopes: Vec<_> = request.scopes.iter().map(String::as_str).collect();
    let mut prompt = Vec::new();
    if request.asks_again {
        prompt.push("login");
    }
    if request.keeps {
        let has_offline = request.may_outlast && takes_offline(server);
        scopes = with_kept(scopes, has_offline);
        if has_offline {
            prompt.push("consent");
        }
    }
    (scopes, prompt)
}

#[cfg(test)]
mod tests;
