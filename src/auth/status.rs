//! What `/status` says of issuers.

use super::Authenticator;
use crate::status::IssuerStatus;
use crate::telemetry::redact::shown;

/// The longest issuer that is shown, in bytes.
const MAX_ISSUER_BYTES: usize = 512;

impl Authenticator {
    /// Every issuer, in the order of the configuration.
    #[must_use]
    pub fn status(&self) -> Vec<IssuerStatus> {
        let one = |issuer: &std::sync::Arc<super::Issuer>| {
            let keys = issuer.keys();
            let id = issuer.id.split(['?', '#']).next().unwrap_or_default();
            IssuerStatus {
                issuer: shown(id, MAX_ISSUER_BYTES).into_owned(),
                keys: keys.as_ref().map(|keys| keys.set.len() as u64),
                keys_age_s: keys.as_ref().map(|keys| keys.age().as_secs()),
                cause: issuer.last_cause().map(Into::into),
            }
        };
        self.issuers.iter().map(one).collect()
    }
}
