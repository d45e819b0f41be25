//! From an upstream to the place of its tokens: its metadata, and that of its authorization server. Spec: SPEC B-01…B-03,
//! B-10, B-11.

use url::Url;

use super::challenge::Challenge;
use super::discovery_error::DiscoveryError;
use super::documents::DocumentClients;
use super::documents::MAX_SHOWN;
use super::resource_metadata::{self, ResourceMetadata};
use super::server_metadata::{self, ServerMetadata};
use crate::config::AccountConfig;
use crate::telemetry::redact::shown;

/// What token requests for an upstream need to know.
#[derive(Debug)]
pub(super) struct Discovered {
    pub(super) server: ServerMetadata,
    /// `resource` of token requests.
    pub(super) resource: String,
    /// Scopes to ask for.
    pub(super) scopes: Vec<String>,
}

/// Finds out where tokens for `upstream` are to be had. `issuer` is the only server that may be asked, if one is known
/// already; `trusted` is the one whose origin the operator trusts.
///
/// # Errors
/// [`DiscoveryError`].
///
/// # Cancel safety
/// Dropping the future abandons the request under way.
pub(super) async fn discover(
    clients: &DocumentClients,
    upstream: &Url,
    config: &AccountConfig,
    issuer: Option<&str>,
    trusted: Option<&Url>,
) -> Result<Discovered, DiscoveryError> {
    let is_told = issuer.is_some() && config.resource.is_some();
    let (challenge, metadata) = if is_told {
        (Challenge::default(), None)
    } else {
        look(clients, upstream, config).await?
    };
    let named = metadata
        .as_ref()
        .map_or(&[][..], |metadata| &metadata.authorization_servers);
    let issuer = match (issuer, named.first()) {
        (Some(issuer), Some(first)) if !named.iter().any(|one| is_same(one, issuer)) => {
            return Err(DiscoveryError::ForeignServer {
                named: shown(first, MAX_SHOWN).into_owned(),
                known: issuer.to_owned(),
            });
        }
        (Some(issuer), _) => issuer,
        (None, Some(first)) => first,
        (None, None) => return Err(DiscoveryError::NoMetadata),
    };
    let server = server_metadata::fetch(clients, issuer, trusted).await?;
    let supported = metadata.as_ref().map(|metadata| &metadata.scopes_supported);
    let scopes = [Some(&config.scopes), Some(&challenge.scopes), supported];
    let scopes = scopes
        .into_iter()
        .flatten()
        .find(|scopes| !scopes.is_empty());
    let of_metadata = metadata.as_ref().map(|metadata| metadata.resource.clone());
    Ok(Discovered {
        server,
        resource: config
            .resource
            .clone()
            .or(of_metadata)
            .unwrap_or_else(|| upstream.to_string()),
        scopes: scopes.cloned().unwrap_or_default(),
    })
}

/// The upstream's challenge and its metadata.
async fn look(
    clients: &DocumentClients,
    upstream: &Url,
    config: &AccountConfig,
) -> Result<(Challenge, Option<ResourceMetadata>), DiscoveryError> {
    // Without an answer the well-known places say why.
    let challenge = match clients.knock().await {
        Ok((status, headers)) if matches!(status.as_u16(), 401 | 403) => Challenge::of(&headers),
        _ => Challenge::default(),
    };
    let is_checked = config.resource.is_none();
    let metadata = resource_metadata::fetch(clients, upstream, &challenge, is_checked).await?;
    Ok((challenge, metadata))
}

/// Whether both name one server: a slash at the end is often lost or added on the way into a list.
fn is_same(named: &str, issuer: &str) -> bool {
    named.trim_end_matches('/') == issuer.trim_end_matches('/')
}
