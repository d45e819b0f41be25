//! What `/status` says of an issuer.

use super::issuer::Issuer;
use crate::status::IssuerStatus;
use crate::telemetry::redact::shown;

/// The longest issuer that is shown, in bytes.
const MAX_ISSUER_BYTES: usize = 512;

/// The keys of `issuer`, and why they or its answers cannot be had.
pub(super) fn issuer_status(issuer: &Issuer) -> IssuerStatus {
    let keys = issuer.keys();
    let id = issuer.id.split(['?', '#']).next().unwrap_or_default();
    IssuerStatus {
        issuer: shown(id, MAX_ISSUER_BYTES).into_owned(),
        keys: keys.as_ref().map(|keys| keys.set.len() as u64),
        keys_age_s: keys.as_ref().map(|keys| keys.age().as_secs()),
        cause: issuer.last_cause().map(Into::into),
    }
}
