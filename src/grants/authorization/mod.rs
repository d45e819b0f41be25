//! Authorizations: a person lets the gateway act for them at the upstream's authorization server.
//!
//! [`Authorizer::begin`] chooses the client, stores what the answer is checked against in a pending row, and returns
//! the URL for the browser. [`Authorizer::finish`] checks the answer, redeems the code and stores the grant. A row is
//! found by its `state` and used once.
//! Spec: RFC 6749 §4.1, RFC 7636, RFC 8707, RFC 9207; SPEC B-04…B-11, B-13.

mod brought_answer;
mod callback;
mod client_choice;
mod error;
mod gateway_client;
mod offline_refusals;
pub(in crate::grants) mod proof_key;
mod redemption;
mod registration;
mod rehearsal;
mod reported_refusal;
mod scope_refusals;
mod scopes;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use url::Url;

use self::brought_answer::BroughtAnswer;
pub use self::callback::{CallbackAnswer, CallbackRefusal, known_error};
#[cfg(test)]
pub(super) use self::client_choice::tests::{account_at, account_with};
use self::client_choice::{ChosenClient, ClientChoice};
use self::error::AuthorizationError;
pub use self::gateway_client::GatewayClient;
use self::offline_refusals::OfflineRefusals;
use self::redemption::CodeRedemption;
pub use self::redemption::FinishedAuthorization;
use self::rehearsal::browser_endpoint;
pub(in crate::grants) use self::rehearsal::rehearse;
use self::unfinished::{AskedScopes, UnfinishedAttempts};
use super::discovery::DiscoveredServer;
use super::failure::TokenFailure;
use super::server_metadata::ServerMetadata;
use super::user_account::UserAccount;
use crate::call::Principal;
use crate::runtime::fault_point;
use crate::telemetry::request_tag;
use crate::telemetry::trace;
use crate::vault::{GrantKey, PendingRecord};

/// Time limit for everything before the browser is sent on: a person waits for the page.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for redeeming a code and storing the grant, even if the browser has gone.
const FINISH_LIMIT: Duration = Duration::from_secs(20);
/// Random bytes in a `state`.
const STATE_LEN: usize = 32;

/// What a person will be asked; shown before anything is stored.
#[derive(Debug)]
pub struct ConsentPreview {
    /// Host of the authorization server.
    pub host: String,
    /// Scopes of the request.
    pub scopes: Vec<String>,
    /// Whether the person was sent there for these scopes before and did not come back, so that they may have been refused
    /// on a page of the server; the next attempt would differ.
    pub may_be_refused: bool,
}

/// An authorization that is waiting for its callback.
pub struct StartedAuthorization {
    /// Where the browser is sent.
    pub url: Url,
    /// Host of the authorization server.
    pub host: String,
    /// Why the gateway has registered itself although the server accepts client documents.
    pub note: Option<&'static str>,
}

impl std::fmt::Debug for StartedAuthorization {
    /// Shows no `state`, which the URL holds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedAuthorization")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// The parameters of a new authorization.
#[derive(Debug)]
pub struct ConsentRequest<'a> {
    /// The principal and the upstream.
    pub key: &'a GrantKey,
    /// Digest of the cookie that the browser has to bring back.
    pub cookie_digest: String,
    /// The program that asked.
    pub program: Option<String>,
    /// Scopes that the upstream demanded for a refused call.
    pub wider: &'a [String],
    /// Whether the person says that the server refused the scopes of the last attempt.
    pub is_refused: bool,
}

/// Authorizations at one upstream.
#[derive(Debug)]
pub struct Authorizer {
    account: Arc<UserAccount>,
    gateway: Arc<GatewayClient>,
    choice: ClientChoice,
    offline: OfflineRefusals,
    unfinished: UnfinishedAttempts,
}

impl Authorizer {
    /// Authorizations for `account` with the clients of `gateway`.
    #[must_use]
    pub fn new(account: Arc<UserAccount>, gateway: Arc<GatewayClient>) -> Arc<Self> {
        Arc::new(Self {
            offline: OfflineRefusals::new(&account.config.scopes),
            account,
            gateway,
            choice: ClientChoice::default(),
            unfinished: UnfinishedAttempts::default(),
        })
    }

    /// What a person will be asked. Stores nothing, and does not register the gateway. Waits 8 s at most for the discovery.
    ///
    /// # Errors
    /// The discovery failed; logged.
    ///
    /// # Cancel safety
    /// The discovery goes on.
    pub async fn preview(
        &self,
        key: &GrantKey,
        wider: &[String],
    ) -> Result<ConsentPreview, TokenFailure> {
        let found = self.account.discovered_for_page().await?;
        let endpoint = self.endpoint(&found.server)?;
        let scopes = self.scopes(key, &found, wider).await?;
        Ok(ConsentPreview {
            host: host(&endpoint),
            may_be_refused: self.may_be_refused(key, &scopes).await,
            scopes,
        })
    }

