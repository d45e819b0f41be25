//! `EraPresumption`: whether a link is legacy by presumption alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a link is legacy by presumption alone: its probe was not answered, and no handshake has succeeded yet.
///
/// Kept beside the state and not as a state of its own. Each caller has a clone of the state while it uses the link. The
/// first handshake that succeeds confirms the era for all of them; a state in each clone would be out of date.
#[derive(Debug, Clone)]
pub(super) struct EraPresumption(Arc<AtomicBool>);

impl EraPresumption {
    /// The link is presumed to be legacy: its handshake confirms or refutes that.
    pub(super) fn pending() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// The link is legacy for other reasons.
    pub(super) fn none() -> Self {
        Self(Arc::default())
    }

    /// Whether the presumption still waits for a handshake.
    pub(super) fn is_pending(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that a handshake has succeeded.
    pub(super) fn confirm(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
