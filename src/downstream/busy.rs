//! Refusals and delays for clients while the gateway takes no more of their requests.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};

/// When a refused request may be sent again, if nothing else determines it.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Range of the delay before the client of an ended stream reconnects, in milliseconds.
const RECONNECT_MS: RangeInclusive<u64> = 500..=3000;

/// The `retry` delay of a stream that ends together with others: random, so that their clients do not reconnect at once.
pub(super) fn reconnect_delay() -> Duration {
    Duration::from_millis(rand::random_range(RECONNECT_MS))
}

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