    /// Starts an authorization, which waits ten minutes for its callback.
    ///
    /// # Errors
    /// The server cannot be used, the row cannot be stored, or 30 s have passed; logged.
    ///
    /// # Cancel safety
    /// A registration that the server made may be stored or lost; nothing else is stored.
    pub async fn begin(
        &self,
        request: ConsentRequest<'_>,
    ) -> Result<StartedAuthorization, TokenFailure> {
        let begun = tokio::time::timeout(BEGIN_LIMIT, self.begun(request)).await;
        begun.unwrap_or_else(|_| Err(self.account.logged(TokenFailure::slow(BEGIN_LIMIT))))
    }

    // Spec: SPEC B-04, B-05, B-06, B-13
    async fn begun(
        &self,
        request: ConsentRequest<'_>,
    ) -> Result<StartedAuthorization, TokenFailure> {
        let account = &self.account;
        let found = account.discovered().await?;
        let endpoint = self.endpoint(&found.server)?;
        if request.is_refused {
            self.note_reported(request.key).await;
        }
        let scopes = self.scopes(request.key, &found, request.wider).await?;
        let place = (&found.server, request.key);
        let client = self.choice.choose(account, &self.gateway, place, &scopes);
        let ChosenClient {
            id,
            auth_method,
            redirect_uri,
            note,
        } = client.await.map_err(|error| account.logged(error))?;
        let verifier = proof_key::verifier();
        let state: [u8; STATE_LEN] = rand::random();
        let state = BASE64_URL_SAFE_NO_PAD.encode(state);
        let mut url = endpoint;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &id)
            .append_pair("redirect_uri", &redirect_uri)
            .append_pair("state", &state)
            .append_pair("code_challenge", &proof_key::challenge(&verifier))
            .append_pair("code_challenge_method", "S256")
            .append_pair("resource", &found.resource);
        if !scopes.is_empty() {
            url.query_pairs_mut()
                .append_pair("scope", &scopes.join(" "));
        }
        url.query_pairs_mut()
            .extend_pairs(scopes::for_refresh_token(&found.server, &scopes));
        let consent = &found.server.consent;
        let record = PendingRecord {
            upstream: account.upstream().to_string(),
            issuer: found.server.issuer.clone(),
            token_endpoint: found.server.token_endpoint.to_string(),
            revocation_endpoint: consent.revocation_endpoint.as_ref().map(Url::to_string),
            resource: found.resource.clone(),
            client_id: id,
            auth_method: Some(auth_method),
            names_issuer: consent.names_issuer,
            redirect_uri,
            scopes,
            verifier: Some(verifier),
            nonce: None,
            cookie_digest: request.cookie_digest,
            program: request.program,
        };
        let digest = state_digest(&state);
        let kept = account
            .vault
            .pending()
            .put(request.key.owner, &digest, &record)
            .await;
        kept.map_err(|error| account.logged(AuthorizationError::Pending(error)))?;
        let asked = AskedScopes::from(&record);
        self.unfinished.begun(request.key, asked);
        fault_point::reached("authorization_pending");
        Ok(StartedAuthorization {
            host: host(&url),
            url,
            note,
        })
    }

    /// Checks the answer to the authorization `pending`, redeems its code, and stores the grant of `key`. The audit record names
    /// `person`, whose browser brought the answer.
    ///
    /// # Errors
    /// [`CallbackRefusal`]: no grant was stored.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the code is redeemed and the grant stored.
    // Spec: SPEC B-06, B-13
    pub async fn finish(
        self: &Arc<Self>,
        key: GrantKey,
        pending: PendingRecord,
        (answer, person): (&CallbackAnswer<'_>, &Arc<Principal>),
    ) -> Result<FinishedAuthorization, CallbackRefusal> {
        self.choice
            .came_back(&self.gateway, (&key, &pending.client_id));
        drop(self.unfinished.ended(&key));
        let asked = AskedScopes::from(&pending);
        let brought = BroughtAnswer {
            person: Arc::clone(person),
            key,
            pending,
        };
        let code = match callback::check(&brought.pending, answer) {
            Ok(code) => code,
            Err(refusal) => {
                let refusal = self.noted((&brought.key, &asked), refusal).await;
                brought.refused(&self.account.audit, &refusal);
                return Err(refusal);
            }
        };
        let (told, outcome) = tokio::sync::oneshot::channel();
        let this = Arc::clone(self);
        let work = async move {
            let redemption = CodeRedemption {
                account: &this.account,
                key: &brought.key,
                pending: &brought.pending,
            };
            let kept = match redemption.redeem(&code).await {
                Ok(finished) => Ok(finished),
                Err(failure) => {
                    let refusal = CallbackRefusal::Failed(failure);
                    Err(this.noted((&brought.key, &asked), refusal).await)
                }
            };
            let audit = &this.account.audit;
            match &kept {
                Ok(finished) => brought.connected(audit, &finished.scopes),
                Err(refusal) => brought.refused(audit, refusal),
            }
            // The browser may have gone; the grant is stored all the same.
            drop(told.send(kept));
        };
        let work = request_tag::keep(trace::keep(work));
        self.account.tasks.finish(FINISH_LIMIT, work).await;
        match outcome.await {
            Ok(kept) => kept,
            Err(_) => Err(CallbackRefusal::Failed(
                self.account.logged(TokenFailure::slow(FINISH_LIMIT)),
            )),
        }
    }

    /// The authorization endpoint of a server that supports PKCE.
    fn endpoint(&self, server: &ServerMetadata) -> Result<Url, TokenFailure> {
        let trusted = self.account.trusted();
        let endpoint = browser_endpoint(server, &self.account.clients, trusted.as_ref());
        endpoint.map_err(|error| self.account.logged(error))
    }

    /// Scopes to request, those requested for the present grant included.
    async fn scopes(
        &self,
        key: &GrantKey,
        found: &DiscoveredServer,
        wider: &[String],
    ) -> Result<Vec<String>, TokenFailure> {
        let account = &self.account;
        let grant = account.vault.grant(key).await;
        let grant = grant.map_err(|error| account.logged(AuthorizationError::Database(error)))?;
        let had = grant
            .as_ref()
            .filter(|grant| account.is_ours(&grant.record));
        let had = had.map_or(&[][..], |grant| grant.record.repeated_scopes());
        let is_fixed = !account.config.scopes.is_empty();
        let scopes = scopes::union(
            &found.scopes,
            (had, wider),
            is_fixed,
            &found.server.consent.scopes,
        );
        Ok(self.offline.leave_out(key, scopes))
    }
}

