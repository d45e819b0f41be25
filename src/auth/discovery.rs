//! From an issuer identifier to the place of its keys, or of its introspection.
//!
//! Spec: RFC 8414 §3, `OpenID` Connect Discovery 1.0 §4; the orders are those of SPEC B-02.

use serde::Deserialize;
use url::Url;

use super::fetch::IssuerClients;
use crate::egress::DocumentError;
use crate::grants::{issuer_metadata_places as places, or_unsaid};
use crate::telemetry::redact::shown;

/// Bytes of another issuer's name that an error shows.
const MAX_SHOWN: usize = 128;

/// Why what an issuer offers could not be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiscoveryError {
    #[error("the issuer is not a URL")]
    Issuer(#[from] url::ParseError),
    #[error("no document from {url}")]
    Fetch {
        url: Url,
        #[source]
        source: DocumentError,
    },
    #[error("the metadata at {url} cannot be read")]
    Document {
        url: Url,
        #[source]
        source: serde_json::Error,
    },
    #[error("the metadata at {url} is that of another issuer, {other:?}")]
    OtherIssuer { url: Url, other: String },
    #[error("the metadata at {url} names no usable `{member}`")]
    Member {
        url: Url,
        member: &'static str,
        #[source]
        source: Option<url::ParseError>,
    },
}

impl DiscoveryError {
    /// What an operator can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Issuer(_) => "write `issuer` as an https:// URL",
            Self::Fetch { source, .. } => source.remedy(),
            Self::Document { .. } => {
                "correct `issuer`: what answers at this address (a web page, a proxy?) is no authorization server"
            }
            Self::OtherIssuer { .. } => {
                "write `issuer` exactly as the metadata has it, if that is the issuer that you trust"
            }
            Self::Member { .. } => {
                "let the issuer publish this address, or set `jwks_file` (keys) or `introspection.endpoint`"
            }
        }
    }

    /// How much the failure of one place says: a place without a document says least.
    fn weight(&self) -> u8 {
        match self {
            Self::Fetch {
                source: DocumentError::Status(404 | 410),
                ..
            } => 0,
            Self::Fetch { .. } | Self::Issuer(_) => 1,
            Self::Document { .. } => 2,
            Self::OtherIssuer { .. } | Self::Member { .. } => 3,
        }
    }
}

/// What we need of the metadata of an authorization server. An optional member of the wrong type is ignored, so
/// that the other members can still be read.
#[derive(Debug, Deserialize)]
struct IssuerMetadata {
    issuer: String,
    #[serde(default, deserialize_with = "or_unsaid")]
    jwks_uri: Option<String>,
    #[serde(default, deserialize_with = "or_unsaid")]
    introspection_endpoint: Option<String>,
    #[serde(default, deserialize_with = "or_unsaid")]
    introspection_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// How an introspection endpoint takes our credentials, as its metadata says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CredentialPlace {
    /// As `Authorization`; also where the metadata says nothing.
    Header,
    /// In the body alone.
    Body,
    /// In neither, but by these methods, which we do not have.
    Neither(Vec<String>),
}

impl CredentialPlace {
    fn of(methods: Option<Vec<String>>) -> Self {
        let methods = methods.unwrap_or_default();
        let takes = |name: &str| methods.iter().any(|method| method == name);
        if methods.is_empty() || takes("client_secret_basic") {
            Self::Header
        } else if takes("client_secret_post") {
            Self::Body
        } else {
            Self::Neither(methods)
        }
    }
}

/// Fetches the key set document of `issuer`.
///
/// # Errors
/// The most telling failure of the places that may hold the metadata.
///
/// # Cancel safety
/// Dropping the future abandons the request under way.
pub(super) async fn key_set(
    fetcher: &IssuerClients,
    issuer: &str,
) -> Result<(Url, Vec<u8>), DiscoveryError> {
    let base = Url::parse(issuer)?;
    let (_, url) = find(fetcher, issuer, &base, "jwks_uri", |metadata| {
        metadata.jwks_uri.as_deref()
    })
    .await?;
    match fetcher.get(&url, &base).await {
        Ok(document) => Ok((url, document)),
        Err(source) => Err(DiscoveryError::Fetch { url, source }),
    }
}

