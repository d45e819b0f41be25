//! `SessionAdopter`: a replica that is asked for a session whose owner is lost takes the session over.
//!
//! The record of a session in the shared store names its owner, and a compare-and-set on its epoch decides on the next
//! one. An adoption that has begun is finished whether or not its client waits for it.
//! Spec: DESIGN §8.1; `docs/adr/0027`.

mod homes;
mod named_session;
mod session_place;
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

pub(super) use self::named_session::NamedSession;
pub(super) use self::session_place::SessionPlace;
pub(super) use self::work::AdoptionWork;
use self::work::FormerOwner;
use crate::budget::{ByteBudget, ReplyShare};
use crate::cause::chain;
use crate::cluster::Cluster;
use crate::ownership::{Fence, Ownership};
use crate::redis_client::RedisFailure;
use crate::relay::Relay;
use crate::runtime::lifecycle::TaskSpawner;
use crate::session::{AdoptedSession, SessionRegistry};
use crate::store::events::{FetchedLog, SessionKey, SharedEvents};
use crate::store::records::{Adoption, RecordState, RecordWriter, SessionRecord, SharedRecords};
use crate::sync::single_flight::Joined;
use crate::telemetry::metrics::COUNTERS;

/// How long a replica counts as lost after Redis was asked for its lease, by the clock of the server that has the record.
/// After that the compare-and-set changes nothing. An owner with a lease again asks for its records after 3 s at the earliest.
const DECISION_HOLDS: Duration = Duration::from_secs(1);

/// The shared stores that an adoption reads and changes.
#[derive(Debug)]
pub struct AdoptionStores {
    /// The owners of sessions.
    pub records: Arc<SharedRecords>,
    /// Keeps the records of the sessions of this replica.
    pub writer: Arc<RecordWriter>,
    /// Events that clients may have missed.
    pub events: Arc<SharedEvents>,
    /// Closed while another replica may own sessions of this one.
    pub fence: Fence,
}

/// Finds the replica that has a session, and takes over sessions of lost replicas.
#[derive(Debug)]
pub(super) struct SessionAdopter {
    pub(super) cluster: Arc<Cluster>,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) relay: Arc<Relay>,
    pub(super) replies: Arc<ByteBudget>,
    pub(super) tasks: TaskSpawner,
    pub(super) stores: AdoptionStores,
    pub(super) work: AdoptionWork,
}

impl SessionAdopter {
    /// Finds the replica that has a session, and adopts a session whose owner is lost. Parallel requests for one session
    /// share a search.
    ///
    /// # Cancel safety
    /// Dropping the future stops the wait alone.
    pub(super) async fn find(self: &Arc<Self>, named: &NamedSession) -> SessionPlace {
        loop {
            // The tasks of a process that stops are dropped: a search in one of them would never end.
            if self.tasks.stopping().is_cancelled() {
                return Box::pin(self.look(named)).await;
            }
            match self.work.looks.join(named.handle.key) {
                Joined::Lead(leader) => {
                    let (this, named) = (Arc::clone(self), named.clone());
                    self.tasks.spawn_service(async move {
                        leader.complete(this.look(&named).await);
                    });
                }
                Joined::Join(follower) => {
                    if let Some(place) = follower.result().await {
                        return place;
                    }
                }
            }
        }
    }

    /// Remembers the run of Redis at the start of this replica.
    pub(super) fn note_first_run(&self) {
        let server = self.cluster.redis().server();
        let run = Arc::clone(&server.borrow().run_id);
        if !run.is_empty() {
            self.work.first_run.get_or_init(|| run);
        }
    }

