//! Limit on children that start at once, as a start costs processor time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::child_lines::ChildLines;
use crate::call::OwnerKey;
use crate::lock::lock;

/// Two per core in all, half of them for any one upstream. A start holds its permit until the child has
/// spoken, and for a bounded time. Permits go to principals in turn, within each first come, first
/// served; upstreams whose last start gave no sign of life come behind all others.
#[derive(Debug)]
pub(super) struct StartLimiter {
    all: usize,
    per_upstream: usize,
    inner: Mutex<LimiterState>,
    /// Rate limit for log lines about the children.
    pub(super) lines: ChildLines,
}

#[derive(Debug, Default)]
struct LimiterState {
    running: usize,
    /// One entry per configured upstream that was ever started.
    upstreams: HashMap<Arc<str>, RecentStarts>,
    /// In the order of their coming; bounded by the places for children.
    waiting: VecDeque<StartWaiter>,
    /// When principals that wait were last given a permit, in grants.
    served: HashMap<OwnerKey, u64>,
    grants: u64,
}

/// The recent starts of one upstream.
#[derive(Debug, Default)]
struct RecentStarts {
    running: usize,
    /// Whether the last start has ended, or used up its time, without a message.
    failed: bool,
    /// Whether the last child that is gone never wrote a message, whatever ended it.
    silent: bool,
}

#[derive(Debug)]
struct StartWaiter {
    owner: OwnerKey,
    upstream: Arc<str>,
    grant: oneshot::Sender<StartPermit>,
}

/// The permit to start one child; when dropped, the next child may start.
#[derive(Debug)]
pub(super) struct StartPermit {
    starts: Arc<StartLimiter>,
    upstream: Arc<str>,
}

impl StartLimiter {
    pub(super) fn new(cores: usize) -> Arc<Self> {
        let per_upstream = cores.max(1);
        Arc::new(Self {
            all: per_upstream.saturating_mul(2),
            per_upstream,
            inner: Mutex::default(),
            lines: ChildLines::default(),
        })
    }

    /// How many may start at the same time, of all upstreams.
    pub(super) fn at_once(&self) -> usize {
        self.all
    }

    /// Waits for a permit to start a child of `upstream` for `owner`.
    ///
    /// # Cancel safety
    /// A dropped wait loses its turn.
    pub(super) async fn permit(
        self: &Arc<Self>,
        owner: OwnerKey,
        upstream: &Arc<str>,
    ) -> Option<StartPermit> {
        let (grant, granted) = oneshot::channel();
        let upstream = Arc::clone(upstream);
        self.inner().waiting.push_back(StartWaiter {
            owner,
            upstream,
            grant,
        });
        self.grant();
        granted.await.ok()
    }

    /// Notes whether a start of `upstream` gave a sign of life.
    pub(super) fn note(&self, upstream: &Arc<str>, spoke: bool) {
        if let Some(standing) = self.inner().upstreams.get_mut(upstream) {
            standing.failed = !spoke;
            standing.silent &= !spoke;
        }
    }

    /// Whether the last start of `upstream` gave no sign of life.
    pub(super) fn has_failed(&self, upstream: &Arc<str>) -> bool {
        let inner = self.inner();
        let standing = inner.upstreams.get(upstream);
        standing.is_some_and(|one| one.failed || one.silent)
    }

    /// Notes that a child of `upstream` is gone that never wrote a message.
    pub(super) fn note_silent(&self, upstream: &Arc<str>) {
        if let Some(standing) = self.inner().upstreams.get_mut(upstream) {
            standing.silent = true;
        }
    }

    /// Gives out the permits that are free.
    fn grant(self: &Arc<Self>) {
        // Permits are sent after the lock is released: a refused permit is dropped, and takes the lock.
        let mut granted = Vec::new();
        {
            let mut inner = self.inner();
            inner.waiting.retain(|waiter| !waiter.grant.is_closed());
            while let Some(waiter) = inner.next_waiter(self.all, self.per_upstream) {
                let permit = StartPermit {
                    starts: Arc::clone(self),
                    upstream: Arc::clone(&waiter.upstream),
                };
                granted.push((waiter.grant, permit));
            }
            inner.forget_served();
        }
        for (grant, permit) in granted {
            drop(grant.send(permit));
        }
    }

    fn inner(&self) -> MutexGuard<'_, LimiterState> {
        lock(&self.inner)
    }
}

