//! Sessions: what a client that said `initialize` has with us, and what a modern client has without
//! knowing of it (a *visit*, see [`Visit`]).
//!
//! Owns identity, streams, running calls and open questions of a session, its registry and its
//! end. Knows nothing of HTTP and nothing of upstreams beyond their link trait.
//! Spec: SPEC §1a, §1b; DESIGN §5.

mod completions;
mod id;
mod link;
mod questions;
mod registry;
mod shelf;
mod stream;
mod subscriptions;
mod visit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

pub use completions::Completions;
pub use id::{EventId, SessionId, SessionIds};
pub use link::{CallLink, Outlet};
pub use questions::{Questions, reply_of};
pub use registry::{NewSession, Refused, Sessions, Settings};
pub use shelf::Shelf;
pub use stream::{EventStream, Next, NotKept, Reader};
pub use subscriptions::{Subscriptions, is_below};
pub use visit::{Listener, Listening, Visit, VisitCall};

use crate::call::{ClientCapabilities, Level, Notice, OwnerKey, Principal, UpstreamLink};
use crate::endpoint::Endpoint;
use crate::protocol::{RequestId, Revision};
use crate::store::events::{EventStore, SessionKey, StreamKey};
use crate::telemetry::metrics::{GAUGES, Open};

/// Finished streams a session remembers at most, for resumption.
const FINISHED_STREAMS: usize = 1024;

/// One session.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    id: String,
    tag: u64,
    /// Who opened it; later requests of the same binding may carry other scopes.
    pub principal: Arc<Principal>,
    /// Where it lives.
    pub endpoint: Arc<Endpoint>,
    /// What was negotiated.
    pub revision: Revision,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// JSON text of the client's `clientInfo`.
    pub client_info: Bytes,
    events: Arc<dyn EventStore>,
    standalone: Arc<EventStream>,
    streams: Mutex<BTreeMap<u32, Arc<EventStream>>>,
    next_stream: AtomicU32,
    calls: Mutex<HashMap<RequestId, Arc<CallLink>>>,
    questions: Questions,
    links: Mutex<HashMap<Arc<str>, Arc<dyn UpstreamLink>>>,
    waiting: Mutex<HashSet<Arc<str>>>,
    owner_calls: Arc<AtomicUsize>,
    /// How long a question that names no call waits for a stream.
    hold_question: Duration,
    initialized: AtomicBool,
    watched: AtomicBool,
    changed: Notify,
    level: Mutex<Option<Level>>,
    /// Set when the client is a modern one, which knows of no session.
    visit: Option<Visit>,
    subscriptions: Subscriptions,
    shelf: Shelf,
    completions: Completions,
    open_streams: AtomicUsize,
    started: Instant,
    used_us: AtomicU64,
    closed: CancellationToken,
}

/// How the messages of a session reach its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// On streams of their own, which are logged and can be resumed.
    Streams,
    /// All on one connection, with which the session ends.
    Connection {
        /// Bytes that may wait to be read.
        unread: usize,
        /// What is negotiated when the client offers a revision that we do not know.
        fallback: Revision,
    },
}

/// Why a call cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The id is that of a running call.
    #[error("a request with this id is still running")]
    IdInUse,
    /// The session's or the principal's cap on running calls is reached.
    #[error("too many calls are running")]
    TooManyCalls,
    /// The session's cap on open streams is reached.
    #[error("too many streams are open")]
    TooManyStreams,
}

/// A place among a session's open streams; free again when dropped.
#[derive(Debug)]
pub struct StreamPermit {
    session: Arc<Session>,
    _open: Open,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.session.open_streams.fetch_sub(1, Ordering::Relaxed);
        self.session.touch();
        self.session.changed.notify_waiters();
    }
}

impl Session {
    /// Its text form, for `Mcp-Session-Id`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its key in stores.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// Part of every event id of this session.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Cancelled when the session is over.
    #[must_use]
    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Notes that the client is there.
    pub fn touch(&self) {
        let us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.used_us.store(us, Ordering::Relaxed);
    }

