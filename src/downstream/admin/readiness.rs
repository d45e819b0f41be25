//! `AdminReadiness`: whether the gateway takes new work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::lifecycle::TaskSpawner;

/// Whether new work is taken: not before the start is complete, and not during a drain.
#[derive(Debug, Clone)]
pub struct AdminReadiness {
    started: Arc<AtomicBool>,
    tasks: TaskSpawner,
}

impl AdminReadiness {
    /// Not ready yet.
    #[must_use]
    pub fn new(tasks: TaskSpawner) -> Self {
        Self {
            started: Arc::default(),
            tasks,
        }
    }

    /// Everything is bound and built.
    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether the gateway is about to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.tasks.draining().is_cancelled()
    }

    /// Whether new work is taken now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) && !self.tasks.draining().is_cancelled()
    }
}
