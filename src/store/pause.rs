//! The pauses between attempts to reach the shared store.

use std::time::Duration;

use crate::sync::backoff::Backoff;

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(2);

/// Pauses with jitter, so that replicas do not return to the store together.
#[must_use]
pub fn store_backoff() -> Backoff {
    Backoff::with_jitter(FIRST, LONGEST, 0.5..1.0)
}
