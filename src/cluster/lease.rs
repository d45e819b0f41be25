//! The lease of this replica by its own clock. When the lease is over, peers may take over its sessions; the replica has
//! to know the end before the peers do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{boot_time, millis};

/// When the lease ends, on `CLOCK_BOOTTIME`, which counts the time in which the machine was suspended.
#[derive(Debug, Default)]
pub struct ReplicaLease {
    /// Milliseconds; zero where there is no lease.
    until: AtomicU64,
    /// Milliseconds: when the lease was acknowledged that has been renewed without a break.
    since: AtomicU64,
}

impl ReplicaLease {
    /// Redis has acknowledged by `now` a heartbeat that was sent at `sent`: the lease counts from before it was sent,
    /// since that of Redis begins later.
    pub(super) fn renewed(&self, sent: Duration, now: Duration, lease: Duration) {
        if self.left_at(now).is_zero() {
            self.since.store(millis(now), Ordering::Release);
        }
        let until = millis(sent.saturating_add(lease));
        self.until.store(until, Ordering::Release);
    }

    /// The lease is another one's, or was given up.
    pub(super) fn ended(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// How long it lasts from now on; zero where it is over.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.left_at(boot_time())
    }

    /// When it ends, on `CLOCK_BOOTTIME`; zero where there is none.
    pub(super) fn until(&self) -> Duration {
        Duration::from_millis(self.until.load(Ordering::Acquire))
    }

    /// Whether no other replica may take over yet.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.left().is_zero()
    }

    /// Since when this replica has had a lease without a break, on `CLOCK_BOOTTIME`; `None` where it is over.
    pub(super) fn held_since(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.since.load(Ordering::Acquire));
        self.is_held().then_some(since)
    }

    /// For how long this replica has had a lease without a break; zero where it is over.
    pub(super) fn held_for(&self) -> Duration {
        let since = self.held_since();
        since.map_or(Duration::ZERO, |since| boot_time().saturating_sub(since))
    }

    fn left_at(&self, now: Duration) -> Duration {
        self.until().saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lease_counts_from_before_the_heartbeat() {
        let lease = ReplicaLease::default();
        assert_eq!(lease.left_at(at(1)), Duration::ZERO);
        lease.renewed(at(100), at(101), LEASE);
        assert_eq!(lease.left_at(at(103)), at(2));
        assert_eq!(lease.left_at(at(105)), Duration::ZERO);
    }

    #[test]
    fn lease_that_lapses_begins_again() {
        let (lease, now) = (ReplicaLease::default(), boot_time());
        assert_eq!(lease.held_since(), None);
        let ago = |seconds| now.saturating_sub(at(seconds));
        lease.renewed(ago(20), ago(20), LEASE);
        assert_eq!(lease.held_since(), None, "over by now");
        lease.renewed(ago(5), ago(5), LEASE);
        let begun = Duration::from_millis(millis(ago(5)));
        lease.renewed(ago(2), ago(1), LEASE);
        assert_eq!(lease.held_since(), Some(begun), "renewed in time");
        assert!(lease.held_for() >= at(5));
        lease.ended();
        lease.renewed(now, now, LEASE);
        assert_eq!(lease.held_since(), Some(Duration::from_millis(millis(now))));
        assert!(lease.held_for() < at(5), "counted from the lapse on");
    }

    #[test]
    fn ended_lease_is_over_at_once() {
        let lease = ReplicaLease::default();
        lease.renewed(at(100), at(100), LEASE);
        lease.ended();
        assert_eq!(lease.left_at(at(100)), Duration::ZERO);
    }

    #[test]
    fn machine_has_a_boot_time() {
        let lease = ReplicaLease::default();
        lease.renewed(boot_time(), boot_time(), LEASE);
        assert!(lease.is_held());
    }
}
