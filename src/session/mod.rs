//! Sessions: opened by a client's `initialize`, or kept for a modern client, which knows of no session
//! (see [`ImplicitSession`]).
//!
//! Owns identity, streams, running calls and open questions of a session, its registry and its
//! end. Knows nothing of HTTP and nothing of upstreams beyond their link trait.
//! Spec: SPEC §1a, §1b; DESIGN §5.

mod absent_lists;
mod bursts;
mod call_permits;
mod calls;
mod delivery;
mod gateway_task;
mod id;
mod implicit_session;
mod leaving;
mod levels;
mod link;
mod list_validity;
mod lost_calls;
mod notifications;
mod opening;
mod questions;
mod record;
mod registry;
mod stream;
mod subscriptions;
mod tasks;
mod unattributed;
mod upstreams;
mod url_elicitations;
mod use_clock;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use absent_lists::{AbsentLists, BackgroundFetch};
pub use call_permits::{
    CallCaps, CallEntry, CallPermit, CallPermits, QueueError, QueueLane, QueuedRequest, RateToll,
    RequestedService,
};
pub use calls::{NoRoom, StreamPermit};
pub use delivery::{DeliveryMode, NoticeSource};
pub use gateway_task::{GatewayTask, QuotaReservation, ResultQuota, RunningTask, TaskOutcome};
pub use id::{EventId, SessionId, SessionIds};
pub use implicit_session::{
    FollowedResource, ImplicitHome, ImplicitSession, ImplicitSessionCall, ImplicitSessionKey,
    ListenerRegistration, NoticeListener, ToolHeaders,
};
pub use leaving::{RequestedSession, SessionUse};
pub use levels::SessionLevels;
pub use link::{LegacyClientLink, ResponseStream};
pub use list_validity::ListValidity;
pub use lost_calls::LostCall;
pub use notifications::HeldNotifications;
pub use opening::OpeningSession;
pub use questions::{SentRequests, reply_of};
pub use registry::{
    AdoptedSession, LiveHome, NewSession, SessionRefused, SessionRegistry, SessionSettings,
    SharedQuotas,
};
pub use stream::{EventStream, NotKept, ReaderStep, StreamReader};
pub use subscriptions::{PendingSubscription, SessionSubscriptions, is_below};
pub use tasks::{SessionTask, SessionTasks, TaskHandle, TaskSite, TaskStage, TrackedTask};
pub use unattributed::UnattributedQuestion;
pub use upstreams::UpstreamLinks;
pub use url_elicitations::UrlElicitationIds;

use crate::budget::ReplyShare;
use crate::call::{AdoptedLink, ClientCapabilities, LogLevel, OwnerKey, Principal, UpstreamLink};
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::protocol::{RequestId, Revision};
use crate::store::events::{EventStore, SessionKey};
use crate::sync::desired::Desired;
use crate::sync::wait_until::wait_until;

