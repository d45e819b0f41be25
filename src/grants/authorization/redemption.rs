//! `CodeRedemption`: the code of an authorization becomes a grant.

use std::time::Duration;

use url::Url;

use super::super::documents::MAX_SHOWN;
use super::super::failure::TokenFailure;
use super::super::token_endpoint::{IssuedToken, TokenError, TokenGrant, TokenRequest};
use super::super::user_account::UserAccount;
use super::error::AuthorizationError;
use crate::clock::{Clock as _, SystemClock};
use crate::runtime::fault_point;
use crate::secret::Secret;
use crate::telemetry::redact::shown;
use crate::vault::{GrantKey, GrantKind, GrantRecord, PendingRecord};

/// A grant that was stored.
#[derive(Debug)]
pub struct FinishedAuthorization {
    /// Time until the person has to agree again; `None` where the gateway can refresh the token.
    pub asks_again_after: Option<Duration>,
    /// The granted scopes.
    pub scopes: Vec<String>,
}

/// An authorization whose code is to be redeemed.
pub(super) struct CodeRedemption<'a> {
    pub(super) account: &'a UserAccount,
    pub(super) key: &'a GrantKey,
    pub(super) pending: &'a PendingRecord,
}

impl CodeRedemption<'_> {
    /// Redeems `code`, and stores the grant.
    ///
    /// # Errors
    /// The server refuses the code, or the grant cannot be stored; logged.
    pub(super) async fn redeem(
        &self,
        code: &Secret,
    ) -> Result<FinishedAuthorization, TokenFailure> {
        let (account, pending) = (self.account, self.pending);
        let (issuer, method) = (&pending.issuer, pending.auth_method.as_deref());
        let proof = account.proof_of(issuer, &pending.client_id, method).await;
        let proof = proof.map_err(|error| account.logged(AuthorizationError::Database(error)))?;
        let endpoint = Url::parse(&pending.token_endpoint).ok();
        let (Some(proof), Some(endpoint), Some(verifier)) = (proof, endpoint, &pending.verifier)
        else {
            let issuer = shown(issuer, MAX_SHOWN).into_owned();
            return Err(account.logged(AuthorizationError::NoClient { issuer }));
        };
        let server = account.remembered(issuer, endpoint.clone(), method).await;
        let asked = TokenRequest {
            server: &server,
            client_id: &pending.client_id,
            proof: &proof,
            scopes: &[],
            resource: Some(&pending.resource),
            grant: TokenGrant::Code {
                code,
                verifier,
                redirect_uri: &pending.redirect_uri,
            },
        };
        fault_point::reached("code_brought");
        let token = account.ask(&asked).await;
        if let Err(TokenError::OAuth { code, .. }) = &token
            && *code == "invalid_client"
            && account.config.client.is_none()
        {
            // The next authorization registers the gateway again.
            let registrations = account.vault.registrations();
            let set_aside = registrations.set_aside(issuer, &pending.client_id).await;
            set_aside.map_err(|error| account.logged(AuthorizationError::Database(error)))?;
        }
        let refused =
            |error: TokenError| error.into_failure(&endpoint).of_code(&pending.redirect_uri);
        let token = token.map_err(|error| account.logged(refused(error)))?;
        account
            .log
            .succeeded(&pending.scopes, token.scopes.as_ref());
        let record = self.record(token);
        fault_point::reached("code_redeemed");
        let kept = account.vault.put_only_copy(self.key, &record).await;
        kept.map_err(|error| account.logged(AuthorizationError::Database(error)))?;
        fault_point::reached("grant_stored");
        let now = SystemClock.now();
        let ends = record.access_ends.map(Duration::from_millis);
        let asks_again_after = match &record.refresh_token {
            Some(_) => None,
            None => ends.map(|ends| ends.saturating_sub(now)),
        };
        if let Some(lasts) = asks_again_after {
            tracing::warn!(
                upstream = %account.upstream, owner = %self.key.owner, lasts = lasts.as_secs(),
                "the authorization server gave no refresh token: the user is asked again when the token ends"
            );
        }
        Ok(FinishedAuthorization {
            asks_again_after,
            scopes: record.scopes,
        })
    }

    fn record(&self, issued: IssuedToken) -> GrantRecord {
        let pending = self.pending;
        GrantRecord {
            access_ends: issued.ends(SystemClock.now()),
            kind: GrantKind::User,
            issuer: pending.issuer.clone(),
            token_endpoint: Some(pending.token_endpoint.clone()),
            revocation_endpoint: pending.revocation_endpoint.clone(),
            resource: pending.resource.clone(),
            client_id: Some(pending.client_id.clone()),
            auth_method: pending.auth_method.clone(),
            placement: self.account.placement(),
            scopes: issued.scopes.unwrap_or_else(|| pending.scopes.clone()),
            requested: pending.scopes.clone(),
            account: None,
            access_token: Some(issued.token),
            refresh_token: issued.refresh,
        }
    }
}
