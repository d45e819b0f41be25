//! Opens and closes the fence of this replica's sessions: while its lease lasts, while Redis is away for all, and again
//! after a lapse once the records say which sessions are still its own. Reasons: `docs/adr/0027`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::{sleep, timeout};

use super::greeting::{self, GreetingFailure};
use super::identity::ReplicaIdentity;
use super::membership::Membership;
use super::peers::Peer;
use super::record::ReplicaRecord;
use crate::clock::boot_time;
use crate::ownership::Fence;
use crate::runtime::lifecycle::TaskSpawner;
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// For the word of a peer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// After a lapse: adoptions that were decided before the lease was renewed are over by then. A decision holds for a
/// second, and a command to Redis ends within two.
const DECIDED_BEFORE: Duration = Duration::from_secs(3);
/// Looks in one lease.
const LOOKS: u32 = 24;

/// Asks the shared store which sessions were adopted by other replicas.
pub trait SessionCheck: Send + Sync + std::fmt::Debug {
    /// Gives up the sessions that another replica owns; `false` where that cannot be found out now.
    fn give_up_adopted(&self) -> BoxFuture<'_, bool>;
}

/// Why the fence is open, or that it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FenceReason {
    /// This replica has its lease.
    Lease,
    /// Redis is away for all replicas: no other one can adopt.
    Outage,
    /// The fence is closed.
    Lapsed,
}

/// Keeps one fence.
#[derive(Debug)]
pub(super) struct FenceKeeper {
    pub(super) membership: Arc<Membership>,
    pub(super) identity: Arc<ReplicaIdentity>,
    pub(super) tasks: TaskSpawner,
    pub(super) fence: Fence,
    pub(super) check: Arc<dyn SessionCheck>,
}

impl FenceKeeper {
    /// Keeps the fence, which is open, for as long as it is polled.
    pub(super) async fn keep(self) {
        let length = self.membership.length();
        let mut reason = FenceReason::Lease;
        loop {
            let next = match reason {
                FenceReason::Lease | FenceReason::Outage => self.prolong(length).await,
                FenceReason::Lapsed => self.reopen().await,
            };
            if next != reason {
                tell(reason, next);
                reason = next;
            }
            sleep(length / LOOKS).await;
        }
    }

    /// Prolongs an open fence without a gap, or leaves it to close.
    async fn prolong(&self, length: Duration) -> FenceReason {
        let lease = &self.membership.lease;
        // Read before the fence: where the process is stopped in between, and has another lease when it goes on, the
        // fence is opened up to the past.
        let until = lease.until();
        if !self.fence.is_open() {
            return FenceReason::Lapsed;
        }
        if until.saturating_sub(boot_time()) > length / 6 {
            self.fence.open_until(until);
            return FenceReason::Lease;
        }
        let asked = boot_time();
        let spared = self.spared_by_all(length).await;
        if !spared.is_zero() && self.fence.is_open() {
            self.fence.open_until(asked + spared);
            return FenceReason::Outage;
        }
        if lease.is_held() {
            return FenceReason::Lease;
        }
        self.fence.open_until(Duration::ZERO);
        FenceReason::Lapsed
    }

    /// Opens the fence again once this replica has a lease and has given up what others have adopted.
    async fn reopen(&self) -> FenceReason {
        let lease = &self.membership.lease;
        let Some(since) = lease.held_since() else {
            return FenceReason::Lapsed;
        };
        let decided = since.saturating_add(DECIDED_BEFORE);
        sleep(decided.saturating_sub(boot_time())).await;
        if lease.held_since() != Some(since) || !self.check.give_up_adopted().await {
            return FenceReason::Lapsed;
        }
        // Another lapse meanwhile is one in which others may have adopted more.
        let until = lease.until();
        if lease.held_since() != Some(since) {
            return FenceReason::Lapsed;
        }
        self.fence.open_until(until);
        FenceReason::Lease
    }

    /// For how long no peer can adopt a session of this replica, half a lease at most: none of them reaches Redis either,
    /// or has reached it for less than a lease. A silent peer may reach Redis, and so may a replica that has the address of
    /// a peer by now: that one is not known where it began during the outage.
    async fn spared_by_all(&self, length: Duration) -> Duration {
        let peers = self.membership.peers();
        let asked = peers.known().map(|record| self.spared_by(record, length));
        let least = join_all(asked).await.into_iter().min();
        least.unwrap_or(length).min(length / 2)
    }

    async fn spared_by(&self, record: &ReplicaRecord, length: Duration) -> Duration {
        let Ok(peer) = Peer::new(record.clone(), &self.identity) else {
            return Duration::ZERO;
        };
        match timeout(ANSWER_WITHIN, greeting::ask(&peer, &self.tasks)).await {
            // Peers have heard of Redis at most a third of a lease later than this replica.
            Ok(Ok(greeting)) if Duration::from_millis(greeting.lease_ms) <= length / 2 => length,
            Ok(Ok(greeting)) => Duration::from_millis(greeting.adopts_after_ms),
            Ok(Err(GreetingFailure::Unanswered(failure))) if failure.is_refused() => length,
            Ok(Err(_)) | Err(_) => Duration::ZERO,
        }
    }
}

fn tell(before: FenceReason, now: FenceReason) {
    let is_fenced = now == FenceReason::Lapsed;
    GAUGES.cluster_fenced.set(i64::from(is_fenced));
    match now {
        FenceReason::Lapsed => {
            COUNTERS.cluster_fencings.add(1);
            tracing::warn!("replica is fenced: its sessions wait for its lease");
        }
        FenceReason::Lease if before == FenceReason::Lapsed => {
            tracing::info!("replica serves its sessions again");
        }
        FenceReason::Outage => {
            tracing::warn!("Redis is away for all replicas: they go on with the sessions they own");
        }
        FenceReason::Lease => {}
    }
}
