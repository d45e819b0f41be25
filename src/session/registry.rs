//! Every live session of this replica: opening within caps, binding, and its end.
//!
//! The concurrent map stays private here and only clones leave it, so that no guard is ever held
//! across an await (DEPENDENCIES, "Things that bite" 6).

mod adopted;
mod connections;
mod counted;
mod ending;
mod homes;
mod implicit;
mod known;
mod made;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use self::counted::counted;
pub use self::homes::LiveHome;
use self::implicit::ImplicitSessions;
use self::known::KnownIds;
use self::made::SessionIdentity;
use super::gateway_task::{OwnResults, task_time};
use super::leaving::LeavingSessions;
use super::{
    CallCaps, CallPermits, DeliveryMode, GatewayTask, ImplicitHome, ImplicitSession,
    ImplicitSessionKey, OpeningSession, QueueError, QueuedRequest, RequestedService, Session,
    SessionId, SessionIds, lock,
};
use crate::call::{ClientCapabilities, OwnerKey, Principal};
use crate::clock::SharedClock;
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::Revision;
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::events::{EventStore, RestoredLog, SessionKey};
use crate::store::quotas::{CallerQuota, QuotaClaim};
use crate::store::records::{RecordWriter, SessionRecord};
use crate::sync::fast_maps::FastDashMap;

static GATEWAY: LazyLock<OwnerKey> = LazyLock::new(|| Principal::gateway().owner());

/// Lifetimes and caps.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// Without a request or an open stream.
    pub idle: Duration,
    /// Whatever happens, but for the running calls of an implicit session.
    pub absolute: Duration,
    /// Live sessions of one principal.
    pub max_per_principal: usize,
    /// Live sessions.
    pub max_total: usize,
    /// How long a question that names no call waits for a stream.
    pub hold_question: Duration,
}

/// What a session is opened with.
#[derive(Debug)]
pub struct NewSession {
    /// Who opens it.
    pub principal: Arc<Principal>,
    /// Where.
    pub endpoint: Arc<Endpoint>,
    /// What was negotiated.
    pub revision: Revision,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// JSON text of `clientInfo`.
    pub client_info: Bytes,
    /// How its messages reach the client.
    pub delivery: DeliveryMode,
}

/// A session that this replica owns from now on.
#[derive(Debug)]
pub struct AdoptedSession {
    /// The id that the client sends.
    pub id: String,
    /// What the id says.
    pub handle: SessionId,
    /// The ownership of this replica.
    pub by: Ownership,
    /// The client that uses it.
    pub principal: Arc<Principal>,
    /// The endpoint that it belongs to.
    pub endpoint: Arc<Endpoint>,
    /// The record of the former owner.
    pub record: SessionRecord,
    /// The highest stream with an event that was shown to the client.
    pub highest_stream: u32,
    /// Its event log, which this replica writes by now.
    pub log: RestoredLog,
    /// What an implicit session is found by, whose `handle` has the key of its record.
    pub implicit: Option<ImplicitSessionKey>,
}

/// Why no session can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefused {
    /// The principal has as many busy sessions as it may have.
    #[error("too many sessions of this principal are in use")]
    Principal,
    /// The replica has as many sessions as it may have.
    #[error("too many sessions")]
    Total,
}

/// The registry.
#[derive(Debug)]
pub struct SessionRegistry {
    ids: SessionIds,
    live: FastDashMap<SessionKey, Arc<Session>>,
    known: KnownIds,
    implicit_sessions: ImplicitSessions,
    owners: FastDashMap<OwnerKey, Arc<OwnerSessions>>,
    count: AtomicUsize,
    settings: SessionSettings,
    events: Arc<dyn EventStore>,
    clock: SharedClock,
    tasks: TaskSpawner,
    /// Bytes that results of tasks take.
    results: Arc<AtomicUsize>,
    /// Keeps records in the shared store, where there is one.
    records: OnceLock<Arc<RecordWriter>>,
    /// What holds for all replicas together, where there are several.
    in_sum: OnceLock<SharedQuotas>,
    /// Sessions that are to be handed over, while this replica drains.
    leaving: Arc<LeavingSessions>,
}