/// Whether `text` has the form of a `state` of this gateway: 32 bytes in base64url.
#[must_use]
pub fn is_state(text: &str) -> bool {
    let is_of_ours = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.len() == (STATE_LEN * 8).div_ceil(6) && text.bytes().all(is_of_ours)
}

/// The key of a pending row.
#[must_use]
pub fn state_digest(state: &str) -> [u8; 32] {
    let mut found = [0; 32];
    found.copy_from_slice(digest(&SHA256, state.as_bytes()).as_ref());
    found
}

fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn state_of_ours_has_43_characters_of_base64url() {
        let state = BASE64_URL_SAFE_NO_PAD.encode([255; STATE_LEN]);
        assert!(is_state(&state));
        for other in [
            "",
            &state[1..],
            &format!("{state}A"),
            &state.replace('_', "="),
        ] {
            assert!(!is_state(other), "{other}");
        }
    }

    #[test]
    fn debug_output_hides_the_state() {
        let started = StartedAuthorization {
            url: Url::parse("https://as.test/?state=hunter2").unwrap(),
            host: "as.test".to_owned(),
            note: None,
        };
        let shown = format!("{started:?}");
        assert!(
            shown.contains("as.test") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[tokio::test]
    async fn page_waits_for_half_a_minute_at_most() {
        let dir = tempfile::tempdir().unwrap();
        let account = client_choice::tests::account(&dir, "dcr").await;
        let mut server = client_choice::tests::server(&["none"]);
        server.consent.authorization_endpoint = Url::parse("https://as.test/authorize").ok();
        server.consent.registration_endpoint = Url::parse("https://as.test/register").ok();
        server.consent.lists_s256 = Some(true);
        account.believe(DiscoveredServer {
            server,
            resource: "https://up.test/mcp".to_owned(),
            scopes: Vec::new(),
        });
        let gateway = GatewayClient::new(&Url::parse("https://gw.test").unwrap());
        let authorizer = Authorizer::new(account, Arc::new(gateway));
        let key = GrantKey::new(Principal::anonymous().owner(), "up");
        // Cached before the clock stands still: the database has time limits of its own.
        authorizer.account.vault.grant(&key).await.unwrap();
        let _other = client_choice::tests::registering(&authorizer.choice).await;
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        let consent = authorizer.begin(ConsentRequest {
            key: &key,
            cookie_digest: String::new(),
            program: None,
            wider: &[],
            is_refused: false,
        });
        assert_eq!(consent.await.unwrap_err().outcome, "timeout");
        let waited = start.elapsed();
        let limit = Duration::from_secs(30);
        assert!(
            (limit..limit + Duration::from_secs(1)).contains(&waited),
            "{waited:?}"
        );
    }

    // SPEC X-01
    #[rstest]
    #[case::public(
        "https://as.test/auth?tenant=1#part",
        Some("https://as.test/auth?tenant=1")
    )]
    #[case::inside("https://169.254.169.254/auth", None)]
    #[case::loopback("https://localhost/auth", None)]
    #[case::credentials("https://a:b@as.test/auth", None)]
    #[tokio::test]
    async fn browser_goes_where_documents_may_lead(
        #[case] endpoint: &str,
        #[case] expected: Option<&str>,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let account = client_choice::tests::account(&dir, "auto").await;
        let gateway = GatewayClient::new(&Url::parse("https://gw.test").unwrap());
        let authorizer = Authorizer::new(account, Arc::new(gateway));
        let mut server = client_choice::tests::server(&["none"]);
        server.consent.authorization_endpoint = Url::parse(endpoint).ok();
        server.consent.lists_s256 = Some(true);
        let found = authorizer.endpoint(&server).ok();
        assert_eq!(found.as_ref().map(Url::as_str), expected);
    }
}
