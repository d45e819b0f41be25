//! `connect.login` as typed values.

use super::account_types::ClientKey;

/// One `connect.login`.
#[derive(Debug, Clone)]
pub struct LoginConfig {
    /// The issuer, byte for byte one of `auth.issuers`.
    pub issuer: String,
    /// The gateway there.
    pub client_id: String,
    /// What proves that it is that client.
    pub client_key: ClientKey,
    /// The claim of its ID tokens that names the subject; absent: that of the issuer's access tokens.
    pub subject_claim: Option<String>,
    /// Which token says who logged in.
    pub token: LoginToken,
}

/// `connect.login.token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginToken {
    /// The ID token.
    Id,
    /// An access token for an endpoint of ours, as callers have it.
    Access,
}
