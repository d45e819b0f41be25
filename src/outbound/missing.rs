//! Faults and notes about an upstream that does not answer.

use crate::cause::chain;
use crate::fault::{Fault, FaultKind};
use crate::session::Session;
use crate::upstream::Upstreams;

/// Text about an upstream that is not waited for any longer.
const NOT_READY: &str = "is not ready yet";

/// Whether the session's link to an upstream is open.
pub(crate) fn is_open(session: &Session, upstream: &str) -> bool {
    let link = session.links().get(upstream);
    link.is_some_and(|link| link.declared().is_some())
}

/// Logs, rate-limited, that an answer lacks an upstream. The failure itself is logged at its origin.
pub(crate) fn left_out(upstreams: &Upstreams, upstream: &str, what: &'static str, fault: &Fault) {
    if let Some(muted) = upstreams.admit_left_out(upstream, what) {
        tracing::warn!(
            upstream,
            error = chain(fault),
            muted,
            "left out of a {what}"
        );
    }
}

/// The fault for a request that must not wait for an upstream any longer; with the reason, if known.
pub(crate) fn not_ready(upstreams: &Upstreams, upstream: &str) -> Fault {
    let reason = upstreams.public_reason(upstream);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Fault::upstream(
        FaultKind::UpstreamTimeout,
        format!("upstream \"{upstream}\" {NOT_READY}{reason}"),
    )
}