    async fn look(&self, named: &NamedSession) -> SessionPlace {
        if named.implicit.is_some() {
            return self.look_home(named).await;
        }
        let is_live = self.sessions.is_live(named.handle);
        if self.sessions.is_leaving(named.handle) {
            return SessionPlace::Unknown;
        }
        if is_live && self.stores.fence.is_open() {
            return SessionPlace::Here;
        }
        let key = named.handle.key;
        let own = self.cluster.node();
        let state = match self.stores.records.read(key).await {
            Ok(state) => state,
            Err(failure) => {
                tracing::debug!(error = chain(&failure), "session record not read");
                return SessionPlace::Unknown;
            }
        };
        if is_live {
            // A session that no other replica owns is served again once the fence is open.
            return match state {
                RecordState::Owned { by, .. }
                    if by.node != own && self.cluster.is_living(by.node) =>
                {
                    SessionPlace::At(by)
                }
                _ => SessionPlace::Unknown,
            };
        }
        match state {
            // Redis may have lost the record of a session that lives.
            RecordState::Absent if !self.cluster.is_redis_settled() => SessionPlace::Unknown,
            RecordState::Absent | RecordState::Over => {
                self.work.unfinished.invalidate(&key);
                SessionPlace::Here
            }
            RecordState::Owned {
                by,
                highest_stream,
                record,
            } if by.node == own => {
                match record.zip(self.work.unfinished.get(&key)) {
                    Some((record, former)) => {
                        let owned = (by, highest_stream, *record);
                        self.finish(named, owned, former).await
                    }
                    // The session has ended here, or cannot be rebuilt.
                    None => SessionPlace::Here,
                }
            }
            RecordState::Owned { by, record, .. } if by.is_given_up() => match self.next_owner() {
                Some(node) => SessionPlace::At(Ownership { node, ..by }),
                None if self.may_adopt() && (record.is_some() || self.is_unreadable(key)) => {
                    self.adopt_given_up(named, by).await
                }
                None => SessionPlace::Unknown,
            },
            RecordState::Owned { by, .. } if self.cluster.is_living(by.node) => {
                self.work.unfinished.invalidate(&key);
                SessionPlace::At(by)
            }
            // Nothing could be sent for the session here.
            RecordState::Owned { .. } if !self.may_adopt() => SessionPlace::Unknown,
            RecordState::Owned { by, record, .. }
                if self.cluster.is_lost(by.node).await
                    && (record.is_some() || self.is_unreadable(key)) =>
            {
                self.adopt(named, by).await
            }
            RecordState::Owned { .. } => SessionPlace::Unknown,
        }
    }

    /// Whether the record of a session of a lost replica cannot be read for good: a replica of a later release, or with
    /// another key, has had as long as a request waits to adopt the session.
    fn is_unreadable(&self, key: SessionKey) -> bool {
        let since = self.work.unreadable.get_with(key, Instant::now);
        since.elapsed() > self.cluster.patience()
    }

    /// Whether a session that is adopted now would be served here.
    fn may_adopt(&self) -> bool {
        self.stores.fence.is_open() && !self.tasks.stopping().is_cancelled()
    }

