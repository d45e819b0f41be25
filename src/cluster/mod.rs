//! Several replicas as one gateway: membership by leases, and forwarding of requests to the owner of their session.
//!
//! Each replica holds a lease in Redis and knows the others' by its heartbeats. A session has one owner, named in its
//! handle; another replica that gets its request passes the HTTP exchange on to the owner as it is. Without `[cluster]`
//! nothing of this exists.

mod beats;
mod connections;
mod failure;
mod fence_keeper;
#[cfg(test)]
mod fixtures;
mod forward;
mod greeting;
mod identity;
mod join;
mod lease;
mod lost_owner;
mod membership;
mod peers;
mod proof;
mod record;
mod self_check;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Request, Response};
use rustls::CommonState;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::server::TlsStream;

pub use self::connections::{ForwardedAnswer, ForwardedBody, OnWay};
pub use self::failure::{ForwardFailure, Unforwarded};
use self::fence_keeper::FenceKeeper;
pub use self::fence_keeper::SessionCheck;
use self::forward::Forwarder;
pub use self::forward::{is_for, misdirected, remove_hop_by_hop};
pub use self::greeting::{REPLICA_PATH, ReplicaGreeting};
pub use self::identity::IdentityError;
use self::identity::{ReplicaIdentity, fingerprint};
pub use self::join::ClusterError;
use self::join::JoiningReplica;
pub use self::lease::ReplicaLease;
use self::lost_owner::LostOwners;
use self::membership::Membership;
use self::record::ReplicaRecord;
use crate::clock::{Clock, boot_time, millis};
use crate::config::ClusterConfig;
use crate::ownership::Fence;
use crate::redis_client::RedisClient;
use crate::runtime::lifecycle::TaskSpawner;
use crate::status::{ClusterStatus, ReplicaStatus};

/// For the exchange of proofs on a connection.
const PROVE_WITHIN: Duration = Duration::from_secs(1);
/// Beyond a lease, for the replica that adopts a session.
const ADOPT_WITHIN: Duration = Duration::from_secs(2);

/// This replica among the others.
#[derive(Debug)]
pub struct Cluster {
    membership: Arc<Membership>,
    lost_owners: Arc<LostOwners>,
    identity: Arc<ReplicaIdentity>,
    redis: RedisClient,
    forwarder: Forwarder,
    tasks: TaskSpawner,
    /// Heartbeats and the fence, which go on until this replica [leaves](Self::leave).
    leasing: TaskSpawner,
    /// The fence of this replica's sessions, once there may be sessions.
    fence: OnceLock<Fence>,
    /// Whether it has given its lease up, or is about to.
    leaves: AtomicBool,
}

