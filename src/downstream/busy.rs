//! What a client is told while the gateway takes no more of its requests.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::fault::{Fault, FaultKind, FaultSide, RetryHint};

/// When a refused request may come again, where nothing else says it.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// When the client of a stream comes back that ends with others: within this time, at random.
const COME_BACK_MS: RangeInclusive<u64> = 500..=3000;

/// The `retry` delay of a stream that ends with others, so that their clients do not come back together.
pub(super) fn come_back() -> Duration {
    Duration::from_millis(rand::random_range(COME_BACK_MS))
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