    /// The events of a session of a lost replica; `None` where Redis does not tell. Redis is asked once for all
    /// streams of one session that break together.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub(super) async fn read_log(&self, session: SessionKey) -> Option<Arc<FetchedLog>> {
        let read = async {
            let _permit = self.work.readings.acquire().await.ok()?;
            self.stores.events.fetch(session).await.ok().map(Arc::new)
        };
        self.work.logs.share(session, Box::pin(read)).await
    }

    /// Whether another replica can go on with sessions of this one now.
    pub(super) fn has_successor(&self) -> bool {
        let stores = &self.stores;
        stores.fence.is_open()
            && stores.records.is_reachable()
            && self.cluster.any_successor().is_some()
    }

    /// The replica that is to adopt a session while this replica drains. `None` while this replica does not drain, and if all
    /// other replicas drain as well: then this replica adopts the session.
    pub(super) fn next_owner(&self) -> Option<u32> {
        self.is_draining().then(|| self.cluster.any_successor())?
    }

    /// Whether this replica drains. Each further look may name another replica then, which may drain by now.
    pub(super) fn is_draining(&self) -> bool {
        self.tasks.draining().is_cancelled()
    }

    /// Whether this replica has ended its drain, and ends soon.
    pub(super) fn is_stopping(&self) -> bool {
        self.tasks.stopping().is_cancelled()
    }

    /// How long a request waits for the owner of its session.
    pub(super) fn patience(&self) -> Duration {
        self.cluster.patience()
    }

    /// The permit for an adoption, unless the events of the session cannot be read: most likely they cannot be read
    /// afterwards either. An implicit session has no events.
    async fn begin(&self, named: &NamedSession) -> Option<SemaphorePermit<'_>> {
        let permit = self.work.permits.acquire().await.ok()?;
        if named.implicit.is_none() {
            self.stores.events.fetch(named.handle.key).await.ok()?;
        }
        Some(permit)
    }

    /// Adopts a session that `seen` owned, whose replica is lost.
    async fn adopt(&self, named: &NamedSession, seen: Ownership) -> SessionPlace {
        let key = named.handle.key;
        let Some(_permit) = self.begin(named).await else {
            return SessionPlace::Unknown;
        };
        // Read before the lease is looked for, so that the time begins no later than the answer holds.
        let Ok(asked) = self.stores.records.time(key).await else {
            return SessionPlace::Unknown;
        };
        if !self.cluster.is_without_lease(seen.node).await {
            return SessionPlace::Unknown;
        }
        let former = FormerOwner::Lost(seen.node);
        self.work.unfinished.insert(key, former);
        let by = (self.cluster.node(), asked + DECISION_HOLDS);
        let adoption = self.stores.records.adopt(key, seen, by).await;
        self.take_over(named, adoption, former).await
    }

    /// Adopts a session that its owner has given up, which needs neither a lease that is over nor silence.
    async fn adopt_given_up(&self, named: &NamedSession, seen: Ownership) -> SessionPlace {
        let key = named.handle.key;
        let Some(_permit) = self.begin(named).await else {
            return SessionPlace::Unknown;
        };
        let former = FormerOwner::GaveUp;
        self.work.unfinished.insert(key, former);
        let own = self.cluster.node();
        let adoption = self.stores.records.adopt_given_up(key, seen, own).await;
        self.take_over(named, adoption, former).await
    }

    /// Goes on with a session as the outcome of its adoption says.
    async fn take_over(
        &self,
        named: &NamedSession,
        adoption: Result<Adoption, RedisFailure>,
        former: FormerOwner,
    ) -> SessionPlace {
        let key = named.handle.key;
        match adoption {
            Ok(Adoption::Adopted {
                by,
                highest_stream,
                record: Some(record),
            }) => {
                former.log_adopted(&record, by);
                let owned = (by, highest_stream, *record);
                self.finish(named, owned, former).await
            }
            // It was claimed, and never opened.
            Ok(Adoption::Adopted {
                by, record: None, ..
            }) if named.implicit.is_some() => {
                self.work.unfinished.invalidate(&key);
                SessionPlace::Own(by)
            }
            Ok(Adoption::Adopted {
                by, record: None, ..
            }) => {
                COUNTERS.sessions_lost.add(1);
                tracing::warn!(
                    from = former.word(),
                    "session ended: its record cannot be read"
                );
                self.stores.writer.end_adopted(key, by, true);
                self.work.unfinished.invalidate(&key);
                SessionPlace::Here
            }
            Ok(Adoption::Refused(_)) => {
                self.work.unfinished.invalidate(&key);
                SessionPlace::Unknown
            }
            // It may be this replica's.
            Err(_) => SessionPlace::Unknown,
        }
    }

    /// Rebuilds a session that this replica owns as `by`, or ends the session if it cannot be rebuilt. The former owner
    /// adds nothing to the log any more.
    async fn finish(
        &self,
        named: &NamedSession,
        (by, highest_stream, record): (Ownership, u32, SessionRecord),
        former: FormerOwner,
    ) -> SessionPlace {
        let key = named.handle.key;
        let is_implicit = named.implicit.is_some();
        let log = if is_implicit {
            None
        } else {
            let Ok(log) = self.stores.events.fetch(key).await else {
                return SessionPlace::Unknown;
            };
            Some(log)
        };
        let tag = format!("{:016x}", record.tag);
        let mut unshared = record.unshared.iter();
        if let Some(upstream) = unshared.find(|one| self.relay.ends_with_replica(one)) {
            COUNTERS.sessions_lost.add(1);
            tracing::info!(session = tag, upstream, "session ended with its replica");
            self.stores.writer.end_adopted(key, by, !is_implicit);
            if is_implicit {
                self.work.unfinished.invalidate(&key);
                return SessionPlace::Ended;
            }
        } else {
            let continued: Vec<Arc<str>> = { record.upstreams.iter() }
                .map(|session| session.upstream.as_str().into())
                .collect();
            let log = log.map(|log| self.stores.events.take_over(key, by, log));
            let mut log = log.unwrap_or_default();
            log.requests
                .retain(|_, request| self.relay.may_repeat(&named.endpoint, request));
            let adopted = AdoptedSession {
                id: named.id.clone(),
                handle: named.handle,
                by,
                principal: Arc::clone(&named.principal),
                endpoint: Arc::clone(&named.endpoint),
                record,
                highest_stream,
                log,
                implicit: named.implicit.clone(),
            };
            let session = adopted.rebuild(&self.sessions);
            if !is_implicit {
                session.share_replies(ReplyShare::new(&self.replies, named.holder));
            }
            self.relay.reopen(&session, &continued);
            former.count_adopted();
        }
        self.work.unfinished.invalidate(&key);
        if is_implicit {
            SessionPlace::Own(by)
        } else {
            SessionPlace::Here
        }
    }
}
