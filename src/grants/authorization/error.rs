//! `AuthorizationError`: why an authorization cannot start, as a failure of the account.

use std::sync::Arc;

use super::super::documents::DocumentError;
use super::super::failure::{NO_PLACE, TokenFailure};
use super::registration::RegistrationError;
use crate::cause::chain;
use crate::database::DatabaseError;
use crate::egress::EgressRefusal;
use crate::vault::PendingError;

/// Why an authorization cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuthorizationError {
    /// The server names no authorization endpoint.
    #[error("the authorization server {issuer:?} names no usable `authorization_endpoint`")]
    NoEndpoint {
        /// The server.
        issuer: String,
    },
    /// The egress rules forbid the authorization endpoint.
    #[error("the authorization endpoint of {issuer:?} may not be gone to")]
    Endpoint {
        /// The server.
        issuer: String,
        /// Why.
        #[source]
        source: EgressRefusal,
    },
    /// The server does not announce PKCE with S256.
    #[error(
        "the authorization server {issuer:?} does not list S256 in `code_challenge_methods_supported`"
    )]
    NoProofKey {
        /// The server.
        issuer: String,
    },
    /// The gateway is no client of the server, and cannot become one.
    #[error(
        "the gateway is no client of the authorization server {issuer:?}, and cannot become one by itself"
    )]
    NoClient {
        /// The server.
        issuer: String,
    },
    /// The server does not register the gateway.
    #[error("the authorization server {issuer:?} does not register the gateway")]
    Registration {
        /// The server.
        issuer: String,
        /// Why.
        #[source]
        source: Arc<RegistrationError>,
    },
    /// The pending authorization cannot be stored.
    #[error("the authorization cannot be kept")]
    Pending(#[source] PendingError),
    /// The database fails.
    #[error("the account cannot be read or kept")]
    Database(#[source] DatabaseError),
}

const NO_CLIENT: &str = "the gateway is no client of its authorization server";
const REGISTER: &str = "register the gateway at this server, with `redirect_uris` of <public_url>/connect/<upstream>/callback, and write \
    `client_id` (and `client_secret`) into [upstreams.<name>.auth]";

impl From<AuthorizationError> for TokenFailure {
    fn from(error: AuthorizationError) -> Self {
        let detail = chain(&error);
        match &error {
            AuthorizationError::NoEndpoint { .. } => Self::new(
                NO_PLACE,
                "metadata",
                "let the authorization server publish an https authorization endpoint",
                false,
                &detail,
            ),
            AuthorizationError::Endpoint { .. } => Self::new(
                NO_PLACE,
                "refused",
                "name the host of its authorization endpoint in `egress.allow`, if users are meant to go there",
                false,
                &detail,
            ),
            AuthorizationError::NoProofKey { .. } => Self::new(
                NO_PLACE,
                "no_pkce",
                "let the authorization server support PKCE with S256, and publish that it does: without it a stolen code \
                 is an account",
                false,
                &detail,
            ),
            AuthorizationError::NoClient { .. } => {
                Self::new(NO_CLIENT, "no_client", REGISTER, false, &detail)
            }
            AuthorizationError::Registration { source, .. } => {
                let source = &**source;
                let may_pass = source.may_pass();
                if let RegistrationError::Request(DocumentError::Refused(_)) = source {
                    let remedy = "name the host of its registration endpoint in `egress.allow`, or register the gateway \
                        there and write `client_id`";
                    return Self::new(NO_CLIENT, "registration", remedy, false, &detail);
                }
                Self::new(NO_CLIENT, "registration", REGISTER, may_pass, &detail)
            }
            AuthorizationError::Pending(PendingError::Database(_))
            | AuthorizationError::Database(_) => Self::no_database(&error),
            AuthorizationError::Pending(_) => Self::new(
                "too many users connect accounts at once",
                "crowded",
                "look who opens connect pages: authorizations wait for ten minutes",
                true,
                &detail,
            ),
        }
    }
}
