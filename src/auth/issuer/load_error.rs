//! `LoadError`: why the keys of an issuer could not be loaded.

use std::path::PathBuf;

use crate::auth::discovery::DiscoveryError;
use crate::auth::fetch::NO_ANSWER;
use crate::auth::key_set::BadKeySet;

/// Why keys could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(in crate::auth) enum LoadError {
    #[error("the key file {} cannot be read", .path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the key file {} is larger than 1 MiB", .0.display())]
    TooLarge(PathBuf),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("the documents of {0} take longer than 10 s")]
    TimedOut(String),
    #[error("the keys at {place} cannot be used")]
    BadKeySet {
        place: String,
        #[source]
        source: BadKeySet,
    },
}

impl LoadError {
    /// What an operator can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::File { .. } => "correct `jwks_file`, or the rights of the file",
            Self::TooLarge(_) => "write the issuer's keys alone into `jwks_file`",
            Self::Discovery(error) => error.remedy(),
            Self::TimedOut(_) => NO_ANSWER,
            Self::BadKeySet {
                source: BadKeySet::Empty,
                ..
            } => "let the issuer publish a key for signatures: no token of its can be accepted",
            Self::BadKeySet {
                source: BadKeySet::NothingUsable(_),
                ..
            } => {
                "let the issuer sign with RS256 to RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA: it \
                 publishes no key for them"
            }
            Self::BadKeySet { .. } => {
                "correct where the keys are: the document there is no JWK set (RFC 7517)"
            }
        }
    }
}