    /// Since the client was last there; zero while a call runs or a stream is open.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        let used = Duration::from_micros(self.used_us.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(used)
    }

    /// Whether it was idle for longer than `idle`, or is older than `absolute`. Asked for every
    /// request: whether it is busy matters only after a long silence.
    #[must_use]
    pub fn outlived(&self, idle: Duration, absolute: Duration) -> bool {
        let age = self.age();
        let used = Duration::from_micros(self.used_us.load(Ordering::Relaxed));
        age > absolute || age.saturating_sub(used) > idle && !self.is_busy()
    }

    /// Since it was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a call runs or a stream is open.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.open_streams.load(Ordering::Relaxed) > 0
            || self.visit.as_ref().is_some_and(Visit::is_busy)
            || !lock(&self.calls).is_empty()
    }

    /// The client said `notifications/initialized`: it may be asked from now on (SPEC L-03).
    pub fn set_initialized(&self) {
        self.initialized.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The log level the client set, if it did.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        *lock(&self.level)
    }

    /// Remembers the log level the client wants.
    pub fn set_level(&self, level: Level) {
        *lock(&self.level) = Some(level);
    }

    /// What it subscribed to.
    #[must_use]
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// What it is to a modern client; nothing for a session that a client opened.
    #[must_use]
    pub fn visit(&self) -> Option<&Visit> {
        self.visit.as_ref()
    }

    /// Hands a notice that belongs to no call to whoever listens: the session's own stream, or the
    /// subscriptions of a visit.
    pub fn tell(&self, notice: Notice) {
        match &self.visit {
            Some(visit) => visit.tell(&notice),
            None => drop(self.standalone.notify(notice)),
        }
    }

    /// Whether somebody listens for messages that belong to no call.
    #[must_use]
    pub fn is_listened_to(&self) -> bool {
        match &self.visit {
            Some(visit) => visit.is_listened_to(),
            None => self.standalone.is_attached(),
        }
    }

    /// Visits to URLs that upstreams say are over.
    #[must_use]
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    /// The lists it was given.
    #[must_use]
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// The stream of messages that belong to no call.
    #[must_use]
    pub fn standalone(&self) -> &Arc<EventStream> {
        &self.standalone
    }

    /// A stream by its number, while it can be resumed.
    #[must_use]
    pub fn stream(&self, number: u32) -> Option<Arc<EventStream>> {
        if number == self.standalone.number() {
            return Some(Arc::clone(&self.standalone));
        }
        lock(&self.streams).get(&number).map(Arc::clone)
    }

    /// Counts an open stream in.
    ///
    /// # Errors
    /// [`NoRoom::TooManyStreams`] at `max`.
    pub fn open_stream(self: &Arc<Self>, max: usize) -> Result<StreamPermit, NoRoom> {
        let before = self.open_streams.fetch_add(1, Ordering::Relaxed);
        let permit = StreamPermit {
            session: Arc::clone(self),
            _open: GAUGES.streams_open.enter(),
        };
        if before >= max {
            return Err(NoRoom::TooManyStreams);
        }
        self.changed.notify_waiters();
        Ok(permit)
    }

    /// The open questions of this session.
    #[must_use]
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Begins a call under the client's request id, whose messages go to `outlet`.
    ///
    /// # Errors
    /// [`NoRoom`] when the id is in use or a cap is reached.
    pub fn begin_call(
        self: &Arc<Self>,
        id: RequestId,
        outlet: Arc<Outlet>,
        per_session: usize,
        per_principal: usize,
    ) -> Result<Arc<CallLink>, NoRoom> {
        let link = CallLink::new(Arc::clone(self), id.clone(), outlet);
        let mut calls = lock(&self.calls);
        if calls.contains_key(&id) {
            return Err(NoRoom::IdInUse);
        }
        if calls.len() >= per_session || self.owner_calls.load(Ordering::Relaxed) >= per_principal {
            return Err(NoRoom::TooManyCalls);
        }
        self.owner_calls.fetch_add(1, Ordering::Relaxed);
        calls.insert(id, Arc::clone(&link));
        Ok(link)
    }

    /// The running call with this id.
    #[must_use]
    pub fn running(&self, id: &RequestId) -> Option<Arc<CallLink>> {
        lock(&self.calls).get(id).map(Arc::clone)
    }

    /// The call that most recently got a stream or began, among those somebody still waits for.
    #[must_use]
    pub fn newest_call(&self) -> Option<Arc<CallLink>> {
        lock(&self.calls)
            .values()
            .filter(|link| link.is_awaited())
            .max_by_key(|link| link.order())
            .map(Arc::clone)
    }

    fn end_call(&self, id: &RequestId) {
        if lock(&self.calls).remove(id).is_some() {
            self.owner_calls.fetch_sub(1, Ordering::Relaxed);
        }
        self.touch();
    }

    /// A new stream for a call's messages.
    fn new_stream(&self) -> Arc<EventStream> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let key = StreamKey {
            session: self.key,
            stream: number,
        };
        let stream = EventStream::awaited(key, Arc::clone(&self.events));
        let mut streams = lock(&self.streams);
        while let Some((oldest, entry)) = streams.first_key_value() {
            let forgotten = streams.len() >= FINISHED_STREAMS || !entry.is_kept();
            if !(entry.is_finished() && forgotten) {
                break;
            }
            let oldest = *oldest;
            streams.remove(&oldest);
        }
        streams.insert(number, Arc::clone(&stream));
        drop(streams);
        if self.closed.is_cancelled() {
            stream.close();
        }
        // An id to resume from before there is any message. Spec: SPEC T-26.
        if self.revision >= Revision::V2025_11_25 {
            stream.prime();
        }
        stream
    }

    /// Notes that somebody waits for an upstream to come back; `false` when somebody does already.
    pub fn begin_waiting_for(&self, upstream: &Arc<str>) -> bool {
        lock(&self.waiting).insert(Arc::clone(upstream))
    }

    /// The upstream is back.
    pub fn end_waiting_for(&self, upstream: &str) {
        lock(&self.waiting).remove(upstream);
    }

    /// Notes that somebody watches the GET stream; `false` when somebody does already.
    pub fn begin_watching(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Nobody watches the GET stream any more.
    pub fn end_watching(&self) {
        self.watched.store(false, Ordering::Release);
    }

    /// The upstream link of this session, if it has one.
    #[must_use]
    pub fn link(&self, upstream: &str) -> Option<Arc<dyn UpstreamLink>> {
        lock(&self.links).get(upstream).map(Arc::clone)
    }

    /// The upstream link of this session, made by `make` when there is none; nothing after its end.
    pub fn link_or(
        &self,
        upstream: &Arc<str>,
        make: impl FnOnce() -> Arc<dyn UpstreamLink>,
    ) -> Option<Arc<dyn UpstreamLink>> {
        let mut links = lock(&self.links);
        if self.closed.is_cancelled() {
            return None;
        }
        Some(Arc::clone(
            links.entry(Arc::clone(upstream)).or_insert_with(make),
        ))
    }

    /// Every upstream link of this session.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<dyn UpstreamLink>> {
        lock(&self.links).values().map(Arc::clone).collect()
    }

    /// Ends the session: nothing more is read or written. The caller closes the returned links.
    fn end(&self) -> Vec<Arc<dyn UpstreamLink>> {
        self.closed.cancel();
        let links = std::mem::take(&mut *lock(&self.links));
        let calls: Vec<Arc<CallLink>> = lock(&self.calls).values().map(Arc::clone).collect();
        for call in calls {
            call.cancel(Some("the session has ended".to_owned()));
        }
        self.standalone.close();
        for stream in lock(&self.streams).values() {
            stream.close();
        }
        self.questions.drop_all();
        self.events.forget(self.key);
        links.into_values().collect()
    }

    /// Whose quota it counts against.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.principal.owner()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
