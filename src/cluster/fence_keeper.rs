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
use crate::telemetry::metrics::COUNTERS;

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
                // A process that was stopped finds the fence closed before it comes here.
                FenceReason::Lease | FenceReason::Outage if !self.fence.is_open() => {
                    FenceReason::Lapsed
                }
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
        if lease.left() > length / 6 {
            self.fence.open_until(lease.until());
            return FenceReason::Lease;
        }
        // Peers have heard of Redis at most a third of a lease later than this replica.
        let asked = boot_time();
        if self.is_away_for_all(length).await && self.fence.is_open() {
            self.fence.open_until(asked + length / 2);
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
        if !lease.is_held() {
            return FenceReason::Lapsed;
        }
        sleep(DECIDED_BEFORE).await;
        if !lease.is_held() || !self.check.give_up_adopted().await {
            return FenceReason::Lapsed;
        }
        self.fence.open_until(lease.until());
        if self.fence.is_open() {
            FenceReason::Lease
        } else {
            FenceReason::Lapsed
        }
    }

    /// Whether no peer reaches Redis either. A silent peer may reach Redis.
    async fn is_away_for_all(&self, length: Duration) -> bool {
        let peers = self.membership.peers();
        let asked = peers.known().map(|record| self.is_without(record, length));
        join_all(asked)
            .await
            .into_iter()
            .all(|is_without| is_without)
    }

    async fn is_without(&self, record: &ReplicaRecord, length: Duration) -> bool {
        let Ok(peer) = Peer::new(record.clone(), &self.identity) else {
            return false;
        };
        match timeout(ANSWER_WITHIN, greeting::ask(&peer, &self.tasks)).await {
            Ok(Ok(greeting)) => {
                greeting.node != record.node
                    || Duration::from_millis(greeting.lease_ms) <= length / 2
            }
            Ok(Err(GreetingFailure::Unanswered(failure))) => failure.is_refused(),
            Ok(Err(GreetingFailure::Unreadable)) | Err(_) => false,
        }
    }
}

fn tell(before: FenceReason, now: FenceReason) {
    match now {
        FenceReason::Lapsed => {
            COUNTERS.cluster_fenced.add(1);
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