impl LimiterState {
    /// Takes out the waiter whose turn it is, and counts its start.
    fn next_waiter(&mut self, all: usize, per_upstream: usize) -> Option<StartWaiter> {
        if self.running >= all {
            return None;
        }
        let of = |waiter: &StartWaiter| self.upstreams.get(&waiter.upstream);
        let fits = |waiter: &StartWaiter| of(waiter).is_none_or(|one| one.running < per_upstream);
        let candidates = self.waiting.iter().enumerate();
        let fitting = candidates.filter(|(_, waiter)| fits(waiter));
        let (at, _) = fitting.min_by_key(|(at, waiter)| {
            let failed = of(waiter).is_some_and(|one| one.failed);
            let served = self.served.get(&waiter.owner).copied();
            (failed, served.unwrap_or_default(), *at)
        })?;
        let waiter = self.waiting.remove(at)?;
        self.running += 1;
        self.grants += 1;
        self.served.insert(waiter.owner, self.grants);
        let upstream = Arc::clone(&waiter.upstream);
        self.upstreams.entry(upstream).or_default().running += 1;
        Some(waiter)
    }

    /// Removes the entries of principals without a waiter.
    fn forget_served(&mut self) {
        let waiting = &self.waiting;
        self.served
            .retain(|owner, _| waiting.iter().any(|waiter| waiter.owner == *owner));
    }
}

impl StartPermit {
    /// The `StartLimiter` that granted the permit.
    pub(super) fn starts(&self) -> &Arc<StartLimiter> {
        &self.starts
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        {
            let mut inner = self.starts.inner();
            inner.running = inner.running.saturating_sub(1);
            if let Some(standing) = inner.upstreams.get_mut(&self.upstream) {
                standing.running = standing.running.saturating_sub(1);
            }
        }
        self.starts.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::call::samples::owner;

    fn at_once(starts: &Arc<StartLimiter>, upstream: &str) -> Option<StartPermit> {
        let upstream = upstream.into();
        let permit = starts.permit(owner("alice"), &upstream);
        permit.now_or_never().flatten()
    }

    /// The order in which these waiters get a permit, one after the other.
    fn next_of(
        starts: &Arc<StartLimiter>,
        held: StartPermit,
        waiting: &[(&str, &str)],
    ) -> Vec<usize> {
        let mut waits: Vec<_> = waiting
            .iter()
            .map(|(who, upstream)| {
                let (starts, owner) = (Arc::clone(starts), owner(who));
                let upstream: Arc<str> = (*upstream).into();
                Box::pin(async move { starts.permit(owner, &upstream).await })
            })
            .collect();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none(), "none is free");
        }
        let mut order = Vec::new();
        let mut held = Some(held);
        while order.len() < waits.len() {
            drop(held.take());
            for (at, wait) in waits.iter_mut().enumerate() {
                if !order.contains(&at)
                    && let Some(permit) = wait.as_mut().now_or_never()
                {
                    order.push(at);
                    held = permit;
                }
            }
        }
        order
    }

    #[test]
    fn one_upstream_does_not_hold_up_another() {
        let starts = StartLimiter::new(2);
        let slow = [at_once(&starts, "slow"), at_once(&starts, "slow")];
        assert!(slow.iter().all(Option::is_some));
        assert!(at_once(&starts, "slow").is_none());
        assert!(at_once(&starts, "good").is_some());
    }

    #[test]
    fn no_more_than_two_per_core_start_at_once() {
        let starts = StartLimiter::new(2);
        let held: Vec<_> = ["a", "a", "b", "b"]
            .map(|name| at_once(&starts, name))
            .into();
        assert!(held.iter().all(Option::is_some));
        assert!(at_once(&starts, "c").is_none());
        drop(held);
        assert!(at_once(&starts, "c").is_some());
    }

    /// All permits are held; one is given back at a time.
    fn busy() -> (Arc<StartLimiter>, StartPermit, StartPermit) {
        let starts = StartLimiter::new(1);
        let [Some(held), Some(other)] = ["held", "other"].map(|name| at_once(&starts, name)) else {
            panic!("two are free");
        };
        (starts, held, other)
    }

    #[test]
    fn principals_start_children_in_turn() {
        let (starts, held, _other) = busy();
        let mallory = ("mallory", "up");
        let waiting = [mallory, mallory, mallory, ("bob", "up")];
        assert_eq!(next_of(&starts, held, &waiting), [0, 3, 1, 2]);
        assert!(starts.inner().served.is_empty());
    }

    #[test]
    fn failed_upstream_starts_behind_the_others() {
        let (starts, held, _other) = busy();
        drop(at_once(&starts, "mute"));
        starts.inner().upstreams.entry("mute".into()).or_default();
        starts.note(&"mute".into(), false);
        let waiting = [("alice", "mute"), ("alice", "good"), ("alice", "fine")];
        assert_eq!(next_of(&starts, held, &waiting), [1, 2, 0]);
    }

    #[test]
    fn waiter_that_gave_up_takes_no_permit() {
        let (starts, held, _other) = busy();
        let gone = starts.permit(owner("bob"), &"up".into()).now_or_never();
        assert!(gone.is_none());
        drop(held);
        assert!(at_once(&starts, "up").is_some());
    }
}
