//! What a client is told while the gateway takes no more of its requests.

use std::time::Duration;

use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};

/// When a refused request may come again, where nothing else says it.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A session cannot begin, as the lease of this replica is over.
pub(super) fn fenced() -> Fault {
    let text = "the replica has lost its lease, try again elsewhere";
    let fault = Fault::new(FaultKind::GatewayBusy, FaultSide::Gateway, text);
    fault.retry(RetryHint::After(RETRY_AFTER))
}

/// A session or a call cannot begin any more.
pub(super) fn draining() -> Fault {
    Fault::new(
        FaultKind::GatewayBusy,
        FaultSide::Gateway,
        "the gateway is shutting down, try again elsewhere",
    )
}
