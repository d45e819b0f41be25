//! Every live session of this replica: opening within caps, binding, and its end.
//!
//! The concurrent map stays private here and only clones leave it, so that no guard is ever held
//! across an await. A guard locks a shard of the map, and would block every thread that needs the shard.

mod adopted;
mod counted;
mod elsewhere;
mod ending;
mod homes;
mod implicit;
mod known;
mod made;
mod owners;
mod settings;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::counted::counted;
use self::elsewhere::IdsOfOthers;
use self::implicit::ImplicitSessions;
use self::known::KnownIds;
pub use self::made::NewSession;
use self::made::SessionIdentity;
use self::owners::SessionOwners;
pub use self::owners::SharedQuotas;
pub use self::settings::{SessionRefused, SessionSettings};
use super::gateway_task::task_time;
use super::leaving::LeavingSessions;
use super::{
    CallCaps, GatewayTask, ImplicitSession, OpeningSession, QueueError, QueuedRequest,
    RequestedService, Session, SessionId, SessionIds, lock,
};
use crate::call::{OwnerKey, Principal};
use crate::clock::SharedClock;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::events::{EventStore, SessionKey};
use crate::store::quotas::QuotaClaim;
use crate::store::records::RecordWriter;
use crate::sync::fast_maps::FastDashMap;
pub use adopted::AdoptedSession;
pub use homes::LiveHome;

/// The live sessions of this replica.
#[derive(Debug)]
pub struct SessionRegistry {
    ids: SessionIds,
    live: FastDashMap<SessionKey, Arc<Session>>,
    known: KnownIds,
    ids_of_others: IdsOfOthers,
    implicit_sessions: ImplicitSessions,
    owners: SessionOwners,
    count: AtomicUsize,
    settings: SessionSettings,
    events: Arc<dyn EventStore>,
    clock: SharedClock,
    tasks: TaskSpawner,
    /// Bytes that results of tasks take.
    results: Arc<AtomicUsize>,
    /// Keeps records in the shared store, where there is one.
    records: OnceLock<Arc<RecordWriter>>,
    /// Sessions that are to be handed over, while this replica drains.
    leaving: Arc<LeavingSessions>,
}

impl SessionRegistry {
    /// An empty registry that keeps stream contents in `events`.
    #[must_use]
    pub fn new(
        ids: SessionIds,
        settings: SessionSettings,
        events: Arc<dyn EventStore>,
        clock: SharedClock,
        tasks: TaskSpawner,
    ) -> Arc<Self> {
        Arc::new(Self {
            ids,
            live: FastDashMap::default(),
            known: KnownIds::default(),
            ids_of_others: IdsOfOthers::default(),
            implicit_sessions: ImplicitSessions::default(),
            owners: SessionOwners::new(settings.max_per_principal),
            count: AtomicUsize::new(0),
            settings,
            events,
            clock,
            tasks,
            results: Arc::default(),
            records: OnceLock::new(),
            leaving: Arc::default(),
        })
    }

    /// Has `records` keep the record of each session opened from now on. Only the first call has an effect.
    pub fn keep_records(&self, records: Arc<RecordWriter>) {
        self.records.get_or_init(|| records);
    }

    /// The principals that have sessions here.
    #[must_use]
    pub fn owners(&self) -> &SessionOwners {
        &self.owners
    }

    /// Live sessions now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens a session, busy until its `initialize` is over. At the principal's cap, the principal's least
    /// recently used session without an open stream or running call is evicted; never another principal's
    /// (DESIGN §5). `claim` is the principal's for this session, where its quota is shared.
    ///
    /// # Errors
    /// [`SessionRefused`] when there is no room.
    pub fn open(
        &self,
        new: NewSession,
        claim: Option<&QuotaClaim>,
    ) -> Result<OpeningSession, SessionRefused> {
        let session = self.open_as(new, None, claim)?;
        Ok(OpeningSession::of(session))
    }