impl Cluster {
    /// Takes a number that no living replica has, which needs Redis. Waits five seconds for Redis, and then goes on with
    /// a random number, as a restart during an outage has to serve as well. Other replicas reach this one at `address`;
    /// `digest` is the digest of its configuration.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn join(
        config: &ClusterConfig,
        (address, digest): (String, String),
        clock: &dyn Clock,
        tasks: &TaskSpawner,
    ) -> Result<Arc<Self>, ClusterError> {
        let redis = RedisClient::start(&config.redis, &config.prefix, tasks)?;
        let identity = Arc::new(ReplicaIdentity::new(&config.trust)?);
        let started = millis(clock.now());
        let joining = JoiningReplica {
            config,
            redis: &redis,
            identity: &identity,
            tasks,
            address,
            digest,
            started,
        };
        let membership = Arc::new(joining.membership().await?);
        let leasing = TaskSpawner::new();
        leasing.spawn_service(Arc::clone(&membership).keep());
        Ok(Arc::new(Self {
            forwarder: Forwarder::new(Arc::clone(&membership), tasks.clone()),
            lost_owners: LostOwners::watch(&membership, &identity, &redis, tasks),
            membership,
            identity,
            redis,
            tasks: tasks.clone(),
            leasing,
            fence: OnceLock::new(),
            leaves: AtomicBool::new(false),
        }))
    }

    /// The number of this replica, which handles of its sessions name.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.membership.own().node
    }

    /// The lease of this replica.
    #[must_use]
    pub fn lease(&self) -> &ReplicaLease {
        &self.membership.lease
    }

    /// The Redis that all share.
    #[must_use]
    pub fn redis(&self) -> &RedisClient {
        &self.redis
    }

    /// For the TLS of the internal listener.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn tls(&self) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
        self.identity.server()
    }

    /// Whether the other side of a connection, which showed `chain` and holds its key, is a replica. One that is not
    /// known yet is looked up.
    pub async fn admits(&self, chain: Option<&[CertificateDer<'_>]>) -> bool {
        let Some(own) = self.identity.fingerprint() else {
            // The handshake has asked the authority.
            return true;
        };
        let Some(shown) = chain.and_then(<[_]>::first).map(fingerprint) else {
            return false;
        };
        if shown == own || self.membership.peers().has_certificate(&shown) {
            return true;
        }
        self.membership.refresh().await;
        self.membership.peers().has_certificate(&shown)
    }

    /// Whether the other side of a connection asks for a proof that this process is a replica, in place of sending
    /// requests. It may show a certificate that no lease record names.
    #[must_use]
    pub fn is_asked_for_proof(connection: &CommonState) -> bool {
        proof::is_wanted(connection)
    }

    /// Answers such a connection with the greeting and a proof, within a second. Returns `false` without an answer if the
    /// other side does not prove first that it is a replica. This replica then knows the other side, also without Redis.
    pub async fn prove(&self, stream: &mut TlsStream<TcpStream>) -> bool {
        let answered = self.membership.proof().answer(stream, self.greeting());
        let Ok(Some(asker)) = timeout(PROVE_WITHIN, answered).await else {
            return false;
        };
        self.membership.learn_proved(asker);
        true
    }

    /// How long a request waits for the owner of its session, or for the session to be adopted: a lease and two seconds.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.membership.length() + ADOPT_WITHIN
    }

    /// Whether the replica `node` is known to have a lease.
    #[must_use]
    pub fn is_living(&self, node: u32) -> bool {
        let peers = self.membership.peers();
        peers.get(node).is_some_and(|(_, is_lapsed)| !is_lapsed)
    }

    /// Nodes of the replicas that may take over sessions of this one, in random order. Each has a lease and does not drain.
    #[must_use]
    pub fn successors(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = self.membership.peers().successors().collect();
        nodes.sort_by_cached_key(|_| rand::random::<u32>());
        nodes
    }

    /// One of the [`successors`](Self::successors).
    #[must_use]
    pub fn any_successor(&self) -> Option<u32> {
        self.successors().first().copied()
    }

    /// Waits until the list of the other replicas is up to date, a second at most.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn look_for_peers(&self) {
        self.membership.refresh().await;
    }

    /// Resolves with the next heartbeat that was answered.
    pub fn next_heartbeat(&self) -> impl Future<Output = ()> + use<> {
        let mut lists = self.membership.peer_lists();
        async move {
            if lists.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether the sessions of the replica `node` may be adopted: Redis has no lease of the replica, and the replica does
    /// not answer at its internal address that it has a lease. Takes a second if the address is silent.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn is_lost(&self, node: u32) -> bool {
        self.lost_owners.is_lost(node).await
    }

    /// Whether the process of the replica `node`, to which a connection broke, has ended: nothing listens at its internal
    /// address any more, or another replica does. Takes a second if the address is silent.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn has_ended(&self, node: u32) -> bool {
        self.lost_owners.has_ended(node).await
    }

    /// Whether Redis has no lease of the replica `node`. To be asked once more right before a session is adopted: the
    /// replica may have come back while it was asked for its word.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn is_without_lease(&self, node: u32) -> bool {
        !self.lost_owners.has_lease(node).await
    }

    /// Passes a request on to `node` as it is, and returns the answer as it comes. While the replica has a lease and
    /// cannot be reached, waits until the one or the other ends, or the time `until` has come. `on_way` is told when
    /// the other replica may have the request, and when it has not after all.
    ///
    /// # Errors
    /// See [`ForwardFailure`].
    ///
    /// # Cancel safety
    /// Dropping the future, or the body of the answer, ends the exchange at the other replica.
    pub async fn forward(
        &self,
        node: u32,
        request: Request<ForwardedBody>,
        until: Instant,
        on_way: &OnWay<'_>,
    ) -> Result<Response<ForwardedAnswer>, Unforwarded> {
        self.forwarder.forward(node, request, until, on_way).await
    }

    /// Whether Redis has had its data for two leases, so that what is absent there has not been lost with a former run.
    #[must_use]
    pub fn is_redis_settled(&self) -> bool {
        self.membership.has_settled()
    }

    /// The state of this replica, as other replicas ask for it.
    #[must_use]
    pub fn greeting(&self) -> ReplicaGreeting {
        let own = self.membership.own();
        ReplicaGreeting {
            node: own.node,
            version: own.version.clone(),
            lease_ms: self.lease_ms(),
            adopts_after_ms: millis(self.lost_owners.unknown_for()),
            serves_ms: self.fence.get().map_or(0, |fence| millis(fence.left())),
            leaves: self.leaves.load(Ordering::Relaxed),
        }
    }

    /// Logs whether `cluster.advertise` leads to this replica. To be called once the internal
    /// listener runs.
    pub async fn check_own_address(self: Arc<Self>) {
        self_check::check(self.membership.own(), &self.identity, &self.tasks).await;
    }

    /// Has `fence` be open while this replica owns its sessions for certain. After a lapse `check` finds out which
    /// sessions were adopted by other replicas. To be called before there is a session.
    pub fn keep_fence(&self, fence: &Fence, check: Arc<dyn SessionCheck>) {
        fence.open_until(boot_time() + self.membership.length());
        let fence = self.fence.get_or_init(|| fence.clone());
        let keeper = FenceKeeper {
            membership: Arc::clone(&self.membership),
            identity: Arc::clone(&self.identity),
            tasks: self.leasing.clone(),
            fence: fence.clone(),
            check,
        };
        self.leasing.spawn_service(keeper.keep());
    }

    /// Ends the heartbeats and gives the lease up; the others know at their next heartbeat. To be called once all sessions
    /// have ended.
    pub async fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.leasing.shut_down(Duration::ZERO).await;
        if let Some(fence) = self.fence.get() {
            fence.open_until(Duration::ZERO);
        }
        self.membership.leave().await;
    }

    /// For `/status`.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let own = self.membership.own();
        let peers = self.membership.peers();
        let is_draining = |node| {
            if node == own.node {
                self.tasks.draining().is_cancelled()
            } else {
                peers.is_draining(node)
            }
        };
        let entry = |record: &ReplicaRecord| ReplicaStatus {
            node: format!("{:08x}", record.node),
            address: record.address.clone(),
            version: record.version.clone(),
            is_self: record.node == own.node,
            draining: is_draining(record.node),
            same_configuration: record.config == own.config,
        };
        let mut replicas: Vec<_> = peers.living().map(entry).collect();
        replicas.insert(0, entry(own));
        ClusterStatus {
            node: format!("{:08x}", own.node),
            lease_ms: self.lease_ms(),
            fenced: self.fence.get().is_some_and(|fence| !fence.is_open()),
            redis: self.redis.is_connected(),
            replicas,
        }
    }

    fn lease_ms(&self) -> u64 {
        millis(self.lease().left())
    }
}
