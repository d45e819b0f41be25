//! `AuthError`: why authentication cannot be set up.

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// A key file is missing or holds no keys.
    #[error("the keys of {issuer} cannot be loaded")]
    Keys {
        /// Whose keys.
        issuer: String,
        /// What is wrong with them.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The client for issuers' documents cannot be built: no trust anchors, for instance.
    #[error("no client for the documents of issuers")]
    Client(#[from] reqwest::Error),
}