    /// Ownership of the sessions of this registry.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.ids.owner()
    }

    fn open_as(
        &self,
        new: NewSession,
        implicit_session: Option<ImplicitSession>,
        claim: Option<&QuotaClaim>,
    ) -> Result<Arc<Session>, SessionRefused> {
        let key = new.principal.owner();
        let owner = self.owners.enter(key);
        let (spare, session) = {
            let mut sessions = lock(&owner.sessions);
            let spare = self.make_room(&sessions, self.owners.most_sessions(key));
            let spare = spare.inspect_err(|_| self.owners.ask_others(key))?;
            let identity = SessionIdentity::opened(&new, implicit_session, self);
            let session = identity.make(new, &owner, self);
            self.enter(&mut sessions, &session, claim);
            (spare, session)
        };
        self.entered(&session, spare);
        Ok(session)
    }

    /// The session to evict for another one of the same principal, if the cap is reached.
    fn make_room(
        &self,
        sessions: &HashMap<SessionKey, Arc<Session>>,
        most: usize,
    ) -> Result<Option<Arc<Session>>, SessionRefused> {
        let full = sessions.len() >= most;
        let crowded = self.count.load(Ordering::Relaxed) >= self.settings.max_total;
        if !full && !crowded {
            return Ok(None);
        }
        let spare = { sessions.values() }
            .filter(|session| !session.is_busy())
            .max_by_key(|session| session.idle_for());
        match spare {
            Some(spare) => Ok(Some(Arc::clone(spare))),
            None if full => Err(SessionRefused::Principal),
            None => Err(SessionRefused::Total),
        }
    }

    /// Adds a session to those of its principal, whose lock the caller holds.
    fn enter(
        &self,
        sessions: &mut HashMap<SessionKey, Arc<Session>>,
        session: &Arc<Session>,
        claim: Option<&QuotaClaim>,
    ) {
        sessions.insert(session.key(), Arc::clone(session));
        self.live.insert(session.key(), Arc::clone(session));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.owners
            .count_sessions(session.owner(), sessions.len(), claim);
    }

    /// Counts and records a session that was added, and ends the evicted one.
    fn entered(&self, session: &Arc<Session>, spare: Option<Arc<Session>>) {
        // The record of an implicit session is kept once the session has its place.
        if session.implicit.is_none()
            && let Some(recorder) = &session.recorder
        {
            recorder.track(session);
        }
        counted(session).open.add(1);
        if let Some(spare) = spare {
            counted(&spare).evicted.add(1);
            self.close(&spare);
        }
    }

    /// The time of day, as tasks show it.
    #[must_use]
    pub fn task_time(&self) -> String {
        task_time(self.clock.now())
    }

    /// A new task that the gateway runs itself.
    #[must_use]
    pub fn begin_task(&self, ttl: Duration) -> Arc<GatewayTask> {
        GatewayTask::begin(Arc::clone(&self.clock), ttl)
    }

    /// Waits for the rate of a principal, which may have no session yet.
    ///
    /// # Errors
    /// As for [`CallPermits::pay`](super::CallPermits::pay).
    pub fn pay(
        &self,
        owner: OwnerKey,
        request: RequestedService,
        caps: CallCaps,
    ) -> Result<QueuedRequest, QueueError> {
        self.owners.enter(owner).permits.pay(request, caps)
    }

    /// The session behind an id, for its own binding on its own endpoint only. Forged, foreign,
    /// over-age, idle and ended ids all look the same (SPEC T-43, T-47).
    #[must_use]
    pub fn bind(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<Session>> {
        let session = self
            .known(id, principal, endpoint)
            .or_else(|| self.open_handle(id, principal, endpoint))?;
        let age = session.age();
        if self.is_expired(&session, age) {
            self.close(&session);
            return None;
        }
        session.touch_at(age);
        Some(session)
    }

    /// The contents of a genuine id of the caller; `None` if the id is forged, foreign or over age.
    #[must_use]
    pub fn read_id(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let opened = self.ids_of_others.get(id, principal, endpoint);
        let handle = if let Some(handle) = opened {
            handle
        } else {
            let handle = self.ids.read(id, &principal.binding(), &endpoint.name)?;
            if handle.owner.node != self.ownership().node {
                self.ids_of_others.keep(id, principal, endpoint, handle);
            }
            handle
        };
        (!self.is_id_over_age(handle)).then_some(handle)
    }

    /// Whether the session of a handle lives here.
    #[must_use]
    pub fn is_live(&self, handle: SessionId) -> bool {
        self.live(handle)
            .is_some_and(|session| self.is_named(&session, handle.owner))
    }

    /// Whether the id of a session that lives here names `owner`: this replica, or the replica that had the session before.
    fn is_named(&self, session: &Session, owner: Ownership) -> bool {
        match &session.recorder {
            Some(recorder) => recorder.is_named_by(owner),
            None => owner == self.ownership(),
        }
    }

    /// The live session with exactly this id, if the id was opened before and both session and id
    /// are the caller's own.
    fn known(&self, id: &str, principal: &Principal, endpoint: &Endpoint) -> Option<Arc<Session>> {
        let handle = self.known.get(id)?;
        let session = self.live(handle)?;
        let own = session.id() == id
            && session.principal.binding() == principal.binding()
            && session.endpoint.name == endpoint.name;
        own.then_some(session)
    }

    /// The live session behind an id, from what is sealed in it.
    fn open_handle(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<Session>> {
        let handle = self.ids.read(id, &principal.binding(), &endpoint.name)?;
        let session = self.live(handle)?;
        if !self.is_named(&session, handle.owner) {
            return None;
        }
        if session.id() == id {
            self.known.keep(&session, handle);
            // The session may have ended before `keep`, when `forget` had no entry to remove.
            if !self.live.contains_key(&handle.key) {
                self.known.forget(&session);
            }
        }
        Some(session)
    }

    /// A handle for a connection that may become a session of this binding on this endpoint: its key
    /// and its text. It opens as nothing else. Spec: SPEC H-03, T-47.
    #[must_use]
    pub fn mint_connection(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> (SessionKey, String) {
        let place = connections_of(endpoint);
        self.ids
            .mint(&principal.binding(), &place, self.clock.now())
    }

    /// The key of a connection, from a handle that this binding was given on this endpoint.
    #[must_use]
    pub fn read_connection(
        &self,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionKey> {
        let handle = self.connection(handle, principal, endpoint)?;
        (handle.owner == self.ownership()).then_some(handle.key)
    }

    /// The contents of a genuine handle of the caller; `None` if the handle is forged, foreign or over age.
    #[must_use]
    pub fn connection(
        &self,
        handle: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let place = connections_of(endpoint);
        let handle = self.ids.read(handle, &principal.binding(), &place)?;
        (!self.is_id_over_age(handle)).then_some(handle)
    }

    fn is_id_over_age(&self, handle: SessionId) -> bool {
        self.clock.now().saturating_sub(handle.issued) > self.settings.absolute
    }

    /// The live session that a handle names while it is not over age.
    fn live(&self, handle: SessionId) -> Option<Arc<Session>> {
        if self.is_id_over_age(handle) {
            return None;
        }
        self.live
            .get(&handle.key)
            .map(|session| Arc::clone(&session))
    }
}

/// Keeps handles of connections apart from session ids: no endpoint has such a name.
fn connections_of(endpoint: &Endpoint) -> String {
    format!("{}/connection", endpoint.name)
}

#[cfg(test)]
pub(super) mod tests;