/// Where `issuer` answers questions about its tokens, and how it takes our credentials there. Spec: RFC 8414 §2
///
/// # Errors
/// The most telling failure of the places that may hold the metadata.
///
/// # Cancel safety
/// Dropping the future abandons the request under way.
pub(super) async fn introspection(
    fetcher: &IssuerClients,
    issuer: &str,
) -> Result<(Url, CredentialPlace), DiscoveryError> {
    let base = Url::parse(issuer)?;
    let member = "introspection_endpoint";
    let (metadata, url) = find(fetcher, issuer, &base, member, |metadata| {
        metadata.introspection_endpoint.as_deref()
    })
    .await?;
    let methods = metadata.introspection_endpoint_auth_methods_supported;
    Ok((url, CredentialPlace::of(methods)))
}

/// The first metadata that has the member which `read` picks, and the URL there.
async fn find(
    fetcher: &IssuerClients,
    issuer: &str,
    base: &Url,
    member: &'static str,
    read: fn(&IssuerMetadata) -> Option<&str>,
) -> Result<(IssuerMetadata, Url), DiscoveryError> {
    let mut failure: Option<DiscoveryError> = None;
    for url in places(base) {
        let error = match metadata(fetcher, issuer, base, &url).await {
            Ok(metadata) => match read(&metadata).map(Url::parse) {
                Some(Ok(found)) => return Ok((metadata, found)),
                wrong => DiscoveryError::Member {
                    url,
                    member,
                    source: wrong.and_then(Result::err),
                },
            },
            // Another place on a host that does not answer will not do better.
            Err(
                error @ DiscoveryError::Fetch {
                    source: DocumentError::Transport(_),
                    ..
                },
            ) => return Err(error),
            Err(error) => error,
        };
        if failure
            .as_ref()
            .is_none_or(|before| before.weight() <= error.weight())
        {
            failure = Some(error);
        }
    }
    // There is no issuer without places.
    Err(failure.unwrap_or(DiscoveryError::Issuer(url::ParseError::EmptyHost)))
}

async fn metadata(
    fetcher: &IssuerClients,
    issuer: &str,
    base: &Url,
    url: &Url,
) -> Result<IssuerMetadata, DiscoveryError> {
    let document = fetcher
        .get(url, base)
        .await
        .map_err(|source| DiscoveryError::Fetch {
            url: url.clone(),
            source,
        })?;
    let metadata: IssuerMetadata =
        serde_json::from_slice(&document).map_err(|source| DiscoveryError::Document {
            url: url.clone(),
            source,
        })?;
    // Spec: RFC 8414 §3.3: identical, or not used at all; SPEC B-03
    if metadata.issuer != issuer {
        return Err(DiscoveryError::OtherIssuer {
            url: url.clone(),
            other: shown(&metadata.issuer, MAX_SHOWN).into_owned(),
        });
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::flag(r#""introspection_endpoint": false"#)]
    #[case::list(r#""introspection_endpoint": ["https://as.test/introspect"]"#)]
    #[case::methods(r#""introspection_endpoint_auth_methods_supported": "client_secret_basic""#)]
    #[case::null(r#""introspection_endpoint_auth_methods_supported": null"#)]
    fn member_of_another_type_hides_no_keys(#[case] member: &str) {
        let text = format!(
            r#"{{"issuer": "https://as.test", "jwks_uri": "https://as.test/jwks", {member}}}"#
        );
        let metadata: IssuerMetadata = serde_json::from_str(&text).expect("metadata");
        assert_eq!(metadata.jwks_uri.as_deref(), Some("https://as.test/jwks"));
        assert_eq!(metadata.introspection_endpoint, None);
        assert_eq!(metadata.introspection_endpoint_auth_methods_supported, None);
    }

    fn asked(issuer: &str) -> Vec<String> {
        let url = Url::parse(issuer).expect("a URL");
        places(&url).iter().map(ToString::to_string).collect()
    }

    // SPEC B-02
    #[test]
    fn an_issuer_without_a_path_has_two_places() {
        for issuer in ["https://as.test", "https://as.test/"] {
            assert_eq!(
                asked(issuer),
                [
                    "https://as.test/.well-known/oauth-authorization-server",
                    "https://as.test/.well-known/openid-configuration"
                ]
            );
        }
    }

    // SPEC B-02
    #[test]
    fn an_issuer_with_a_path_has_three() {
        assert_eq!(
            asked("https://as.test:8443/realms/x"),
            [
                "https://as.test:8443/.well-known/oauth-authorization-server/realms/x",
                "https://as.test:8443/.well-known/openid-configuration/realms/x",
                "https://as.test:8443/realms/x/.well-known/openid-configuration"
            ]
        );
    }
}