/// One session.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    id: String,
    tag: u64,
    /// The principal that opened the session; later requests of the same binding may carry other scopes.
    pub principal: Arc<Principal>,
    /// The endpoint that the session belongs to.
    pub endpoint: Arc<Endpoint>,
    /// The negotiated revision.
    pub revision: Revision,
    /// The client's effective capabilities.
    pub capabilities: ClientCapabilities,
    /// JSON text of the client's `clientInfo`.
    pub client_info: Bytes,
    events: Arc<dyn EventStore>,
    standalone: Arc<EventStream>,
    streams: Mutex<BTreeMap<u32, Arc<EventStream>>>,
    next_stream: AtomicU32,
    calls: Mutex<HashMap<RequestId, Arc<LegacyClientLink>>>,
    questions: SentRequests,
    /// Notices and questions that wait for a stream.
    undelivered: delivery::PendingDelivery,
    links: UpstreamLinks,
    /// Notifications of the client that wait for an upstream.
    notifications: notifications::NotificationQueues,
    absences: AbsentLists,
    /// The principal's permits for calls; `calls_running` counts the permits in use by this session.
    permits: Arc<CallPermits>,
    calls_running: AtomicUsize,
    /// How long a question that names no call waits for a stream.
    hold_question: Duration,
    initialized: AtomicBool,
    /// Whether the session's `initialize` still runs.
    opening: AtomicBool,
    watched: AtomicBool,
    /// Whether the upstreams were told that a client listens.
    listening: Desired<bool>,
    changed: Notify,
    levels: SessionLevels,
    /// Set for a modern client, which knows of no session. Boxed: most sessions have none.
    implicit: Option<Box<ImplicitSession>>,
    subscriptions: SessionSubscriptions,
    list_validity: ListValidity,
    completions: UrlElicitationIds,
    tasks: SessionTasks,
    results: ResultQuota,
    /// The byte budget of replies to the session's calls; unset for an implicit session, each of whose calls has its
    /// own.
    reply_share: OnceLock<ReplyShare>,
    /// Keeps the record in the shared store, if there is one. Boxed: a single process has none.
    recorder: Option<Box<record::SessionRecorder>>,
    /// Open streams of calls; `open_standalones` counts streams for messages outside calls.
    open_streams: AtomicUsize,
    open_standalones: AtomicUsize,
    uses: use_clock::UseClock,
    closed: CancellationToken,
    /// Last messages to upstreams, awaited before the session's links are closed.
    last_words: TaskTracker,
}

/// With the counts of its `Arc`, a session fits into the allocator's class of 1 KiB; the next one is a quarter larger.
const _: () = assert!(size_of::<Session>() + 2 * size_of::<usize>() <= 1024);

impl Session {
    /// The session's `Mcp-Session-Id`.
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

    /// A token that delays closing the session's links while held, for a moment at most.
    pub fn last_word(&self) -> TaskTrackerToken {
        self.last_words.token()
    }

    /// Notes that the client is there.
    pub fn touch(&self) {
        self.touch_at(self.age());
    }

    /// Records a use at a known `age`, saving the caller a second read of the clock.
    fn touch_at(&self, age: Duration) {
        self.uses.note_use(age);
    }

