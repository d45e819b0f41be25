//! The reserve of the byte budget: room for messages that are never refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BudgetHolder;
use super::guarded_bytes::guarded;
use crate::lock::lock;

/// Permits of the reserve: a fixed number in all, and one for each holder.
#[derive(Debug)]
pub(super) struct ReservePermits {
    all: Arc<Semaphore>,
    /// Of holders that have a permit or wait for one.
    by_holder: Mutex<HashMap<BudgetHolder, Weak<Semaphore>>>,
}

/// Room for one message in the reserve, until it is dropped.
#[derive(Debug)]
#[must_use = "the room is given back when the permit is dropped"]
pub struct ReservePermit {
    // Never `None`, as no semaphore here is ever closed.
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl ReservePermit {
    /// The message itself, which holds the permit until its last slice is dropped.
    #[must_use]
    pub fn hold(self, message: Bytes) -> Bytes {
        guarded(message, self)
    }
}

impl ReservePermits {
    pub(super) fn new(permits: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            by_holder: Mutex::default(),
        }
    }

    /// Waits for a permit; first for the holder's own, so that others do not wait behind its slow messages.
    pub(super) async fn enter(&self, holder: BudgetHolder) -> ReservePermit {
        let own = self.own(holder).acquire_owned().await.ok();
        let all = Arc::clone(&self.all).acquire_owned().await.ok();
        ReservePermit {
            _own: own,
            _all: all,
        }
    }

    fn own(&self, holder: BudgetHolder) -> Arc<Semaphore> {
        let mut by_holder = lock(&self.by_holder);
        if let Some(own) = by_holder.get(&holder).and_then(Weak::upgrade) {
            return own;
        }
        by_holder.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(1));
        by_holder.insert(holder, Arc::downgrade(&own));
        own
    }
}
