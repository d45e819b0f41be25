//! `UserAccount`: what all principals' accounts at one upstream, or their kept logins at one issuer, have in common.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::sync::oneshot;
use tokio::time::Instant;
use url::Url;

use super::account::AccountSetupError;
use super::account_log::AccountLog;
use super::client_key::ClientProof;
use super::discovery::{DiscoveredServer, DiscoveryHints};
use super::documents::{DocumentClients, SharedClients};
use super::failure::TokenFailure;
use super::held_token::PlacedToken;
use super::resource_metadata::covers;
use super::server_lookup::ServerLookup;
use super::server_metadata::ServerMetadata;
use super::token_endpoint::{self, IssuedToken, TokenError, TokenRequest};
use crate::audit::AuditSink;
use crate::cause::ErrorCause;
use crate::config::{
    AccountKind, AccountLists, ClientRegistration, ConfiguredClient, LoginConfig, TokenPlace,
    UserAccountConfig,
};
use crate::database::DatabaseError;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::token_request_ended;
use crate::telemetry::request_tag;
use crate::telemetry::trace::{self, StepSpan};
use crate::vault::{GrantKind, GrantRecord, TokenPlacement, Vault};

/// Time limit for the discovery before an authorization.
const LOOKUP_LIMIT: Duration = Duration::from_secs(20);
/// How long a page waits for the discovery.
const PAGE_LIMIT: Duration = Duration::from_secs(8);

/// Time limit for the metadata before a token request: the lease of a refresh outlasts both.
const METADATA_LIMIT: Duration = Duration::from_secs(5);

/// How long a failed discovery is cached: every visit of a connect page starts one.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The settings and HTTP clients of the accounts at one upstream, or of the kept logins at one issuer.
#[derive(Debug)]
pub struct UserAccount {
    pub(super) upstream: Arc<str>,
    /// What the grants are.
    pub(super) kind: GrantKind,
    pub(super) config: UserAccountConfig,
    pub(super) clients: DocumentClients,
    pub(super) vault: Vault,
    pub(super) audit: AuditSink,
    pub(super) tasks: TaskSpawner,
    pub(super) log: AccountLog,
    lookup: ServerLookup,
    /// The last failed discovery, and when it ended.
    failed: Mutex<Option<(TokenFailure, Instant)>>,
    /// Configured headers, sent with every token.
    fixed: HeaderMap,
    /// Credentials of the configured client.
    proof: Option<Arc<ClientProof>>,
}

impl UserAccount {
    /// The accounts of `kind` at `upstream`, whose MCP endpoint is `url`; of a child, what its tokens are for. `fixed` are
    /// its configured headers.
    ///
    /// # Errors
    /// `private_key` cannot be used.
    pub fn new(
        kind: GrantKind,
        upstream: Arc<str>,
        url: Url,
        config: UserAccountConfig,
        (clients, fixed): (DocumentClients, HeaderMap),
        (vault, audit, tasks): (Vault, AuditSink, TaskSpawner),
    ) -> Result<Arc<Self>, AccountSetupError> {
        let proof = match &config.client {
            Some(client) => Some(Arc::new(match &client.key {
                Some(key) => ClientProof::new(key)?,
                None => ClientProof::Public,
            })),
            None => None,
        };
        Ok(Arc::new(Self {
            lookup: ServerLookup::new(Arc::clone(&upstream), url, proof.is_some()),
            log: AccountLog::new(Arc::clone(&upstream), account_kind(kind)),
            failed: Mutex::default(),
            upstream,
            kind,
            config,
            clients,
            vault,
            audit,
            tasks,
            fixed,
            proof,
        }))
    }

    /// The kept logins at the issuer of `login`. Sends no request.
    ///
    /// # Errors
    /// `private_key` cannot be used, or `issuer` is no URL.
    pub(super) fn of_login(
        login: &LoginConfig,
        shared: SharedClients,
        keeping: (Vault, AuditSink, TaskSpawner),
    ) -> Result<Arc<Self>, AccountSetupError> {
        let origin = Url::parse(&login.issuer).map_err(|_| AccountSetupError::Issuer)?;
        let name = Arc::from(login_name(&login.issuer));
        let config = UserAccountConfig {
            issuer: Some(login.issuer.clone()),
            client: Some(ConfiguredClient {
                id: login.client_id.clone(),
                key: Some(login.client_key.clone()),
            }),
            registration: ClientRegistration::Auto,
            scopes: Vec::new(),
            resource: Some(login.issuer.clone()),
            // An ID token goes to the identity provider alone, in the form of a token request.
            place: TokenPlace::Header {
                name: AUTHORIZATION,
                prefix: String::new(),
            },
            lists: AccountLists::Own,
        };
        let clients = DocumentClients::of_issuer(shared, origin.clone());
        let parts = (clients, HeaderMap::new());
        Self::new(GrantKind::Login, name, origin, config, parts, keeping)
    }

