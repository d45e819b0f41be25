//! Opens and closes the fence of this replica's sessions: while its lease lasts, while Redis is away for all, and again
//! after a lapse once the records say which sessions are still its own. Reasons: `docs/adr/0027`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::{sleep, timeout};

use super::greeting::{self, GreetingFailure, ReplicaGreeting};
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
/// After a lapse: adoptions that were decided before the lease was renewed are over by then. Redis carries out none that
/// was decided more than a second before, by a clock that may run a little slow.
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
                self.follow(reason, next);
                reason = next;
            }
            sleep(length / LOOKS).await;
        }
    }

    /// What a change of the reason asks for.
    fn follow(&self, before: FenceReason, now: FenceReason) {
        match (before, now) {
            // It has closed by itself.
            (_, FenceReason::Lapsed) => self.fence.open_until(Duration::ZERO),
            // A peer that was not asked may have reached Redis all the time.
            (FenceReason::Outage, FenceReason::Lease) => {
                let (check, pause) = (Arc::clone(&self.check), self.membership.length() / LOOKS);
                self.tasks.spawn_service(give_up_adopted(check, pause));
            }
            _ => {}
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
        let word = self.word_of_all(length).await;
        heed(&self.fence, until, asked, word)
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
        // In another lapse meanwhile, other replicas may have adopted more sessions.
        let until = lease.until();
        if lease.held_since() != Some(since) {
            return FenceReason::Lapsed;
        }
        self.fence.open_until(until);
        FenceReason::Lease
    }

    /// The worst answer of all peers. A silent peer may reach Redis. So may a replica that started during the outage at the
    /// address of a peer: if it proves to be a replica, its answer counts for that peer.
    async fn word_of_all(&self, length: Duration) -> PeerWord {
        let peers = self.membership.peers();
        let asked = peers.known().map(|record| self.word_of(record, length));
        let words = join_all(asked).await.into_iter();
        words.fold(PeerWord::Spares(length / 2), PeerWord::min)
    }

    async fn word_of(&self, record: &ReplicaRecord, length: Duration) -> PeerWord {
        let Ok(peer) = Peer::new(record.clone(), &self.identity) else {
            return PeerWord::Silent;
        };
        let asked = async {
            let failure = match greeting::ask(&peer, &self.tasks).await {
                Ok(greeting) => return PeerWord::said(&greeting, length),
                Err(failure) => failure,
            };
            if let GreetingFailure::Unanswered(failure) = failure
                && failure.is_refused()
            {
                // It may have begun to know Redis a moment before it listens.
                return PeerWord::Spares(length * 5 / 6);
            }
            // The peer may have restarted since Redis listed it, and so may not know this replica.
            match self.membership.ask_for_proof(&record.address).await {
                Some(proved) => PeerWord::said(&proved.greeting, length),
                None => PeerWord::Silent,
            }
        };
        let word = timeout(ANSWER_WITHIN, asked).await;
        word.unwrap_or(PeerWord::Silent)
    }
}

/// Gives up the sessions that another replica owns, as soon as that can be found out: Redis may fail once more right after
/// an outage.
async fn give_up_adopted(check: Arc<dyn SessionCheck>, pause: Duration) {
    while !check.give_up_adopted().await {
        sleep(pause).await;
    }
}

/// Whether a peer can adopt sessions of this replica, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PeerWord {
    /// It reaches Redis.
    MayAdopt,
    /// It says nothing: it may be slow, restarting or cut off.
    Silent,
    /// It cannot for so long: it does not reach Redis either, or has reached it for less than a lease.
    Spares(Duration),
}

impl PeerWord {
    /// What a greeting says, where a lease is as long as `length`.
    fn said(greeting: &ReplicaGreeting, length: Duration) -> Self {
        // Peers have heard of Redis at most a third of a lease later than this replica.
        if Duration::from_millis(greeting.lease_ms) <= length / 2 {
            return Self::Spares(length);
        }
        match Duration::from_millis(greeting.adopts_after_ms) {
            Duration::ZERO => Self::MayAdopt,
            spared => Self::Spares(spared),
        }
    }
}

/// Moves the end of a fence whose lease ends at `until`, by what the peers say that were asked at `asked`. A fence that
/// has closed meanwhile stays closed. What was granted before a peer fell silent stands: it was no guess.
fn heed(fence: &Fence, until: Duration, asked: Duration, word: PeerWord) -> FenceReason {
    if !fence.is_open() {
        return FenceReason::Lapsed;
    }
    match word {
        PeerWord::Spares(time) => {
            fence.open_until(asked + time);
            return FenceReason::Outage;
        }
        PeerWord::Silent => {}
        PeerWord::MayAdopt => fence.open_until(until),
    }
    if !fence.is_open() {
        FenceReason::Lapsed
    } else if until > boot_time() {
        FenceReason::Lease
    } else {
        FenceReason::Outage
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LENGTH: Duration = Duration::from_secs(5);

    fn greeting(lease_ms: u64, adopts_after_ms: u64) -> ReplicaGreeting {
        ReplicaGreeting {
            node: 1,
            version: "1".to_owned(),
            lease_ms,
            adopts_after_ms,
            serves_ms: 0,
            leaves: false,
        }
    }

    /// A fence that is open for a minute, of a lease that is over.
    fn granted() -> (Fence, Duration, Duration) {
        let (fence, now) = (Fence::closed(), boot_time());
        fence.open_until(now + Duration::from_mins(1));
        (fence, now.saturating_sub(LENGTH), now)
    }

    /// A store that answers the third question only.
    #[derive(Debug, Default)]
    struct LateAnswer(AtomicUsize);

    impl SessionCheck for LateAnswer {
        fn give_up_adopted(&self) -> BoxFuture<'_, bool> {
            let asked = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            Box::pin(std::future::ready(asked == 3))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn check_after_an_outage_is_repeated_until_answered() {
        let check = Arc::new(LateAnswer::default());
        give_up_adopted(Arc::clone(&check) as _, LENGTH).await;
        assert_eq!(check.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn silence_of_a_peer_takes_back_nothing_that_was_granted() {
        let (fence, until, now) = granted();
        let reason = heed(&fence, until, now, PeerWord::Silent);
        assert_eq!((reason, fence.is_open()), (FenceReason::Outage, true));
    }

    #[test]
    fn peer_that_reaches_redis_closes_the_fence_of_a_lease_that_is_over() {
        let (fence, until, now) = granted();
        let reason = heed(&fence, until, now, PeerWord::MayAdopt);
        assert_eq!((reason, fence.is_open()), (FenceReason::Lapsed, false));
        // It does not open again but by the lease.
        let reason = heed(&fence, until, now, PeerWord::Spares(LENGTH));
        assert_eq!((reason, fence.is_open()), (FenceReason::Lapsed, false));
    }

    #[test]
    fn peer_without_redis_or_new_to_it_spares_the_sessions() {
        let said = |lease, after| PeerWord::said(&greeting(lease, after), LENGTH);
        assert_eq!(said(2_000, 0), PeerWord::Spares(LENGTH));
        let short = Duration::from_millis(700);
        assert_eq!(said(4_000, 700), PeerWord::Spares(short));
        assert_eq!(said(4_000, 0), PeerWord::MayAdopt);
        let worst = [
            PeerWord::Spares(LENGTH),
            PeerWord::Spares(short),
            PeerWord::Silent,
        ];
        assert_eq!(worst.into_iter().min(), Some(PeerWord::Silent));
        assert!(PeerWord::MayAdopt < PeerWord::Silent);
        assert!(PeerWord::Spares(short) < PeerWord::Spares(LENGTH));
    }
}
