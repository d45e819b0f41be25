//! `refresh`: refreshes a grant once across all processes that share the database.
//!
//! The grant's lease lets one process send the request; the others wait and read the row again. The request runs
//! outside any transaction, and its result is written before it is checked: it may be the only copy of a rotated
//! refresh token. Only `invalid_grant` ends a grant, and only if the grant still has the version that was refused.

mod unstored;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use url::Url;

pub(super) use self::unstored::UnstoredGrant;
use super::super::client_key::ClientProof;
use super::super::failure::TokenFailure;
use super::super::server_metadata::ServerMetadata;
use super::super::token_claims;
use super::super::token_endpoint::{
    IssuedToken, TokenError, TokenGrant, TokenRequest, WANTS_PERSON,
};
use super::super::user_account::UserAccount;
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome};
use crate::clock::{Clock as _, SystemClock};
use crate::database::DatabaseError;
use crate::runtime::fault_point;
use crate::secret::Secret;
use crate::vault::{GrantKey, GrantKind, GrantLease, GrantRecord, LeaseOutcome, StoredGrant};

/// Time limit for the whole refresh, waiting for another process included.
const LIMIT: Duration = Duration::from_secs(45);
/// Pause between two reads of a grant that another process refreshes.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A token that another process obtained is used if it lasts at least this long.
const FRESH: Duration = Duration::from_secs(1);

/// Codes besides `invalid_grant` with which servers refuse a refresh token that has ended (Obot, for instance, says
/// `invalid_request`), or a person (Okta says `access_denied` by its policies).
const REFUSES_TOKEN: [&str; 4] = [
    "invalid_request",
    "unauthorized_client",
    "invalid_token",
    "access_denied",
];

/// Why a refresh starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefreshCause {
    /// The token has expired, or soon will.
    Age,
    /// The upstream refused it.
    Refusal,
}

/// Why a refresh brought no token.
#[derive(Debug)]
pub(super) enum RefreshFailure {
    /// The account has ended; the audit log has it.
    Ended(TokenFailure),
    /// The account is as it was.
    Failed(TokenFailure),
    /// The server has given the next token, and the database does not take it.
    Unstored(Box<UnstoredGrant>, TokenFailure),
}

