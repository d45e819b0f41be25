//! `DiscoveryError`: why the token endpoint of an upstream cannot be found.

use url::Url;

use super::documents::DocumentError;

/// Why the token endpoint of an upstream cannot be found.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiscoveryError {
    #[error("its challenge names no URL of its metadata, but {named:?}")]
    Challenge { named: String },
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
    #[error("the metadata at {url} is that of another resource, {found:?} and not {expected:?}")]
    OtherResource {
        url: Url,
        found: String,
        expected: String,
    },
    #[error("the metadata at {url} is that of another issuer, {found:?} and not {expected:?}")]
    OtherIssuer {
        url: Url,
        found: String,
        expected: String,
    },
    #[error("the issuer {issuer:?} is not a URL")]
    Issuer { issuer: String },
    #[error("the metadata at {url} names no usable `token_endpoint`")]
    NoTokenEndpoint { url: Url },
    #[error("the upstream publishes no metadata that names an authorization server")]
    NoMetadata,
    #[error(
        "the upstream names the authorization server {named:?}, and the credentials are of {known:?}"
    )]
    ForeignServer { named: String, known: String },
}
