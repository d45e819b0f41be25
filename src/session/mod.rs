//! Sessions: what a client that said `initialize` has with us, and what a modern client has without
//! knowing of it (a *visit*, see [`Visit`]).
//!
//! Owns identity, streams, running calls and open questions of a session, its registry and its
//! end. Knows nothing of HTTP and nothing of upstreams beyond their link trait.
//! Spec: SPEC §1a, §1b; DESIGN §5.

mod absences;
mod bursts;
mod calls;
mod completions;
mod delivery;
mod hosted;
mod id;
mod levels;
mod link;
mod notifications;
mod opening;
mod places;
mod questions;
mod registry;
mod shelf;
mod stream;
mod subscriptions;
mod tasks;
mod unattributed;
mod upstreams;
mod visit;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use absences::{Absences, Errand};
pub use calls::{NoRoom, StreamPermit};
pub use completions::Completions;
pub use delivery::NoticeSource;
pub use hosted::{HostedTask, Kept, Outcome, ResultRoom, RunningTask};
pub use id::{EventId, SessionId, SessionIds};
pub use levels::Levels;
pub use link::{CallLink, Outlet};
pub use notifications::HeldNotifications;
pub use opening::Opening;
pub use places::{CallPlace, Caps, Entry, Lane, Places, Request, Toll, Unserved, Waiting};
pub use questions::{Questions, reply_of};
pub use registry::{NewSession, Refused, Sessions, Settings};
pub use shelf::Shelf;
pub use stream::{EventStream, Next, NotKept, Reader};
pub use subscriptions::{Subscribing, Subscriptions, is_below};
pub use tasks::{Known, Run, Stage, Task, TaskHandle, Tasks};
pub use visit::{FollowedResource, Listener, Listening, ToolHeaders, Visit, VisitCall};

use crate::budget::ReplyShare;
use crate::call::{ClientCapabilities, OwnerKey, Principal, UpstreamLink};
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::protocol::{RequestId, Revision};
use crate::store::events::{EventStore, SessionKey};
use crate::wish::Wish;

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
    /// Notices and questions without a stream.
    undelivered: delivery::Waiting,
    /// Ordered: most sessions have few, and a name is hashed no quicker than it is found.
    links: Mutex<BTreeMap<Arc<str>, Arc<dyn UpstreamLink>>>,
    /// Notifications of the client that wait for an upstream.
    notifications: notifications::NotificationQueues,
    absences: Absences,
    /// The places for calls of its principal, and how many of them its own calls have.
    places: Arc<Places>,
    calls_running: AtomicUsize,
    /// How long a question that names no call waits for a stream.
    hold_question: Duration,
    initialized: AtomicBool,
    /// Whether its own `initialize` still runs.
    opening: AtomicBool,
    watched: AtomicBool,
    /// What its upstreams know of that.
    listening: Wish<bool>,
    changed: Notify,
    levels: Levels,
    /// Set when the client is a modern one, which knows of no session.
    visit: Option<Visit>,
    subscriptions: Subscriptions,
    shelf: Shelf,
    completions: Completions,
    tasks: Tasks,
    results: ResultRoom,
    /// What replies to its calls are taken out of; nothing for a visit, each of whose calls has its own.
    reply_share: OnceLock<ReplyShare>,
    /// Of calls, and those for messages outside calls.
    open_streams: AtomicUsize,
    open_standalones: AtomicUsize,
    started: Instant,
    used_us: AtomicU64,
    closed: CancellationToken,
    /// What upstreams are to be told when it is over, before its links are closed.
    last_words: TaskTracker,
}

