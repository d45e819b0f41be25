//! `ClientChoice`: which client the gateway authorizes as: the configured one, else its metadata document, else a
//! registration.
//! Spec: SPEC B-07, B-10

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;
use url::Url;

use super::super::documents::MAX_SHOWN;
use super::super::server_metadata::ServerMetadata;
use super::super::user_account::UserAccount;
use super::callback::CallbackRefusal;
use super::error::AuthorizationError;
use super::gateway_client::GatewayClient;
use super::registration::{self, RegistrationError};
use super::scope_refusals::{ScopeRefusals, names_all};
use super::unfinished::AskedScopes;
use crate::config::ClientRegistration;
use crate::runtime::fault_point;
use crate::telemetry::redact;
use crate::vault::{GrantKey, RegistrationRecord};

/// Principals whose last attempt with the document, or with a registration, is remembered.
const MAX_ATTEMPTS: u64 = 10_000;
/// How long a failed registration is cached, so that callers that waited for it do not retry at once.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a server counts as one that answers every unknown code with `invalid_client`.
const DENIES_ALL: Duration = Duration::from_hours(30 * 24);
/// Attempts by document in a row whose browsers have not come back. After them the document counts as unread, even if it was
/// fetched: any client may fetch it, and a server that cannot read it would refuse its users for ever.
const MOST_BY_DOCUMENT: u32 = 2;
const NOT_FETCHED: &str = "The server did not take the document of this gateway last time, so the gateway has registered itself.";

/// A client, and how it proves itself at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChosenClient {
    /// The client id.
    pub(super) id: String,
    /// A method of RFC 7591 §2.
    pub(super) auth_method: String,
    /// Where answers to this client go, and to no other client.
    pub(super) redirect_uri: String,
    /// Why the preferred client is not used.
    pub(super) note: Option<&'static str>,
}

/// Chooses the client of an authorization, and remembers failed attempts.
#[derive(Debug)]
pub(super) struct ClientChoice {
    /// For each principal that was sent to a server with the document as client and has not come back: its attempts.
    attempts: Cache<GrantKey, DocumentAttempts>,
    /// For each principal that was sent to a server with a registration and has not come back: the client id.
    sent: Cache<GrantKey, String>,
    /// Issuers that refused the client of a registration as soon as they had made it: such a refusal tells nothing there.
    denies_all: Cache<String, ()>,
    /// Serialises registrations: a waiter finds the registration that was just made, or the failure.
    registering: tokio::sync::Mutex<Option<FailedRegistration>>,
    /// Scopes that servers refused to registrations.
    refusals: ScopeRefusals,
    /// Whether a browser has come back from a server that accepts the document.
    has_worked: AtomicBool,
}

/// Attempts of one principal with the document as client, since its browser last came back.
#[derive(Debug, Clone, Copy)]
struct DocumentAttempts {
    /// How often the document had been fetched by the last one.
    fetches: u64,
    count: u32,
}

/// The last registration that failed.
#[derive(Debug)]
struct FailedRegistration {
    issuer: String,
    source: Arc<RegistrationError>,
    ended: Instant,
}

impl Default for ClientChoice {
    fn default() -> Self {
        Self {
            attempts: Cache::new(MAX_ATTEMPTS),
            sent: Cache::new(MAX_ATTEMPTS),
            denies_all: Cache::builder()
                .max_capacity(MAX_ATTEMPTS)
                .time_to_live(DENIES_ALL)
                .build(),
            registering: tokio::sync::Mutex::default(),
            refusals: ScopeRefusals::default(),
            has_worked: AtomicBool::new(false),
        }
    }
}