    /// Time since the client's last use; zero while [`is_busy`](Self::is_busy).
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        self.uses.unused_at(self.age())
    }

    /// Whether the session has expired at `age`: idle for longer than `idle`, or older than `absolute`. An implicit
    /// session with running or parked calls outlives `absolute`: its client knows of no session and could not
    /// have opened another. Called for every request, so `is_busy`, which takes locks, is checked last.
    #[must_use]
    pub fn outlived(&self, age: Duration, idle: Duration, absolute: Duration) -> bool {
        if age > absolute {
            return !self.implicit.as_ref().is_some_and(|it| it.is_busy());
        }
        self.uses.unused_at(age) > idle && !self.is_busy()
    }

    /// Time since the session was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.uses.age()
    }

    /// The session's age at the client's last use. While a request is served, that is nearly the age now.
    #[must_use]
    pub fn age_when_used(&self) -> Duration {
        self.uses.age_when_used()
    }

    /// Whether the session's `initialize`, a call or a hosted task runs, or a stream is open.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.opening.load(Ordering::Relaxed)
            || self.open_streams.load(Ordering::Relaxed) > 0
            || self.open_standalones.load(Ordering::Relaxed) > 0
            || self.implicit.as_ref().is_some_and(|it| it.is_busy())
            || self.tasks.is_running()
            || !lock(&self.calls).is_empty()
    }

    /// Records `notifications/initialized`: the client may be asked from now on (SPEC L-03). Only the first one has an
    /// effect.
    pub fn set_initialized(&self) {
        if self.initialized.swap(true, Ordering::AcqRel) {
            return;
        }
        self.changed.notify_waiters();
        self.record_changed();
    }

    /// Has the changed record of the session written to the shared store, in the background. Does nothing without a
    /// shared store.
    pub fn record_changed(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.change(self.key);
        }
    }

    /// The state that the link to an upstream begins with, if the session was adopted.
    #[must_use]
    pub fn adopted_link(&self, upstream: &str) -> Option<AdoptedLink> {
        self.recorder.as_ref()?.adopted_link(self, upstream)
    }

    /// Sets the client's log level.
    pub fn want_level(&self, level: LogLevel) {
        self.levels.want(level);
        self.record_changed();
    }

    /// The session's log levels.
    #[must_use]
    pub fn levels(&self) -> &SessionLevels {
        &self.levels
    }

    /// The session's resource subscriptions.
    #[must_use]
    pub fn subscriptions(&self) -> &SessionSubscriptions {
        &self.subscriptions
    }

    /// The session's tasks of 2025-11-25.
    #[must_use]
    pub fn tasks(&self) -> &SessionTasks {
        &self.tasks
    }

    /// The byte budget for results of hosted tasks.
    #[must_use]
    pub fn results(&self) -> &ResultQuota {
        &self.results
    }

    /// Sets the byte budget of replies to the session's calls. Only the first call has an effect.
    pub fn share_replies(&self, share: ReplyShare) {
        self.reply_share.get_or_init(|| share);
    }

    /// The byte budget of replies to the session's calls, if set.
    #[must_use]
    pub fn reply_share(&self) -> Option<&ReplyShare> {
        self.reply_share.get()
    }

    /// The implicit session of a modern client; `None` for a session opened by `initialize`.
    #[must_use]
    pub fn implicit_session(&self) -> Option<&ImplicitSession> {
        self.implicit.as_deref()
    }

    /// URL elicitations that upstreams reported complete.
    #[must_use]
    pub fn completions(&self) -> &UrlElicitationIds {
        &self.completions
    }

    /// The lists that the session was given.
    #[must_use]
    pub fn list_validity(&self) -> &ListValidity {
        &self.list_validity
    }

    /// Lists that were missing or out of date in answers to the client.
    #[must_use]
    pub fn absences(&self) -> &AbsentLists {
        &self.absences
    }

    /// The stream of messages that belong to no call.
    #[must_use]
    pub fn standalone(&self) -> &Arc<EventStream> {
        &self.standalone
    }

    /// The session's links to its upstreams.
    #[must_use]
    pub fn links(&self) -> &UpstreamLinks {
        &self.links
    }

    /// The permits for calls of its principal.
    #[must_use]
    pub fn call_permits(&self) -> &Arc<CallPermits> {
        &self.permits
    }

    /// The open questions of this session.
    #[must_use]
    pub fn questions(&self) -> &SentRequests {
        &self.questions
    }

    /// Marks the GET stream as watched; `false` if it already was.
    pub fn begin_watching(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Marks the GET stream as not watched.
    pub fn end_watching(&self) {
        self.watched.store(false, Ordering::Release);
    }

    /// Ends the session: nothing more is read or written. The caller closes the returned links.
    fn end(&self) -> Vec<Arc<dyn UpstreamLink>> {
        self.closed.cancel();
        let links = self.links.take_all();
        let calls: Vec<Arc<LegacyClientLink>> =
            lock(&self.calls).values().map(Arc::clone).collect();
        for call in calls {
            call.cancel(Some("the session has ended".to_owned()));
        }
        self.standalone.close();
        for stream in lock(&self.streams).values() {
            stream.close();
        }
        self.questions.drop_all();
        self.notifications.clear();
        self.events.forget(self.key);
        links
    }

    /// The owner whose quota the session counts against.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.principal.owner()
    }

    /// Waits until the client may be asked; `false` after `hold_question`.
    pub(super) async fn wait_initialized(&self) -> bool {
        let is_initialized = || self.initialized.load(Ordering::Acquire);
        let wait = wait_until(&self.changed, is_initialized);
        tokio::time::timeout(self.hold_question, wait).await.is_ok()
    }
}