impl From<TokenFailure> for RefreshFailure {
    fn from(failure: TokenFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<DatabaseError> for RefreshFailure {
    fn from(error: DatabaseError) -> Self {
        Self::Failed(error.into())
    }
}

/// Outcome of one token request.
#[derive(Debug)]
pub(super) enum Refreshed {
    /// The vault has the new token.
    Written,
    /// The grant was changed meanwhile: read it again.
    Changed,
}

/// Refreshes the grant of `key`, whose caller has seen the access token `seen`. Tokens are compared, not versions:
/// marking a grant as refused changes its version too.
///
/// # Errors
/// No other token can be had. The grant is kept unless the server has ended it.
///
/// # Cancel safety
/// Not cancel safe: dropped during the request, it loses a rotated refresh token.
pub(super) async fn refresh(
    account: &UserAccount,
    key: &GrantKey,
    (seen, cause): (Option<&Secret>, RefreshCause),
) -> Result<(), RefreshFailure> {
    let began = Instant::now();
    let mut refused = None;
    while began.elapsed() < LIMIT {
        let grant = account.vault.read_grant(key).await?;
        let Some(grant) = grant.filter(|grant| account.is_ours(&grant.record)) else {
            return Err(TokenFailure::not_connected().into());
        };
        let current = grant.record.access_token.as_ref();
        let is_another = current.map(Secret::expose) != seen.map(Secret::expose);
        if is_another && is_fresh(&grant.record) {
            // Another process has refreshed it: drop the old grant from this process's cache.
            return Ok(account.vault.poll_changes().await?);
        }
        if refused == Some(grant.version) {
            end(account, &grant).await?;
            continue;
        }
        match account.vault.leases().take(key, grant.version).await? {
            LeaseOutcome::Held(lease) => match ask(account, &grant, (lease, cause)).await? {
                Some(Refreshed::Written) => return Ok(()),
                Some(Refreshed::Changed) => {}
                None => refused = Some(grant.version),
            },
            LeaseOutcome::Busy(_) => tokio::time::sleep(LOOK_EVERY).await,
            LeaseOutcome::Newer(_) | LeaseOutcome::Gone => {}
        }
    }
    tracing::debug!(upstream = %account.upstream, ?cause, "refresh took too long");
    Err(of_server(account, TokenFailure::slow(LIMIT)).into())
}

/// Requests the next token; `None` where the server says `invalid_grant`.
async fn ask(
    account: &UserAccount,
    grant: &StoredGrant,
    (lease, cause): (GrantLease, RefreshCause),
) -> Result<Option<Refreshed>, RefreshFailure> {
    let (server, client_id, proof, token) = match parts(account, grant).await {
        Ok(parts) => parts,
        Err(failure) => {
            give_back(account, lease).await;
            return Err(failure.into());
        }
    };
    let asked = TokenRequest {
        server: &server,
        client_id,
        proof: &proof,
        scopes: &[],
        resource: (account.kind == GrantKind::User).then_some(&*grant.record.resource),
        grant: TokenGrant::Refresh(token),
    };
    fault_point::reached("refresh_leased");
    let failure = match account.ask(&asked).await {
        Ok(issued) => {
            let written = write(account, grant, (lease, issued, cause)).await;
            return written.map(Some);
        }
        Err(error) => error,
    };
    give_back(account, lease).await;
    if let TokenError::OAuth { code, description } = &failure {
        match *code {
            "invalid_grant" => return Ok(None),
            "invalid_client" if account.config.client.is_none() => {
                return Err(client_refused(account, &server.issuer, client_id)
                    .await
                    .into());
            }
            // The refresh token may be good again once the person has acted: the grant stays.
            code if WANTS_PERSON.contains(&code) || REFUSES_TOKEN.contains(&code) => {
                let why = format!("the authorization server says {code}{description}");
                return Err(TokenFailure::account_ended(&why).into());
            }
            _ => {}
        }
    }
    let failure = failure.into_failure(&server.token_endpoint);
    Err(of_server(account, failure).into())
}

/// `failure` in the words for the server that was asked: the identity provider, for a kept login.
fn of_server(account: &UserAccount, failure: TokenFailure) -> TokenFailure {
    match account.kind {
        GrantKind::Login => failure.at_provider(),
        GrantKind::User | GrantKind::UserKey => failure,
    }
}

/// The server, client and token of a refresh request.
///
/// # Errors
/// The gateway is no longer the client that the grant was given to, or the database fails.
async fn parts<'a>(
    account: &UserAccount,
    grant: &'a StoredGrant,
) -> Result<(ServerMetadata, &'a str, Arc<ClientProof>, &'a Secret), TokenFailure> {
    let record = &grant.record;
    let ended = || TokenFailure::account_ended("the grant cannot be refreshed");
    let endpoint = record
        .token_endpoint
        .as_deref()
        .and_then(|url| Url::parse(url).ok());
    let (Some(endpoint), Some(client_id), Some(token)) =
        (endpoint, record.client_id.as_deref(), &record.refresh_token)
    else {
        return Err(ended());
    };
    let method = record.auth_method.as_deref();
    let proof = account.proof_of(&record.issuer, client_id, method).await;
    let proof = proof?.ok_or_else(|| {
        TokenFailure::account_ended("the gateway is not the client any more that it was given to")
    })?;
    let server = account.remembered(&record.issuer, endpoint, method).await;
    Ok((server, client_id, proof, token))
}

/// Writes the token response to the vault, before anything in it is checked.
async fn write(
    account: &UserAccount,
    grant: &StoredGrant,
    (lease, issued, cause): (GrantLease, IssuedToken, RefreshCause),
) -> Result<Refreshed, RefreshFailure> {
    let record = match grant.record.kind {
        GrantKind::Login => logged_in(&grant.record, issued, cause),
        GrantKind::User | GrantKind::UserKey => renewed(&grant.record, issued),
    };
    fault_point::reached("token_refreshed");
    let unstored = UnstoredGrant {
        key: grant.key.clone(),
        before: grant.record.scopes.clone(),
        lease,
        record,
    };
    match unstored.store(account).await {
        Ok(refreshed) => refreshed,
        Err(error) => Err(RefreshFailure::Unstored(Box::new(unstored), error.into())),
    }
}

/// The grant with the next token; what the response does not name is kept. Spec: RFC 6749 §6
fn renewed(record: &GrantRecord, issued: IssuedToken) -> GrantRecord {
    GrantRecord {
        access_ends: issued.ends(SystemClock.now()),
        access_token: Some(issued.token),
        refresh_token: issued.refresh.or_else(|| record.refresh_token.clone()),
        scopes: issued.scopes.unwrap_or_else(|| record.scopes.clone()),
        ..record.clone()
    }
}

/// The kept login with the next ID token. Where the server gives no ID token, the present ID token stays until its end, unless
/// the provider has refused it. Without an ID token of the same person there is no token that could be sent, so that the vault
/// has the refresh token revoked and the user is asked again. Spec: `OpenID` Connect Core 1.0 §12.2
fn logged_in(record: &GrantRecord, mut issued: IssuedToken, cause: RefreshCause) -> GrantRecord {
    let next = issued.id_token.take();
    let is_given = next.is_some();
    let (id_token, access_ends) = if !is_given && cause == RefreshCause::Age && is_fresh(record) {
        (record.access_token.clone(), record.access_ends)
    } else {
        let next = next.filter(|token| token_claims::is_of(token, record));
        let ends = next.as_ref().and_then(token_claims::ends);
        (next, ends)
    };
    if id_token.is_none() {
        tracing::warn!(
            issuer = %record.issuer, given = is_given,
            "the identity provider gave no ID token of the same person for a refresh token: the user is asked to log in"
        );
    }
    GrantRecord {
        access_ends,
        access_token: id_token,
        ..renewed(record, issued)
    }
}

/// Removes a grant that its server has ended. One that was refreshed or replaced meanwhile stays, and is read again.
///
/// # Errors
/// The account has ended; or the database fails.
async fn end(account: &UserAccount, grant: &StoredGrant) -> Result<(), RefreshFailure> {
    fault_point::reached("refresh_refused");
    let removed = account.vault.end_grant(&grant.key, grant.version).await;
    if !removed? {
        return Ok(());
    }
    fault_point::reached("grant_ended");
    tracing::warn!(
        upstream = %account.upstream, owner = %grant.key.owner, issuer = %grant.record.issuer,
        "the authorization server has ended an account: its user is asked again"
    );
    let why = "the authorization server says invalid_grant";
    let ended = ended(
        account,
        (&grant.key, &grant.record.issuer),
        ("invalid_grant", why),
    );
    Err(ended)
}

/// Audits that an account at an issuer has ended.
pub(super) fn ended(
    account: &UserAccount,
    (key, issuer): (&GrantKey, &str),
    (reason, why): (&'static str, &str),
) -> RefreshFailure {
    let record = audited(AccountEvent::Revoked, key, issuer);
    account
        .audit
        .account(record.reason(AuditOutcome::Ok, reason));
    RefreshFailure::Ended(TokenFailure::account_ended(why))
}

/// The audit record of an event of an account at an issuer.
pub(super) fn audited(event: AccountEvent, key: &GrantKey, issuer: &str) -> AccountRecord {
    AccountRecord::new(event, key.owner, &key.upstream).server(issuer)
}

/// Sets aside a registration that its server refuses: the next authorization registers the gateway again.
async fn client_refused(account: &UserAccount, issuer: &str, client_id: &str) -> TokenFailure {
    tracing::warn!(
        upstream = %account.upstream, issuer, client_id,
        "the authorization server does not know the gateway any more: the user is asked again"
    );
    match account
        .vault
        .registrations()
        .set_aside(issuer, client_id)
        .await
    {
        Ok(()) => TokenFailure::account_ended("the authorization server says invalid_client"),
        Err(error) => error.into(),
    }
}

async fn give_back(account: &UserAccount, lease: GrantLease) {
    if let Err(error) = account.vault.leases().release(lease).await {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::debug!(error, "lease ends by itself");
    }
}

fn is_fresh(record: &GrantRecord) -> bool {
    let ends = record.access_ends.map(Duration::from_millis);
    record.access_token.is_some() && ends.is_none_or(|ends| ends > SystemClock.now() + FRESH)
}

#[cfg(test)]
pub(super) mod tests;
