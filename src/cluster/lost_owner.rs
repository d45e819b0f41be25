//! `LostOwners`: decides whether a replica is lost and its sessions may be adopted.
//!
//! Redis alone does not decide: it may have lost the lease of a replica that lives. The replica is asked at its internal
//! address too, and its word counts. Reasons: `docs/adr/0027`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::greeting::{self, GreetingFailure, ReplicaGreeting};
use super::identity::ReplicaIdentity;
use super::membership::Membership;
use super::peers::Peer;
use super::record::ReplicaRecord;
use crate::lock::lock;
use crate::redis_client::{RedisClient, cmd};
use crate::runtime::lifecycle::TaskSpawner;
use crate::sync::single_flight::SingleFlight;

/// For the word of a replica without a lease: a living one answers sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Between two questions to a replica whose connection broke: an ending process closes its sockets one after the other.
const PAUSE: Duration = Duration::from_millis(20);

/// Decides on replicas without a lease.
#[derive(Debug)]
pub(super) struct LostOwners {
    membership: Arc<Membership>,
    identity: Arc<ReplicaIdentity>,
    redis: RedisClient,
    tasks: TaskSpawner,
    /// Since when Redis is the same process without a break; `None` while it is away.
    steady: Arc<Mutex<Option<Instant>>>,
    /// Replicas that are asked about now: all sessions of a lost replica wait for one question.
    questions: SingleFlight<u32, bool>,
    /// The same for replicas whose connections broke.
    endings: SingleFlight<u32, bool>,
}

impl LostOwners {
    /// Watches `redis` from now on, and the replicas whose leases end.
    pub(super) fn watch(
        membership: &Arc<Membership>,
        identity: &Arc<ReplicaIdentity>,
        redis: &RedisClient,
        tasks: &TaskSpawner,
    ) -> Arc<Self> {
        let steady = Arc::<Mutex<Option<Instant>>>::default();
        let (mut server, since) = (redis.server(), Arc::clone(&steady));
        tasks.spawn_service(async move {
            loop {
                let is_connected = server.borrow_and_update().is_connected;
                // Redis may have lost data between two connections.
                *lock(&since) = is_connected.then(Instant::now);
                if server.changed().await.is_err() {
                    return;
                }
            }
        });
        let watching = Arc::new(Self {
            membership: Arc::clone(membership),
            identity: Arc::clone(identity),
            redis: redis.clone(),
            tasks: tasks.clone(),
            steady,
            questions: SingleFlight::default(),
            endings: SingleFlight::default(),
        });
        tasks.spawn_service(Arc::clone(&watching).give_up_lost());
        watching
    }

    /// Ends what is under way at replicas that are lost, for as long as it is polled: a replica that was stopped closes
    /// no connection.
    async fn give_up_lost(self: Arc<Self>) {
        let mut lists = self.membership.peer_lists();
        let mut before = BTreeSet::new();
        loop {
            let lapsed: BTreeSet<u32> = lists.borrow_and_update().lapsed().collect();
            let news = lapsed.difference(&before).map(|node| self.is_lost(*node));
            join_all(news).await;
            before = lapsed;
            if lists.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether Redis has been there for a lease, in which living owners have renewed theirs, and this replica has a
    /// lease itself. Before, what Redis does not know is no proof.
    fn may_be_known(&self) -> bool {
        self.unknown_for().is_zero() && self.membership.lease.is_held()
    }

    /// For how long what Redis does not know is no proof yet: a lease after it came back, the whole lease while it is away.
    /// It came back also where this replica has a lease again: the master of a Redis Cluster that has the leases may be
    /// away while the connection lasts.
    pub(super) fn unknown_for(&self) -> Duration {
        let steady = lock(&self.steady).map_or(Duration::ZERO, |since| since.elapsed());
        let held = self.membership.lease.held_for();
        self.membership.length().saturating_sub(steady.min(held))
    }

    /// Whether the replica `node` has no lease, and does not say at its internal address that it has one: the address
    /// refuses, is silent for a second, or belongs to another replica by now. A replica that cannot be asked, as this one is
    /// out of file descriptors, does not count as lost. What is under way at a lost replica breaks off, unless the replica
    /// says that it ends and answers that first. Callers that ask together share the answer.
    ///
    /// # Cancel safety
    /// Nothing is changed before the answer is known.
    pub(super) async fn is_lost(&self, node: u32) -> bool {
        self.questions.share(node, self.find_out(node)).await
    }

    async fn find_out(&self, node: u32) -> bool {
        let known = {
            let peers = self.membership.peers();
            let known = peers.get(node);
            known.map(|(peer, is_lapsed)| (Arc::clone(peer), is_lapsed))
        };
        if known.as_ref().is_some_and(|(_, is_lapsed)| !is_lapsed) || self.has_lease(node).await {
            return false;
        }
        // Its lease was over before this replica began, or longer ago than addresses are kept.
        let Some((peer, _)) = known else {
            return true;
        };
        let Ok(said) = self.word_of(&peer.record).await else {
            return false;
        };
        let is_cut_off = said.as_ref().is_some_and(|said| said.adopts_after_ms > 0);
        peer.is_cut_off.store(is_cut_off, Ordering::Relaxed);
        if breaks_off(said.as_ref()) {
            peer.connections.give_up();
        }
        !said.is_some_and(|said| lives(&said))
    }

    /// Whether Redis has the lease of a replica, whatever its record says, or cannot tell.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn has_lease(&self, node: u32) -> bool {
        if !self.may_be_known() {
            return true;
        }
        let mut exists = cmd("EXISTS");
        exists.arg(self.redis.key(&format!("{{replicas}}:lease:{node}")));
        let found: Result<bool, _> = self.redis.command("lease_exists", &exists).await;
        found.unwrap_or(true)
    }

    /// Whether the process of the replica `node` has ended: nothing listens at its internal address any more, or another
    /// replica does. Its lease may still run, since a process that has ended writes nothing. Takes a second if the address
    /// is silent. Callers that ask together share the answer.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn has_ended(&self, node: u32) -> bool {
        let asked = Box::pin(self.ask_for_end(node));
        self.endings.share(node, asked).await
    }

