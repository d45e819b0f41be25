//! The places under `server.max_connections`.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::metrics::{GAUGES, Open};

/// A connection's place, free again when the last clone is dropped: a connection that was upgraded
/// keeps it for as long as its socket lives.
#[derive(Debug, Clone)]
pub(in crate::downstream) struct Place {
    taken: Arc<Taken>,
}

#[derive(Debug)]
struct Taken {
    _permit: OwnedSemaphorePermit,
    /// Absent for a connection that is not a client's.
    open: Option<Open>,
}

impl Place {
    /// Whether a client's connection has it.
    pub(super) fn is_client(&self) -> bool {
        self.taken.open.is_some()
    }

    /// A place, if one is free; a client's is counted as open.
    pub(super) fn take(places: &Arc<Semaphore>, is_client: bool) -> Option<Self> {
        let permit = Arc::clone(places).try_acquire_owned().ok()?;
        let taken = Taken {
            _permit: permit,
            open: is_client.then(|| GAUGES.connections_open.enter()),
        };
        Some(Self {
            taken: Arc::new(taken),
        })
    }
}
