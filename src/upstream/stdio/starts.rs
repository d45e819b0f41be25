//! How many children start at once: starting is what costs processor time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;

/// Two per core in all, half of them for any one upstream: one that starts slowly does not hold
/// up the others.
#[derive(Debug)]
pub(super) struct Starts {
    all: Arc<Semaphore>,
    per_upstream: usize,
    /// One entry per configured upstream that was ever started.
    upstreams: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// Leave to start one child; the next may start when this is dropped.
#[derive(Debug)]
pub(super) struct StartPermit {
    _of_upstream: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Starts {
    pub(super) fn new(cores: usize) -> Self {
        let per_upstream = cores.max(1);
        Self {
            all: Arc::new(Semaphore::new(per_upstream.saturating_mul(2))),
            per_upstream,
            upstreams: Mutex::default(),
        }
    }

    /// Waits for leave to start a child of `upstream`, first come, first served.
    ///
    /// # Cancel safety
    /// A dropped wait loses its turn.
    pub(super) async fn permit(&self, upstream: &Arc<str>) -> Option<StartPermit> {
        let of_upstream = {
            let mut all = lock(&self.upstreams);
            let fresh = || Arc::new(Semaphore::new(self.per_upstream));
            Arc::clone(all.entry(Arc::clone(upstream)).or_insert_with(fresh))
        };
        // The upstream's own first: whoever waits for it holds nothing that others need.
        let of_upstream = of_upstream.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(StartPermit {
            _of_upstream: of_upstream,
            _of_all: of_all,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn at_once(starts: &Starts, upstream: &str) -> Option<StartPermit> {
        starts.permit(&upstream.into()).now_or_never().flatten()
    }

    #[test]
    fn one_upstream_does_not_hold_up_another() {
        let starts = Starts::new(2);
        let slow = [at_once(&starts, "slow"), at_once(&starts, "slow")];
        assert!(slow.iter().all(Option::is_some));
        assert!(at_once(&starts, "slow").is_none());
        assert!(at_once(&starts, "good").is_some());
    }

    #[test]
    fn no_more_than_two_per_core_start_at_once() {
        let starts = Starts::new(2);
        let held: Vec<_> = ["a", "a", "b", "b"]
            .map(|name| at_once(&starts, name))
            .into();
        assert!(held.iter().all(Option::is_some));
        assert!(at_once(&starts, "c").is_none());
        drop(held);
        assert!(at_once(&starts, "c").is_some());
    }
}
