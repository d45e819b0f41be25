//! `rehearse`: what can be known of authorizations at a server without asking a person, for `check --online`.

use url::Url;

use super::super::documents::{DocumentClients, DocumentError, MAX_SHOWN};
use super::super::endpoint_check::may_ask;
use super::super::failure::TokenFailure;
use super::super::server_metadata::ServerMetadata;
use super::error::AuthorizationError;
use super::gateway_client::GatewayClient;
use super::registration::RegistrationError;
use crate::config::{ClientRegistration, UserAccountConfig};
use crate::telemetry::redact::shown;

/// Where a browser goes at a server that can be trusted with a code. `issuer` is the one of the configuration.
///
/// # Errors
/// The server names no such place, or none that may be gone to, or does not list S256.
// Spec: SPEC B-04, X-01
pub(super) fn browser_endpoint(
    server: &ServerMetadata,
    clients: &DocumentClients,
    issuer: Option<&Url>,
) -> Result<Url, AuthorizationError> {
    let named = || shown(&server.issuer, MAX_SHOWN).into_owned();
    let Some(mut endpoint) = server.consent.authorization_endpoint.clone() else {
        return Err(AuthorizationError::NoEndpoint { issuer: named() });
    };
    if let Err(source) = clients.check(&endpoint, issuer) {
        let issuer = named();
        return Err(AuthorizationError::Endpoint { issuer, source });
    }
    if server.consent.lists_s256 != Some(true) {
        return Err(AuthorizationError::NoProofKey { issuer: named() });
    }
    endpoint.set_fragment(None);
    Ok(endpoint)
}

/// Whether the metadata of `server` has all that an authorization needs. Sends nothing.
///
/// # Errors
/// The first thing that is in the way.
pub(in crate::grants) fn rehearse(
    server: &ServerMetadata,
    (config, gateway): (&UserAccountConfig, &GatewayClient),
    (clients, issuer): (&DocumentClients, Option<&Url>),
) -> Result<(), TokenFailure> {
    browser_endpoint(server, clients, issuer)?;
    may_ask(clients, &server.token_endpoint, issuer)?;
    if config.client.is_some() {
        return Ok(());
    }
    let mode = config.registration;
    let by_document = mode != ClientRegistration::Dynamic
        && gateway.document_id().is_some()
        && server.reads_documents();
    let endpoint = server.consent.registration_endpoint.as_ref();
    let endpoint = endpoint.filter(|_| mode != ClientRegistration::Document);
    let named = || shown(&server.issuer, MAX_SHOWN).into_owned();
    match endpoint {
        _ if by_document => Ok(()),
        None => Err(AuthorizationError::NoClient { issuer: named() }.into()),
        Some(endpoint) => clients.check(endpoint, issuer).map_err(|refusal| {
            let source = RegistrationError::Request(DocumentError::Refused(refusal));
            let issuer = named();
            AuthorizationError::Registration {
                issuer,
                source: source.into(),
            }
            .into()
        }),
    }
}