/// The quotas that replicas share.
#[derive(Debug)]
pub struct SharedQuotas {
    /// Of live sessions.
    pub sessions: Arc<CallerQuota>,
    /// Of bytes of kept task results.
    pub results: Arc<CallerQuota>,
}

#[derive(Debug)]
struct OwnerSessions {
    sessions: Mutex<HashMap<SessionKey, Arc<Session>>>,
    places: Arc<CallPermits>,
    results: Arc<OwnResults>,
    /// Bytes of the URIs that are followed.
    uris: Arc<super::subscriptions::UriBytes>,
}

impl OwnerSessions {
    fn new(results: OwnResults) -> Self {
        Self {
            sessions: Mutex::default(),
            places: Arc::default(),
            results: Arc::new(results),
            uris: Arc::default(),
        }
    }

    /// Whether nothing is counted here, nor can be soon: no session is open, and no request is about to open
    /// one or to wait for its place. To be asked under the lock of the map, where all clones are made: a
    /// clone that outlived its entry would be counted beside the next one.
    fn is_unused(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1 && lock(&this.sessions).is_empty() && this.places.are_idle()
    }
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
            implicit_sessions: ImplicitSessions::default(),
            owners: FastDashMap::default(),
            count: AtomicUsize::new(0),
            settings,
            events,
            clock,
            tasks,
            results: Arc::default(),
            records: OnceLock::new(),
            in_sum: OnceLock::new(),
            leaving: Arc::default(),
        })
    }

    /// Has `records` keep the record of each session opened from now on. Only the first call has an effect.
    pub fn keep_records(&self, records: Arc<RecordWriter>) {
        self.records.get_or_init(|| records);
    }

    /// Has quotas hold in sum for callers that open their first session from now on. Only the first call has an effect.
    pub fn share_quotas(&self, quotas: SharedQuotas) {
        self.in_sum.get_or_init(|| quotas);
    }

    /// Claims a place for a session of `owner`, until it is opened: waits for the shared store where the caller opens so
    /// many sessions that those of other replicas count, a second at most. `None` where the quota is this replica's own.
    ///
    /// # Cancel safety
    /// Nothing is claimed.
    pub async fn claim_place(&self, owner: OwnerKey) -> Option<QuotaClaim> {
        let quota = self.shared_quota(owner)?;
        let held = || {
            let found = self.owners.get(&owner).map(|found| Arc::clone(&found));
            found.map_or(0, |found| lock(&found.sessions).len())
        };
        Some(quota.claim(owner, 1, held).await)
    }

    /// The quota of a caller's sessions over all replicas. The gateway's own sessions are each replica's for itself.
    fn shared_quota(&self, owner: OwnerKey) -> Option<&Arc<CallerQuota>> {
        let quotas = self.in_sum.get()?;
        (owner != *GATEWAY).then_some(&quotas.sessions)
    }

    /// Sessions that `owner` may have here.
    fn most_sessions(&self, owner: OwnerKey) -> usize {
        let most = self.settings.max_per_principal;
        let quota = self.shared_quota(owner);
        quota.map_or(most, |quota| quota.most(owner).min(most))
    }

    /// Notes how many sessions `owner` has here; under the lock of its sessions.
    fn count_sessions(&self, owner: OwnerKey, count: usize) {
        if let Some(quota) = self.shared_quota(owner) {
            quota.changed(owner, || count);
        }
    }

    /// Looks once more what other replicas have of a caller that was refused.
    fn ask_others(&self, owner: OwnerKey) {
        if let Some(quota) = self.shared_quota(owner) {
            quota.ask(owner);
        }
    }

    /// Live sessions now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The live sessions of a principal.
    #[must_use]
    pub fn of_owner(&self, owner: OwnerKey) -> Vec<Arc<Session>> {
        let found = self.owners.get(&owner).map(|found| Arc::clone(&found));
        found.map_or_else(Vec::new, |found| {
            lock(&found.sessions).values().map(Arc::clone).collect()
        })
    }

    /// The principals that have live sessions.
    #[must_use]
    pub fn owners(&self) -> Vec<OwnerKey> {
        self.owners.iter().map(|found| *found.key()).collect()
    }

    /// Whether there is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens a session, busy until its `initialize` is over. At the principal's cap, the principal's least
    /// recently used session without an open stream or running call is evicted; never another principal's
    /// (DESIGN §5).
    ///
    /// # Errors
    /// [`SessionRefused`] when there is no room.
    pub fn open(&self, new: NewSession) -> Result<OpeningSession, SessionRefused> {
        let session = self.open_as(new, None)?;
        Ok(OpeningSession::of(session))
    }

    /// The implicit session of a modern client, found by binding, endpoint and the capabilities it `declares` (JSON
    /// text), or a new one. An implicit session has no id, is capped like a session, and expires when idle. With `home` it
    /// is the only one of all replicas; without, the one with a record is joined where it lives here.
    ///
    /// # Errors
    /// [`SessionRefused`] when there is no room for a new one.
    pub fn implicit_session(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
        home: Option<ImplicitHome>,
        new: impl FnOnce() -> NewSession,
    ) -> Result<Arc<Session>, SessionRefused> {
        if home.is_none()
            && self.records.get().is_some()
            && let Some(recorded) = self.recorded(&self.implicit_key(principal, endpoint, declares))
        {
            recorded.touch();
            return Ok(recorded);
        }
        let sessions = &self.implicit_sessions;
        let key = sessions.key(principal, endpoint, declares, home.is_some());
        if let Some(implicit_session) = sessions.get(&key) {
            let age = implicit_session.age();
            if !implicit_session.closed().is_cancelled() && !self.is_expired(&implicit_session, age)
            {
                if !self.is_over_age(age) {
                    implicit_session.touch_at(age);
                    return Ok(implicit_session);
                }
                sessions.remove(&implicit_session);
            } else {
                // The record is left to the next one. Where the reaper was faster, waits until it has told the writer.
                sessions.remove(&implicit_session);
                self.close(&implicit_session);
            }
        }
        let made = self.open_as(new(), Some(ImplicitSession::new(key, home)))?;
        let implicit_session = sessions.enter(&made);
        if !Arc::ptr_eq(&implicit_session, &made) {
            // Another request of the same client was faster.
            self.close(&made);
        }
        Ok(implicit_session)
    }

    /// What the implicit session with a record is found by, of a client that declares `declares` (JSON text).
    #[must_use]
    pub fn implicit_key(
        &self,
        principal: &Principal,
        endpoint: &Endpoint,
        declares: &str,
    ) -> ImplicitSessionKey {
        let sessions = &self.implicit_sessions;
        sessions.key(principal, endpoint, declares, true)
    }

    /// The record of the implicit session that is found by `key`, where it lives here.
    #[must_use]
    pub fn home(&self, key: &ImplicitSessionKey) -> Option<ImplicitHome> {
        self.recorded(key)?.implicit.as_ref()?.home
    }

    /// As whose the record of an implicit session that lives here is kept.
    #[must_use]
    pub fn owner_of_record(&self, record: SessionKey) -> Option<Ownership> {
        let session = self.implicit_sessions.of_record(record)?;
        let home = session.implicit.as_ref()?.home?;
        self.is_joinable(&session).then_some(home.by)
    }

    /// Leaves the implicit session with a record to its running calls, and removes the record: the next request may begin
    /// another one at any replica.
    pub fn release(&self, record: SessionKey) {
        if let Some(session) = self.implicit_sessions.of_record(record) {
            if let Some(recorder) = &session.recorder {
                recorder.end(session.key());
            }
            self.implicit_sessions.remove(&session);
        }
    }

    /// Whether further requests may join an implicit session.
    fn is_joinable(&self, session: &Session) -> bool {
        let age = session.age();
        !session.closed().is_cancelled()
            && !session.may_be_given_up()
            && !self.is_expired(session, age)
            && !self.is_over_age(age)
    }

    fn recorded(&self, key: &ImplicitSessionKey) -> Option<Arc<Session>> {
        let session = self.implicit_sessions.get(key)?;
        self.is_joinable(&session).then_some(session)
    }

    /// Ownership of the sessions of this registry.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.ids.owner()
    }

    /// The live implicit session that `owner` keeps under this key, as only handles of ours say; its client is there.
    #[must_use]
    pub fn live_implicit_session(&self, owner: Ownership, key: SessionKey) -> Option<Arc<Session>> {
        if owner != self.ownership() {
            return None;
        }
        let found = self.live.get(&key).map(|session| Arc::clone(&session));
        let implicit_session = found.filter(|session| {
            session.implicit_session().is_some() && !self.is_expired(session, session.age())
        });
        implicit_session.inspect(|implicit_session| implicit_session.touch())
    }

    fn open_as(
        &self,
        new: NewSession,
        implicit_session: Option<ImplicitSession>,
    ) -> Result<Arc<Session>, SessionRefused> {
        let key = new.principal.owner();
        let owner = self.owner(key);
        let (spare, session) = {
            let mut sessions = lock(&owner.sessions);
            let spare = self.spare(&sessions, self.most_sessions(key));
            let spare = spare.inspect_err(|_| self.ask_others(key))?;
            let identity = SessionIdentity::opened(&new, implicit_session, self);
            let session = identity.make(new, &owner, self);
            self.enter(&mut sessions, &session);
            (spare, session)
        };
        self.entered(&session, spare);
        Ok(session)
    }

    /// The session that makes room for another one of the same principal, where room has to be made.
    fn spare(
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

    /// Puts a session beside those of its principal, whose lock the caller has.
    fn enter(&self, sessions: &mut HashMap<SessionKey, Arc<Session>>, session: &Arc<Session>) {
        sessions.insert(session.key(), Arc::clone(session));
        self.live.insert(session.key(), Arc::clone(session));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.count_sessions(session.owner(), sessions.len());
    }

    /// Counts and records a session that is in its place, and ends the one that made room.
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

    /// The sessions of a principal. While the caller keeps them, the reaper does too ([`OwnerSessions::is_unused`]).
    fn owner(&self, key: OwnerKey) -> Arc<OwnerSessions> {
        let new = || {
            let in_sum = self.in_sum.get();
            let results = in_sum.map(|quotas| (Arc::clone(&quotas.results), key));
            Arc::new(OwnerSessions::new(OwnResults::new(results)))
        };
        Arc::clone(&self.owners.entry(key).or_insert_with(new))
    }

    /// The time of day, as tasks show it.
    #[must_use]
    pub fn task_time(&self) -> String {
        task_time(self.clock.now())
    }

    /// A task that is run here, and begins now.
    #[must_use]
    pub fn begin_task(&self, ttl: Duration) -> Arc<GatewayTask> {
        GatewayTask::begin(Arc::clone(&self.clock), ttl)
    }

    /// Waits for the allowance of a principal, which may have no session yet.
    ///
    /// # Errors
    /// As for [`CallPermits::pay`].
    pub fn pay(
        &self,
        owner: OwnerKey,
        request: RequestedService,
        caps: CallCaps,
    ) -> Result<QueuedRequest, QueueError> {
        self.owner(owner).places.pay(request, caps)
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

    /// What a genuine id of the caller says; `None` where the id is forged, foreign or over age.
    #[must_use]
    pub fn read_id(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionId> {
        let handle = self.ids.read(id, &principal.binding(), &endpoint.name)?;
        (!self.is_id_over_age(handle)).then_some(handle)
    }

    /// Whether the session of a handle lives here.
    #[must_use]
    pub fn is_live(&self, handle: SessionId) -> bool {
        self.live(handle)
            .is_some_and(|session| self.is_named(&session, handle.owner))
    }

    /// Whether the id of a session that lives here names `owner`: this replica, or the one from which it was adopted.
    fn is_named(&self, session: &Session, owner: Ownership) -> bool {
        match &session.recorder {
            Some(recorder) => recorder.is_named_by(owner),
            None => owner == self.ownership(),
        }
    }

    /// The live session that was given exactly this id, where it was opened before and both session
    /// and id are the caller's own.
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

#[cfg(test)]
pub(super) mod tests;
