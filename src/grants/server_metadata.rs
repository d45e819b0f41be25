//! What an authorization server publishes of itself. Spec: RFC 8414; SPEC B-02, B-03.

use serde::Deserialize;
use url::Url;

use super::discovery_error::DiscoveryError;
use super::documents::{DocumentClients, DocumentError, MAX_SHOWN};
use crate::telemetry::redact::shown;

/// An authorization server, as far as token requests need it.
#[derive(Debug, Clone)]
pub(super) struct ServerMetadata {
    /// Its identifier.
    pub(super) issuer: String,
    pub(super) token_endpoint: Url,
    /// How clients prove who they are; `None` where it does not say.
    pub(super) client_auth: Option<Vec<String>>,
    /// Algorithms of assertions.
    pub(super) assertion_algorithms: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Document {
    issuer: String,
    token_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_signing_alg_values_supported: Option<Vec<String>>,
}

/// Fetches the metadata of `issuer`; `configured` is the issuer of the configuration.
///
/// # Errors
/// The most telling failure of the places that may hold it.
///
/// # Cancel safety
/// Dropping the future abandons the request.
pub(super) async fn fetch(
    clients: &DocumentClients,
    issuer: &str,
    configured: Option<&Url>,
) -> Result<ServerMetadata, DiscoveryError> {
    let base = Url::parse(issuer).map_err(|_| DiscoveryError::Issuer {
        issuer: shown(issuer, MAX_SHOWN).into_owned(),
    })?;
    let mut failure: Option<DiscoveryError> = None;
    for url in places(&base) {
        match read(clients, issuer, configured, url).await {
            Ok(metadata) => return Ok(metadata),
            // Another place on a host that does not answer, or that is not asked, will not do better.
            Err(
                error @ DiscoveryError::Fetch {
                    source: DocumentError::Transport(_) | DocumentError::Refused(_),
                    ..
                },
            ) => return Err(error),
            Err(error) => {
                if failure
                    .as_ref()
                    .is_none_or(|before| weight(before) <= weight(&error))
                {
                    failure = Some(error);
                }
            }
        }
    }
    // There is no issuer without places.
    Err(failure.unwrap_or_else(|| DiscoveryError::Issuer {
        issuer: shown(issuer, MAX_SHOWN).into_owned(),
    }))
}

async fn read(
    clients: &DocumentClients,
    issuer: &str,
    configured: Option<&Url>,
    url: Url,
) -> Result<ServerMetadata, DiscoveryError> {
    let document = match clients.get(&url, configured).await {
        Ok(document) => document,
        Err(source) => return Err(DiscoveryError::Fetch { url, source }),
    };
    let metadata: Document = match serde_json::from_slice(&document) {
        Ok(metadata) => metadata,
        Err(source) => return Err(DiscoveryError::Document { url, source }),
    };
    // Spec: RFC 8414 §3.3: identical, or not used at all; SPEC B-03
    if metadata.issuer != issuer {
        return Err(DiscoveryError::OtherIssuer {
            url,
            found: shown(&metadata.issuer, MAX_SHOWN).into_owned(),
            expected: issuer.to_owned(),
        });
    }
    let endpoint = metadata.token_endpoint.as_deref().map(Url::parse);
    let Some(Ok(token_endpoint)) = endpoint else {
        return Err(DiscoveryError::NoTokenEndpoint { url });
    };
    if let Err(refusal) = clients.check(&token_endpoint, configured) {
        return Err(DiscoveryError::Fetch {
            url: token_endpoint,
            source: DocumentError::Refused(refusal),
        });
    }
    Ok(ServerMetadata {
        issuer: metadata.issuer,
        token_endpoint,
        client_auth: metadata.token_endpoint_auth_methods_supported,
        assertion_algorithms: metadata.token_endpoint_auth_signing_alg_values_supported,
    })
}

/// How much the failure of one place says: a place without a document says least.
fn weight(error: &DiscoveryError) -> u8 {
    match error {
        DiscoveryError::Fetch { source, .. } if source.is_absent() => 0,
        DiscoveryError::Fetch { .. } => 1,
        DiscoveryError::Document { .. } => 2,
        _ => 3,
    }
}

/// Where the metadata of an issuer may be, in the order of asking. Spec: RFC 8414 §3, `OpenID` Connect Discovery 1.0 §4;
/// SPEC B-02
#[must_use]
pub fn places(issuer: &Url) -> Vec<Url> {
    const OAUTH: &str = "/.well-known/oauth-authorization-server";
    const OPENID: &str = "/.well-known/openid-configuration";
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![format!("{OAUTH}{path}"), format!("{OPENID}{path}")];
    if !path.is_empty() {
        paths.push(format!("{path}{OPENID}"));
    }
    let at = |path: &String| {
        let mut url = issuer.clone();
        url.set_path(path);
        url.set_query(None);
        url.set_fragment(None);
        url
    };
    paths.iter().map(at).collect()
}