impl ClientChoice {
    /// The client for an authorization of `key` at `server` that asks for `scopes`.
    ///
    /// # Errors
    /// The gateway is no client of the server, or the database fails.
    ///
    /// # Cancel safety
    /// A registration that the server made may be stored or lost.
    pub(super) async fn choose(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        (server, key): (&ServerMetadata, &GrantKey),
        scopes: &[String],
    ) -> Result<ChosenClient, AuthorizationError> {
        if let Some(client) = &account.config.client {
            let auth_method = account.auth_method(server.client_auth.as_deref());
            return Ok(ChosenClient {
                id: client.id.clone(),
                auth_method: auth_method.to_owned(),
                redirect_uri: gateway.redirect_of_upstream(&account.upstream),
                note: None,
            });
        }
        let mode = account.config.registration;
        let by_document = gateway
            .document_id()
            .filter(|_| mode != ClientRegistration::Dynamic && server.reads_documents());
        let registers =
            mode != ClientRegistration::Document && server.consent.registration_endpoint.is_some();
        let was_unread = registers && self.was_unread(gateway, key);
        let use_document = |id: &str| {
            self.used_document(gateway, key);
            ChosenClient {
                id: id.to_owned(),
                auth_method: "none".to_owned(),
                redirect_uri: gateway.redirect_of_document(),
                note: None,
            }
        };
        match by_document {
            Some(id) if !was_unread => Ok(use_document(id)),
            unread => {
                let note = unread.map(|_| NOT_FETCHED);
                if note.is_some() {
                    tracing::warn!(
                        upstream = %account.upstream, issuer = %server.issuer,
                        "the last authorization ended without a callback, and the server seems not to read \
                         /connect/client.json: registering instead"
                    );
                }
                let place = (server, key);
                let registered = self.known_client(account, gateway, place, scopes).await;
                match (registered, unread) {
                    // The server may have the document all the same: kept from before, or fetched at another replica.
                    (Err(AuthorizationError::Registration { source, .. }), Some(id)) => {
                        let error: &(dyn std::error::Error + 'static) = &*source;
                        tracing::warn!(
                            upstream = %account.upstream, issuer = %server.issuer, error,
                            "the authorization server does not register the gateway: using /connect/client.json again"
                        );
                        Ok(use_document(id))
                    }
                    (Err(error), _) => Err(error),
                    (Ok(record), _) => {
                        self.sent.insert(key.clone(), record.client_id.clone());
                        Ok(ChosenClient {
                            id: record.client_id,
                            auth_method: record.auth_method,
                            redirect_uri: gateway.redirect_of_registration(&server.issuer),
                            note,
                        })
                    }
                }
            }
        }
    }

    /// Records that a principal's browser came back; it was sent with the client id `client`. If that is the document,
    /// servers can read the document.
    pub(super) fn came_back(&self, gateway: &GatewayClient, (key, client): (&GrantKey, &str)) {
        self.attempts.invalidate(key);
        self.sent.invalidate(key);
        if gateway.document_id() == Some(client) {
            self.has_worked.store(true, Ordering::Relaxed);
        }
    }

    /// The refusal of the `asked` scopes, noted where the registration may have to name them.
    pub(super) fn noted(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        (asked, refusal): (&AskedScopes, CallbackRefusal),
    ) -> CallbackRefusal {
        match refusal {
            CallbackRefusal::Denied(code @ "invalid_scope")
                if is_registered(account, gateway, &asked.client_id)
                    && self.refusals.note(&asked.issuer, &asked.scopes) =>
            {
                CallbackRefusal::Scopes(code)
            }
            other => other,
        }
    }

    /// Whether a refusal of the `asked` scopes would be news, and the next attempt register with them.
    pub(super) fn may_note(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        asked: &AskedScopes,
    ) -> bool {
        is_registered(account, gateway, &asked.client_id)
            && self.refusals.is_news(&asked.issuer, &asked.scopes)
    }

    /// Records that `key` is sent to a server with the document as client.
    fn used_document(&self, gateway: &GatewayClient, key: &GrantKey) {
        let before = self.attempts.get(key).map_or(0, |last| last.count);
        let attempts = DocumentAttempts {
            fetches: gateway.fetches(),
            count: before.saturating_add(1),
        };
        self.attempts.insert(key.clone(), attempts);
    }

    /// Whether the last attempt of `key` by document ended without callback and without a fetch of the document, or the last
    /// two without callback.
    fn was_unread(&self, gateway: &GatewayClient, key: &GrantKey) -> bool {
        let has_worked = self.has_worked.load(Ordering::Relaxed);
        let is_unread = |last: DocumentAttempts| {
            last.fetches == gateway.fetches() || last.count >= MOST_BY_DOCUMENT
        };
        !has_worked && self.attempts.get(key).is_some_and(is_unread)
    }

    /// A registration that `server` knows, kept or new. Some servers do not let the gateway find that out.
    async fn known_client(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        (server, key): (&ServerMetadata, &GrantKey),
        scopes: &[String],
    ) -> Result<RegistrationRecord, AuthorizationError> {
        let was_left = self.leave_forgotten(account, (server, key)).await?;
        let registered = self.registered(account, gateway, (server, scopes)).await?;
        // Else each abandoned attempt would register again, and in the end displace the registrations that grants use.
        if was_left && registration::is_forgotten(account, server, &registered).await {
            self.denies_all.insert(server.issuer.clone(), ());
        }
        Ok(registered)
    }

    /// Sets aside the registration that `key` was sent to `server` with and did not come back, if the server does not know
    /// it any more: it shows the browser an error, which the gateway does not hear of. Returns whether it was set aside.
    async fn leave_forgotten(
        &self,
        account: &UserAccount,
        (server, key): (&ServerMetadata, &GrantKey),
    ) -> Result<bool, AuthorizationError> {
        let (issuer, registrations) = (&server.issuer, account.vault.registrations());
        let sent = self.sent.get(key);
        let Some(client_id) = sent.filter(|_| !self.denies_all.contains_key(issuer)) else {
            return Ok(false);
        };
        let known = registrations.get(issuer, &client_id).await;
        let Some(known) = known.map_err(AuthorizationError::Database)? else {
            return Ok(false);
        };
        if !registration::is_forgotten(account, server, &known).await {
            return Ok(false);
        }
        tracing::warn!(
            upstream = %account.upstream, issuer = redact::shown(issuer, MAX_SHOWN).into_owned(), client_id,
            "the authorization server does not know the gateway any more: registering again"
        );
        let set_aside = registrations.set_aside(issuer, &client_id).await;
        set_aside.map_err(AuthorizationError::Database)?;
        Ok(true)
    }

    /// Finds a registration for an authorization with `scopes`. A stored registration that names all of them is preferred to a
    /// stored registration without scopes; where neither is stored, the gateway registers.
    async fn registered(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        (server, scopes): (&ServerMetadata, &[String]),
    ) -> Result<RegistrationRecord, AuthorizationError> {
        let issuer = &server.issuer;
        let shown = || redact::shown(issuer, MAX_SHOWN).into_owned();
        if account.config.registration == ClientRegistration::Document {
            return Err(AuthorizationError::NoClient { issuer: shown() });
        }
        let mut failed = self.registering.lock().await;
        let known = account.vault.registrations().current(issuer).await;
        let mut known = known.map_err(AuthorizationError::Database)?;
        let redirect_uri = gateway.redirect_of_registration(issuer);
        known.retain(|known| registration::is_usable(known, &redirect_uri));
        if let Some(found) = known.iter().find(|known| names_all(known, scopes)) {
            return Ok(found.clone());
        }
        let asked = (server, scopes);
        if let Some(naming) = self.naming(account, gateway, asked, &known).await? {
            return Ok(naming);
        }
        let plain = known.into_iter().find(|known| known.scopes.is_empty());
        if let Some(plain) = plain {
            return Ok(plain);
        }
        let Some(endpoint) = &server.consent.registration_endpoint else {
            return Err(AuthorizationError::NoClient { issuer: shown() });
        };
        let is_answer = |failed: &&FailedRegistration| {
            failed.issuer == *issuer && failed.ended.elapsed() < AFTER_FAILURE
        };
        let refusal = |source| AuthorizationError::Registration {
            issuer: shown(),
            source,
        };
        if let Some(failed) = failed.as_ref().filter(is_answer) {
            return Err(refusal(Arc::clone(&failed.source)));
        }
        let record = match register(account, gateway, (server, endpoint), &[]).await {
            Ok(record) => record,
            Err(source) => {
                let source = Arc::new(source);
                *failed = Some(FailedRegistration {
                    issuer: issuer.clone(),
                    source: Arc::clone(&source),
                    ended: Instant::now(),
                });
                return Err(refusal(source));
            }
        };
        keep(account, &record).await?;
        Ok(record)
    }

    /// A new registration that names `scopes`, where those without were refused them and the server makes it.
    async fn naming(
        &self,
        account: &UserAccount,
        gateway: &GatewayClient,
        (server, scopes): (&ServerMetadata, &[String]),
        known: &[RegistrationRecord],
    ) -> Result<Option<RegistrationRecord>, AuthorizationError> {
        let names = self.refusals.to_name(server, scopes, known);
        let endpoint = server.consent.registration_endpoint.as_ref();
        let (Some(names), Some(endpoint)) = (names, endpoint) else {
            return Ok(None);
        };
        let refused = match register(account, gateway, (server, endpoint), &names).await {
            Ok(record) if names_all(&record, scopes) => {
                keep(account, &record).await?;
                return Ok(Some(record));
            }
            // The server left some of the scopes out, so this registration would be refused as the one without scopes was.
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if !refused.as_ref().is_some_and(RegistrationError::may_pass) {
            self.refusals.give_up(&server.issuer, scopes);
        }
        let error = refused.as_ref();
        let error = error.map(|error| -> &(dyn std::error::Error + 'static) { error });
        tracing::warn!(
            upstream = %account.upstream, issuer = redact::shown(&server.issuer, MAX_SHOWN).into_owned(), error,
            "the authorization server does not register the gateway with the scopes that it refused"
        );
        Ok(None)
    }
}

/// Whether the client `client_id` is one of a registration.
fn is_registered(account: &UserAccount, gateway: &GatewayClient, client_id: &str) -> bool {
    account.config.client.is_none() && gateway.document_id() != Some(client_id)
}

/// Registers the gateway at `server`. The registration names `scopes`.
async fn register(
    account: &UserAccount,
    gateway: &GatewayClient,
    (server, endpoint): (&ServerMetadata, &Url),
    scopes: &[String],
) -> Result<RegistrationRecord, RegistrationError> {
    let trusted = account.trusted();
    let place = (server.issuer.as_str(), endpoint);
    let taken = (server.client_auth.as_deref(), trusted.as_ref());
    registration::register(&account.clients, gateway, place, taken, scopes).await
}

/// Stores a new registration.
async fn keep(
    account: &UserAccount,
    record: &RegistrationRecord,
) -> Result<(), AuthorizationError> {
    fault_point::reached("registered");
    let kept = account.vault.registrations().put(record).await;
    kept.map_err(AuthorizationError::Database)?;
    fault_point::reached("registration_stored");
    tracing::info!(
        upstream = %account.upstream, issuer = redact::shown(&record.issuer, MAX_SHOWN).into_owned(),
        client_id = %record.client_id, "registered at an authorization server"
    );
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
