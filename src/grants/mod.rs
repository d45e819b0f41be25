//! Accounts at upstreams: finding token endpoints, requesting tokens, and caching them.
//!
//! A [`TokenSource`] gives the tokens of one account. It finds the token endpoint (`discovery`), requests a token
//! (`token_endpoint`), caches it, and requests the next one before it expires. A call with a cached token does none of
//! this. A [`LoginClient`] finds out for the connect pages who opens them; [`LoginGrants`] are the kept logins.
//! Spec: SPEC §9, §10; RFC 6749, 7523, 7636, 8414, 8693, 8707, 9207, 9728.

mod account;
mod account_log;
mod account_probe;
pub mod authorization;
mod challenge;
mod client_form;
mod client_key;
mod discovery;
mod discovery_error;
mod documents;
mod endpoint_check;
mod exchange;
mod extension_grant;
mod failure;
mod form_sender;
mod held_token;
mod identity_assertion;
mod login;
mod login_failure;
mod login_grants;
mod metadata_cache;
mod resource_metadata;
pub mod revocation;
mod server_lookup;
mod server_metadata;
mod source_owner;
mod source_state;
mod token_answer;
mod token_claims;
mod token_endpoint;
mod token_source;
mod token_subject;
mod user_account;
mod user_tokens;

pub use account::{AccountSetupError, UpstreamAccount};
pub use account_probe::AccountProbe;
pub use challenge::Challenge;
pub use client_form::basic_credentials;
pub use client_key::ClientKeyError;
pub use documents::{DocumentClients, SharedClients};
pub use failure::TokenFailure;
pub use held_token::{HeldToken, PlacedToken};
pub use identity_assertion::{IdTokens, IdentityProvider};
pub use login::{KeptScopes, LoginClient, LoginRequest, LoginResponse, LoginTokens, OPENID};
pub use login_failure::LoginFailure;
pub use login_grants::LoginGrants;
pub use server_metadata::places as issuer_metadata_places;
pub(crate) use token_answer::or_unsaid;
pub use token_source::{Renewal, TokenSource};
pub use user_account::{UserAccount, login_name};
pub use user_tokens::{LoginState, UserToken, UserTokens};
