//! Checks of token endpoints without a request, for `check --online`.

use std::time::Duration;

use url::Url;

use super::documents::{DocumentClients, DocumentError};
use super::failure::TokenFailure;
use super::token_endpoint::TokenError;

/// Time limit for all documents of one account: a check does not wait longer for an upstream.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// Whether a token request may be sent to `endpoint`. `issuer` is the one of the configuration.
///
/// # Errors
/// The rules for learned URLs forbid it.
pub(super) fn may_ask(
    clients: &DocumentClients,
    endpoint: &Url,
    issuer: Option<&Url>,
) -> Result<(), TokenFailure> {
    clients.check(endpoint, issuer).map_err(|refusal| {
        let error = TokenError::Request(DocumentError::Refused(refusal));
        error.into_failure(endpoint)
    })
}
