//! The first start of an upstream since that of the gateway: from when on it runs, and whether it is over. Clients wait
//! longer for it, since servers that are downloaded first (`npx`, `uvx`) need the time once. Spec: DESIGN §6 (health);
//! SPEC G-03.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::error::LinkError;
use super::lock;
use crate::call::OwnerKey;
use crate::sync::lazy_cache::LazyCache;

/// Remembered owners, at most; an evicted owner has its first start again.
const OWNERS: u64 = 4096;

/// Progress of a first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstStart {
    /// No request has needed the upstream yet.
    #[default]
    Pending,
    /// The start has run since then.
    Running(Instant),
    /// An attempt succeeded or failed.
    Over,
}

/// The first starts of one upstream: of each owner where it sees owners apart, else one of all.
#[derive(Debug)]
pub(super) struct FirstStarts {
    of_all: Mutex<FirstStart>,
    of_owners: Option<LazyCache<OwnerKey, FirstStart>>,
}

impl FirstStarts {
    /// No first start has begun yet.
    pub(super) fn new(sees_owners_apart: bool) -> Self {
        Self {
            of_all: Mutex::default(),
            of_owners: sees_owners_apart.then(|| LazyCache::new(OWNERS)),
        }
    }

    /// Progress of the first start for which `owner` waits.
    pub(super) fn of(&self, owner: &OwnerKey) -> FirstStart {
        match &self.of_owners {
            Some(owners) => owners.get(owner).unwrap_or_default(),
            None => *lock(&self.of_all),
        }
    }

    /// Notes an attempt to reach the upstream for `owner`.
    pub(super) fn begin(&self, owner: &OwnerKey) {
        if self.of(owner) == FirstStart::Pending {
            self.set(owner, FirstStart::Running(Instant::now()));
        }
    }

    /// Notes the end of an attempt.
    pub(super) fn end(&self, owner: &OwnerKey) {
        if self.of(owner) != FirstStart::Over {
            self.set(owner, FirstStart::Over);
        }
    }

    fn set(&self, owner: &OwnerKey, now: FirstStart) {
        match &self.of_owners {
            Some(owners) => owners.insert(*owner, now),
            None => *lock(&self.of_all) = now,
        }
    }
}

/// Reports the first attempt of one link to `FirstStarts`; costs later calls one load.
#[derive(Debug, Default)]
pub(super) struct FirstStartWitness {
    has_ended: AtomicBool,
}

impl FirstStartWitness {
    /// Notes in `starts` a use of the link, which is of `owner`.
    pub(super) fn began(&self, starts: &FirstStarts, owner: &OwnerKey) {
        if !self.has_ended.load(Ordering::Relaxed) {
            starts.begin(owner);
        }
    }

    /// Notes in `starts` the `outcome` of a use of the link, which is of `owner`.
    pub(super) fn ended<T>(
        &self,
        starts: &FirstStarts,
        owner: &OwnerKey,
        outcome: &Result<T, LinkError>,
    ) {
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let says_nothing = |error: &LinkError| {
            matches!(error, LinkError::Cancelled | LinkError::AtCapacity { .. })
        };
        if !outcome.as_ref().is_err_and(says_nothing) {
            self.has_ended.store(true, Ordering::Relaxed);
            starts.end(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::samples::owner;

    #[tokio::test(start_paused = true)]
    async fn first_start_counts_from_its_beginning_and_never_begins_again() {
        let starts = FirstStarts::new(false);
        let (alice, bob) = (owner("alice"), owner("bob"));
        assert_eq!(starts.of(&alice), FirstStart::Pending);
        let began = Instant::now();
        starts.begin(&alice);
        tokio::time::advance(Duration::from_secs(1)).await;
        starts.begin(&bob);
        assert_eq!(starts.of(&bob), FirstStart::Running(began));
        starts.end(&alice);
        starts.begin(&bob);
        assert_eq!(starts.of(&bob), FirstStart::Over);
    }

    #[test]
    fn owners_that_are_seen_apart_have_a_first_start_each() {
        let starts = FirstStarts::new(true);
        let (alice, bob) = (owner("alice"), owner("bob"));
        starts.begin(&alice);
        starts.end(&alice);
        assert_eq!(starts.of(&alice), FirstStart::Over);
        assert_eq!(starts.of(&bob), FirstStart::Pending);
    }
}