/// How the messages of a session reach its client.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// On streams of their own, which are logged and can be resumed.
    Streams,
    /// All on one connection, with which the session ends.
    Connection {
        /// Bytes that may wait to be read.
        unread: usize,
        /// What is negotiated when the client offers a revision that we do not know.
        fallback: Revision,
        /// Cancelled when more than that waits.
        overflow: CancellationToken,
    },
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

    /// As long as this is kept, for a moment at most, the links of the session outlive it.
    pub fn last_word(&self) -> TaskTrackerToken {
        self.last_words.token()
    }

    /// Notes that the client is there.
    pub fn touch(&self) {
        self.touch_at(self.age());
    }

    /// The same, for who knows how old the session is now: every look at the clock has its price.
    fn touch_at(&self, age: Duration) {
        let us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        self.used_us.store(us, Ordering::Relaxed);
    }

    /// Since the client was last there; zero while a call runs or a stream is open.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        if self.is_busy() {
            return Duration::ZERO;
        }
        self.age().saturating_sub(self.age_when_used())
    }

    /// Whether at `age` it was idle for longer than `idle`, or is older than `absolute`: then it is over,
    /// but for the running and parked calls of a visit, whose client knows of no session and could not
    /// have begun another. Asked for every request: whether it is busy matters only after a long
    /// silence.
    #[must_use]
    pub fn outlived(&self, age: Duration, idle: Duration, absolute: Duration) -> bool {
        if age > absolute {
            return !self.visit.as_ref().is_some_and(Visit::is_busy);
        }
        age.saturating_sub(self.age_when_used()) > idle && !self.is_busy()
    }

    /// Since it was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How old it was when its client was last there, a moment ago for whoever serves it now.
    #[must_use]
    pub fn age_when_used(&self) -> Duration {
        Duration::from_micros(self.used_us.load(Ordering::Relaxed))
    }

    /// Whether its `initialize`, a call or a task runs here or a stream is open.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.opening.load(Ordering::Relaxed)
            || self.open_streams.load(Ordering::Relaxed) > 0
            || self.open_standalones.load(Ordering::Relaxed) > 0
            || self.visit.as_ref().is_some_and(Visit::is_busy)
            || self.tasks.is_running()
            || !lock(&self.calls).is_empty()
    }

    /// The client said `notifications/initialized`: it may be asked from now on (SPEC L-03).
    pub fn set_initialized(&self) {
        self.initialized.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Its log levels.
    #[must_use]
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// What it subscribed to.
    #[must_use]
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// The tasks of 2025-11-25 that it began.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Room for what those came to that were run here.
    #[must_use]
    pub fn results(&self) -> &ResultRoom {
        &self.results
    }

    /// Says what replies to its calls are taken out of. Of several, the first counts.
    pub fn share_replies(&self, share: ReplyShare) {
        self.reply_share.get_or_init(|| share);
    }

    /// What it is to a modern client; nothing for a session that a client opened.
    #[must_use]
    pub fn visit(&self) -> Option<&Visit> {
        self.visit.as_ref()
    }

    /// Whether somebody listens for messages that belong to no call, or did a moment ago.
    fn is_listened_to(&self) -> bool {
        match &self.visit {
            Some(visit) => visit.is_listened_to(),
            None => self.watched.load(Ordering::Acquire),
        }
    }

    /// Tells the upstreams whether somebody listens now. To be called whenever that may have changed,
    /// and for a link that is new.
    pub fn tell_links(&self) {
        let look = |wanted: &mut bool| *wanted = self.is_listened_to();
        self.listening.change(look, |wanted| {
            for link in self.links() {
                link.listen(*wanted);
            }
        });
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

    /// The lists that its client was answered without.
    #[must_use]
    pub fn absences(&self) -> &Absences {
        &self.absences
    }

    /// The stream of messages that belong to no call.
    #[must_use]
    pub fn standalone(&self) -> &Arc<EventStream> {
        &self.standalone
    }

    /// The open questions of this session.
    #[must_use]
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Notes that somebody watches the GET stream; `false` when somebody does already.
    pub fn begin_watching(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    /// Nobody watches the GET stream any more.
    pub fn end_watching(&self) {
        self.watched.store(false, Ordering::Release);
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
        self.notifications.clear();
        self.events.forget(self.key);
        links.into_values().collect()
    }

    /// Whose quota it counts against.
    #[must_use]
    pub fn owner(&self) -> OwnerKey {
        self.principal.owner()
    }
}
