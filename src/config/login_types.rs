//! `connect.login` as typed values.

use super::account_types::ClientKey;

/// One `connect.login`.
#[derive(Debug, Clone)]
pub struct LoginConfig {
    /// The issuer, byte for byte one of `auth.issuers`.
    pub issuer: String,
    /// The gateway's client id at the issuer.
    pub client_id: String,
    /// Secret or key of this client.
    pub client_key: ClientKey,
    /// The claim of ID tokens that holds the subject; absent: that of the issuer's access tokens.
    pub subject_claim: Option<String>,
    /// The token that identifies the person.
    pub token: LoginToken,
}

/// `connect.login.token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginToken {
    /// The ID token.
    Id,
    /// An access token for an endpoint of this gateway, as callers use it.
    Access,
}
