//! `NewSession` and `SessionIdentity`: what sessions are made of, opened here or taken over.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use bytes::Bytes;

use super::SessionRegistry;
use super::owners::OwnerSessions;
use crate::call::{ClientCapabilities, Principal};
use crate::endpoint::Endpoint;
use crate::ownership::Ownership;
use crate::protocol::Revision;
use crate::session::record::SessionRecorder;
use crate::session::{DeliveryMode, EventStream, ImplicitSession, ResultQuota, Session};
use crate::store::events::{EventStore, LiveEvents, SessionKey, StreamKey};
use crate::sync::desired::Desired;

/// The parameters of a session that is opened.
#[derive(Debug)]
pub struct NewSession {
    /// The caller.
    pub principal: Arc<Principal>,
    /// The endpoint that it is opened on.
    pub endpoint: Arc<Endpoint>,
    /// The negotiated revision.
    pub revision: Revision,
    /// The effective capabilities of the client.
    pub capabilities: ClientCapabilities,
    /// JSON text of `clientInfo`.
    pub client_info: Bytes,
    /// How its messages reach the client.
    pub delivery: DeliveryMode,
}

/// The parts of a session that its client did not choose.
#[derive(Debug)]
pub(super) struct SessionIdentity {
    pub(super) key: SessionKey,
    pub(super) id: String,
    pub(super) tag: u64,
    pub(super) by: Ownership,
    pub(super) recorder: Option<Box<SessionRecorder>>,
    pub(super) implicit_session: Option<ImplicitSession>,
    pub(super) is_opening: bool,
    pub(super) next_stream: u32,
    pub(super) started: Instant,
}

impl SessionIdentity {
    /// The identity of a session that is opened here, busy until its `initialize` is over.
    pub(super) fn opened(
        new: &NewSession,
        implicit_session: Option<ImplicitSession>,
        registry: &SessionRegistry,
    ) -> Self {
        let is_opening = implicit_session.is_none();
        let home = implicit_session.as_ref().and_then(|one| one.home);
        let by = home.map_or(registry.ownership(), |home| home.by);
        let has_record = is_opening || home.is_some();
        let (key, id) = match implicit_session {
            // No id names an implicit session.
            Some(_) => (rand::random(), String::new()),
            None => registry.ids.mint(
                &new.principal.binding(),
                &new.endpoint.name,
                registry.clock.now(),
            ),
        };
        Self {
            key,
            id,
            tag: rand::random(),
            by,
            recorder: recorder(&new.delivery, registry, by)
                .filter(|_| has_record)
                .map(|recorder| Box::new(recorder.at_home(home.map(|home| home.record)))),
            implicit_session,
            is_opening,
            next_stream: 1,
            started: Instant::now(),
        }
    }

    /// Makes the session.
    pub(super) fn make(
        self,
        new: NewSession,
        owner: &OwnerSessions,
        registry: &SessionRegistry,
    ) -> Arc<Session> {
        let standalone = StreamKey {
            session: self.key,
            stream: 0,
        };
        let undelivered =
            crate::session::delivery::PendingDelivery::new(&new.delivery, &registry.tasks);
        let kept: Arc<dyn EventStore> = match new.delivery {
            DeliveryMode::Streams => Arc::clone(&registry.events),
            DeliveryMode::Connection {
                unread, overflow, ..
            } => Arc::new(LiveEvents::new(unread, overflow)),
        };
        Arc::new(Session {
            key: self.key,
            id: self.id,
            tag: self.tag,
            principal: new.principal,
            endpoint: new.endpoint,
            revision: new.revision,
            capabilities: new.capabilities,
            client_info: new.client_info,
            standalone: EventStream::new(standalone, kept),
            events: Arc::clone(&registry.events),
            streams: Mutex::default(),
            next_stream: AtomicU32::new(self.next_stream),
            calls: Mutex::default(),
            questions: crate::session::SentRequests::of(self.by),
            undelivered,
            links: crate::session::UpstreamLinks::default(),
            notifications: crate::session::notifications::NotificationQueues::default(),
            absences: crate::session::AbsentLists::default(),
            permits: Arc::clone(&owner.permits),
            calls_running: AtomicUsize::new(0),
            initialized: AtomicBool::new(false),
            opening: AtomicBool::new(self.is_opening),
            watched: AtomicBool::new(false),
            listening: Desired::default(),
            changed: tokio::sync::Notify::new(),
            levels: crate::session::SessionLevels::default(),
            implicit: self.implicit_session.map(Box::new),
            subscriptions: crate::session::SessionSubscriptions::new(&owner.uris),
            list_validity: crate::session::ListValidity::default(),
            completions: crate::session::UrlElicitationIds::default(),
            tasks: crate::session::SessionTasks::default(),
            reply_share: OnceLock::new(),
            recorder: self.recorder,
            results: ResultQuota {
                own: Arc::clone(&owner.results),
                all: Arc::clone(&registry.results),
            },
            open_streams: AtomicUsize::new(0),
            open_standalones: AtomicUsize::new(0),
            hold_question: registry.settings.hold_question,
            uses: crate::session::use_clock::UseClock::new(self.started),
            closed: CancellationToken::new(),
            last_words: TaskTracker::new(),
        })
    }
}

/// The recorder of a new session that `by` owns; `None` without a shared store, and for a session that ends with its
/// connection.
fn recorder(
    delivery: &DeliveryMode,
    registry: &SessionRegistry,
    by: Ownership,
) -> Option<SessionRecorder> {
    let writer = registry.records.get()?;
    matches!(delivery, DeliveryMode::Streams)
        .then(|| SessionRecorder::new(writer, &registry.leaving, (by, registry.clock.now())))
}