    async fn ask_for_end(&self, node: u32) -> bool {
        let known = self
            .membership
            .peers()
            .get(node)
            .map(|(peer, _)| Arc::clone(peer));
        let Some(known) = known else {
            // It was forgotten after its lease, or another replica has taken its place.
            return self.is_lost(node).await;
        };
        let until = Instant::now() + ANSWER_WITHIN;
        while Instant::now() < until {
            let Ok(peer) = Peer::new(known.record.clone(), &self.identity) else {
                return false;
            };
            match timeout_at(until, greeting::ask(&peer, &self.tasks)).await {
                Ok(Ok(said)) => return said.node != node,
                Ok(Err(GreetingFailure::Unanswered(failure))) if failure.is_refused() => {
                    return true;
                }
                Ok(Err(_)) => sleep(PAUSE).await,
                Err(_) => return false,
            }
        }
        false
    }

    /// The greeting of a replica, if that one answers at its address.
    ///
    /// # Errors
    /// It could not be asked, and may live.
    async fn word_of(
        &self,
        record: &ReplicaRecord,
    ) -> Result<Option<ReplicaGreeting>, GreetingFailure> {
        // A connection of its own: those of the replica are given up with it.
        let Ok(peer) = Peer::new(record.clone(), &self.identity) else {
            return Ok(None);
        };
        let answer = timeout(ANSWER_WITHIN, greeting::ask(&peer, &self.tasks)).await;
        word_in(answer.ok(), record.node)
    }
}

/// The greeting of the replica `node` in what came from its address; `None` for silence.
///
/// # Errors
/// It was not asked.
fn word_in(
    answer: Option<Result<ReplicaGreeting, GreetingFailure>>,
    node: u32,
) -> Result<Option<ReplicaGreeting>, GreetingFailure> {
    match answer {
        Some(Ok(said)) => Ok((said.node == node).then_some(said)),
        Some(Err(failure)) if failure.is_own() => Err(failure),
        Some(Err(_)) | None => Ok(None),
    }
}

/// Whether what is under way at a replica without a lease breaks off, by what the replica has `said`. A replica that leaves
/// answers what it was sent, and closes its connections itself.
fn breaks_off(said: Option<&ReplicaGreeting>) -> bool {
    said.is_none_or(|said| !lives(said) && !said.leaves)
}

/// Whether a replica goes on with its sessions: also without a lease, where it takes Redis to be away for all.
fn lives(said: &ReplicaGreeting) -> bool {
    said.lease_ms > 0 || said.serves_ms > 0
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;
    use crate::cluster::failure::ForwardFailure;

    /// What the replica with the number 1 says.
    fn said(lease_ms: u64, serves_ms: u64) -> ReplicaGreeting {
        ReplicaGreeting {
            node: 1,
            version: "1".to_owned(),
            lease_ms,
            adopts_after_ms: 0,
            serves_ms,
            leaves: false,
        }
    }

    fn unanswered(error: Errno) -> GreetingFailure {
        let error = io::Error::from_raw_os_error(error.raw_os_error());
        GreetingFailure::Unanswered(ForwardFailure::Unreachable(error))
    }

    #[test]
    fn replica_lives_while_it_serves_its_sessions_and_answers_until_it_has_left() {
        assert!(lives(&said(1, 0)) && lives(&said(0, 1)));
        assert!(!lives(&said(0, 0)), "it is fenced");
        assert!(breaks_off(None) && breaks_off(Some(&said(0, 0))));
        assert!(!breaks_off(Some(&said(1, 0))));
        let leaving = ReplicaGreeting {
            leaves: true,
            ..said(0, 0)
        };
        assert!(!lives(&leaving), "its sessions are adopted");
        assert!(!breaks_off(Some(&leaving)), "it answers");
    }

    #[test]
    fn silence_and_other_answers_are_no_word_of_a_replica() {
        let refused = Err(unanswered(Errno::CONNREFUSED));
        let strange = Err(GreetingFailure::Unreadable);
        for answer in [None, Some(refused), Some(strange), Some(Ok(said(1, 1)))] {
            assert_eq!(word_in(answer, 2).unwrap(), None);
        }
        assert_eq!(word_in(Some(Ok(said(1, 1))), 1).unwrap(), Some(said(1, 1)));
    }

    #[test]
    fn lack_of_descriptors_here_says_nothing_of_a_replica() {
        assert!(unanswered(Errno::MFILE).is_own());
        assert!(!unanswered(Errno::CONNREFUSED).is_own());
        let own = word_in(Some(Err(unanswered(Errno::MFILE))), 1);
        assert!(own.is_err(), "it may live");
    }
}