    /// The name of the upstream; that of the kept logins for an issuer.
    #[must_use]
    pub fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    /// Why the last token request failed, or why the upstream refused the token; `None` after the next success.
    #[must_use]
    pub fn last_cause(&self) -> Option<ErrorCause> {
        self.log.last_cause()
    }

    /// The failure that `error` is, which is logged.
    pub(super) fn logged(&self, error: impl Into<TokenFailure>) -> TokenFailure {
        let failure = error.into();
        self.log.failed(&failure, None);
        failure
    }

    /// The configured issuer, whose origin may be contacted without the egress rules.
    pub(super) fn trusted(&self) -> Option<Url> {
        DiscoveryHints::from(&self.config).trusted()
    }

    /// The authorization server, and the scopes and resource to request.
    ///
    /// # Errors
    /// [`TokenFailure`], which was logged.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub(super) async fn discovered(&self) -> Result<Arc<DiscoveredServer>, TokenFailure> {
        let hints = DiscoveryHints::from(&self.config);
        let last = lock(&self.failed).clone();
        if let Some((failure, at)) = last
            && at.elapsed() < AFTER_FAILURE
        {
            return Err(failure);
        }
        let found = self.lookup.find(&self.clients, &hints);
        let found = tokio::time::timeout(LOOKUP_LIMIT, found).await;
        let found = found.unwrap_or_else(|_| Err(TokenFailure::slow(LOOKUP_LIMIT)));
        found.inspect_err(|failure| {
            *lock(&self.failed) = Some((failure.clone(), Instant::now()));
            self.log.failed(failure, None);
        })
    }

    /// [`discovered`](Self::discovered) for a page, which waits 8 s at most: then the next page may have the result.
    ///
    /// # Errors
    /// [`TokenFailure`], which was logged.
    ///
    /// # Cancel safety
    /// The discovery goes on.
    pub(super) async fn discovered_for_page(
        self: &Arc<Self>,
    ) -> Result<Arc<DiscoveredServer>, TokenFailure> {
        let (told, found) = oneshot::channel();
        let account = Arc::clone(self);
        let search = trace::keep(async move {
            // The page may have gone.
            drop(told.send(account.discovered().await));
        });
        self.tasks.spawn_service(request_tag::keep(search));
        match tokio::time::timeout(PAGE_LIMIT, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(self.logged(TokenFailure::stopping())),
            Err(_) => Err(self.logged(TokenFailure::slow(PAGE_LIMIT))),
        }
    }

    /// Caches `found` as the result of the discovery.
    #[cfg(test)]
    pub(super) fn believe(&self, found: DiscoveredServer) {
        self.lookup.believe(found);
    }

    /// Drops the cached discovery, once a minute at most: refusals of many principals' tokens cause one lookup.
    pub(super) fn forget(&self) {
        self.lookup.forget_once_a_minute();
    }

    /// Whether the present configuration still sends the token of `record` there: upstream URL or `resource`, header or
    /// variable, `issuer` and client are the same.
    pub(super) fn is_ours(&self, record: &GrantRecord) -> bool {
        let config = &self.config;
        let is_resource = match &config.resource {
            Some(resource) => record.resource == *resource,
            None => covers(&record.resource, self.lookup.url()),
        };
        let is_issuer = (config.issuer.as_ref()).is_none_or(|issuer| record.issuer == *issuer);
        let is_client = (config.client.as_ref())
            .is_none_or(|client| record.client_id.as_deref() == Some(&client.id));
        record.kind == self.kind
            && is_resource
            && is_issuer
            && is_client
            && record.placement == self.placement()
    }

    /// The header that carries tokens.
    pub(super) fn placement(&self) -> TokenPlacement {
        match self.kind {
            GrantKind::Login => TokenPlacement::None,
            GrantKind::User | GrantKind::UserKey => TokenPlacement::of(&self.config.place),
        }
    }

    /// The token of `record` where it goes; `None` where the configuration has changed or the token cannot go there.
    pub(super) fn placed(&self, record: &GrantRecord) -> Option<PlacedToken> {
        let token = record
            .access_token
            .as_ref()
            .filter(|_| self.is_ours(record))?;
        match self.kind {
            GrantKind::Login => Some(PlacedToken::default()),
            GrantKind::User | GrantKind::UserKey => {
                PlacedToken::new(&self.fixed, &self.config.place, token)
            }
        }
    }

    /// Credentials of the client `client_id` at `issuer`; `None` where the gateway is no longer that client. Those of the
    /// configuration are for its `issuer` alone: what was begun with another one may still wait in the database.
    ///
    /// # Errors
    /// The database fails.
    // Spec: SPEC B-10
    pub(super) async fn proof_of(
        &self,
        issuer: &str,
        client_id: &str,
        auth_method: Option<&str>,
    ) -> Result<Option<Arc<ClientProof>>, DatabaseError> {
        if let Some(client) = &self.config.client {
            let is_there =
                (self.config.issuer.as_ref()).is_none_or(|configured| configured == issuer);
            let is_this = is_there && client.id == client_id;
            return Ok(self.proof.clone().filter(|_| is_this));
        }
        if auth_method == Some("none") {
            return Ok(Some(Arc::new(ClientProof::Public)));
        }
        let registration = self.vault.registrations().get(issuer, client_id).await?;
        let secret = registration.and_then(|record| record.client_secret);
        Ok(secret.map(|secret| Arc::new(ClientProof::Secret(secret))))
    }

    /// The server of a sealed grant, or of an authorization that waits. How it takes assertions is not sealed: that is read
    /// from the metadata, where these are there within 5 s.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request under way.
    pub(super) async fn remembered(
        &self,
        issuer: &str,
        endpoint: Url,
        auth_method: Option<&str>,
    ) -> ServerMetadata {
        let mut server = ServerMetadata::remembered(issuer, endpoint, auth_method);
        if auth_method == Some("private_key_jwt")
            && let Ok(Ok(found)) = tokio::time::timeout(METADATA_LIMIT, self.discovered()).await
            && found.server.issuer == issuer
        {
            let algorithms = &found.server.assertion_algorithms;
            server.assertion_algorithms.clone_from(algorithms);
        }
        server
    }

    /// How the configured client authenticates at a server that accepts the methods `taken`.
    pub(super) fn auth_method(&self, taken: Option<&[String]>) -> &'static str {
        let proof = self.proof.as_ref();
        proof.map_or("none", |proof| proof.method(taken))
    }

    /// Requests a token; counts the outcome and logs a failure.
    ///
    /// # Errors
    /// [`TokenError`], which holds no secret.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn ask(&self, asked: &TokenRequest<'_>) -> Result<IssuedToken, TokenError> {
        let began = Instant::now();
        let trusted = self.trusted();
        let kind = account_kind(self.kind).as_str();
        let host = asked.server.token_endpoint.host_str().unwrap_or_default();
        let span = StepSpan::token_request(host, Some((&self.upstream, kind)));
        let outcome = token_endpoint::request(&self.clients, asked, trusted.as_ref()).await;
        let word = outcome.as_ref().map_or_else(TokenError::word, |_| "ok");
        span.end(word);
        token_request_ended(&self.upstream, kind, word, began.elapsed());
        outcome
    }
}

/// What the log and the metrics call accounts whose grants are of `kind`.
fn account_kind(kind: GrantKind) -> AccountKind {
    match kind {
        GrantKind::Login => AccountKind::IdJag,
        GrantKind::User | GrantKind::UserKey => AccountKind::User,
    }
}

/// What kept logins at `issuer` are found by in the vault. No upstream has such a name.
#[must_use]
pub fn login_name(issuer: &str) -> String {
    format!("login:{issuer}")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::authorization::{account_at, account_with};
    use super::*;

    #[tokio::test]
    async fn key_signs_as_the_server_of_a_grant_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        let account = account_with(&dir, "").await;
        let endpoint = Url::parse("https://as.test/token").unwrap();
        let mut server = ServerMetadata::remembered("https://as.test", endpoint.clone(), None);
        server.assertion_algorithms = Some(vec!["PS256".to_owned()]);
        account.believe(DiscoveredServer {
            server,
            resource: "https://up.test/mcp".to_owned(),
            scopes: Vec::new(),
        });
        for (issuer, method, is_known) in [
            ("https://as.test", "private_key_jwt", true),
            ("https://former.test", "private_key_jwt", false),
            ("https://as.test", "client_secret_basic", false),
        ] {
            let server = account.remembered(issuer, endpoint.clone(), Some(method));
            let algorithms = server.await.assertion_algorithms;
            assert_eq!(algorithms.is_some(), is_known, "{issuer} {method}");
        }
    }

    // SPEC B-10
    #[tokio::test]
    async fn configured_secret_is_for_the_configured_issuer_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = "client_id = \"g\"\nclient_secret = \"hunter2\"\nissuer = \"https://as.test\"";
        let account = account_with(&dir, keys).await;
        let proof = async |issuer, client| {
            let method = Some("client_secret_basic");
            let proof = account.proof_of(issuer, client, method).await;
            proof.unwrap().is_some()
        };
        assert!(proof("https://as.test", "g").await);
        assert!(!proof("https://as.test", "other").await);
        // What was begun before the configuration changed waits in the database with the issuer of that time.
        assert!(!proof("https://former.test", "g").await);
    }

    #[tokio::test]
    async fn page_waits_eight_seconds_and_the_discovery_goes_on() {
        // Never answers: the upstream's challenge and its metadata take five seconds each.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", silent.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let account = account_at(&dir, &url, "").await;
        tokio::time::pause();
        let start = Instant::now();
        for (outcome, secs) in [("timeout", 8), ("unreachable", 10)] {
            let failure = account.discovered_for_page().await.unwrap_err();
            assert_eq!(failure.outcome, outcome);
            assert_eq!(start.elapsed().as_secs(), secs);
        }
    }
}
