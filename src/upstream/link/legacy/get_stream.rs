//! The GET stream of an HTTP session: opened for listening clients, and before calls whose questions may arrive on it.
//! Spec: BRIDGING §2.3, §3.4; DESIGN §6 (GET streams).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::LegacyConnection;
use super::pending_reply::may_be_asked;
use super::spent_stream::look_for_changes;
use crate::call::{Call, Notice, NoticeArrival, ServerDeclaration};
use crate::protocol::{Era, Message};
use crate::runtime::poll_time;
use crate::telemetry::metrics::LABELED;
use crate::upstream::carrier::LinkSettings;
use crate::upstream::carrier::http::get_stream::{GetStreamChange, NoGetStream, SingleStreamHabit};
use crate::upstream::carrier::http::http_session::HttpSession;
use crate::upstream::carrier::http::sink::MessageSink;
use crate::upstream::error::LinkError;
use crate::upstream::link::session_state::SessionState;
use crate::upstream::lock;
use crate::upstream::room::GrowingReply;

/// How long a call of a modern client waits for the stream to be open; then it goes on without.
const OPENING: Duration = Duration::from_millis(500);
/// How long the first call of a session waits for the head of the stream: some servers send it with the
/// first event only.
const HEAD: Duration = Duration::from_millis(250);
/// How long after the last call the stream stays open, for a client that opens none of its own.
const CALLED_LATELY: Duration = Duration::from_mins(1);

/// Between two looks at calls that still run.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// The GET stream of a connection.
#[derive(Debug)]
pub(super) struct GetStream {
    /// Itself, for its tasks.
    own: Weak<Self>,
    connection: Weak<LegacyConnection>,
    settings: Arc<LinkSettings>,
    declared: Arc<ServerDeclaration>,
    http: Arc<HttpSession>,
    /// Cancelled with the connection.
    closed: CancellationToken,
    /// Closes the stream; set while the stream is wanted.
    listener: Mutex<Option<CancellationToken>>,
    /// Whether the link wants it: a client has a stream of its own, or subscriptions.
    pub(super) is_wanted: AtomicBool,
    /// Whether it is open for questions to a client that opens no stream of its own.
    is_asked: AtomicBool,
    /// Whether it is open for calls, and its head was waited for.
    is_called: AtomicBool,
    is_awaited: AtomicBool,
    /// The latest attempt to open it that a call has waited for.
    awaited: AtomicU64,
    /// When a call was last here, in milliseconds since `begun`.
    called_ms: AtomicU64,
    begun: Instant,
    /// Whether it was open before, and whether a call was sent before that.
    was_open: AtomicBool,
    is_late: AtomicBool,
    /// Whether the upstream refused the stream when last asked.
    is_refused: AtomicBool,
    /// The resources that the link follows, and where it reports doubts of its era.
    state: OnceLock<SessionState>,
}

impl GetStream {
    /// One that is not open: of a connection with its settings and declaration, which is over once `closed` is cancelled.
    pub(super) fn new(
        (connection, settings, declared): (
            &Weak<LegacyConnection>,
            &Arc<LinkSettings>,
            &Arc<ServerDeclaration>,
        ),
        http: &Arc<HttpSession>,
        closed: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            connection: Weak::clone(connection),
            settings: Arc::clone(settings),
            declared: Arc::clone(declared),
            http: Arc::clone(http),
            closed: closed.clone(),
            listener: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            awaited: AtomicU64::new(0),
            called_ms: AtomicU64::new(0),
            begun: Instant::now(),
            was_open: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            state: OnceLock::new(),
        })
    }

    /// The connection, unless it is over.
    fn open_connection(&self) -> Option<Arc<LegacyConnection>> {
        let connection = self.connection.upgrade();
        connection.filter(|connection| !connection.is_closed())
    }

    /// Notes that a call is here now, where the stream is open for calls.
    pub(super) fn called(&self) {
        if self.is_called.load(Ordering::Relaxed) {
            let age = poll_time::now().saturating_duration_since(self.begun);
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            self.called_ms.store(age, Ordering::Relaxed);
        }
    }

    /// How long the stream is still to stay open for calls.
    fn left(&self) -> Duration {
        let called = Duration::from_millis(self.called_ms.load(Ordering::Relaxed));
        let quiet = self.begun.elapsed().saturating_sub(called);
        CALLED_LATELY.saturating_sub(quiet)
    }

    fn is_needed(&self) -> bool {
        [&self.is_wanted, &self.is_asked, &self.is_called]
            .iter()
            .any(|why| why.load(Ordering::Relaxed))
    }

    /// Opens or closes the stream; it stays open for questions and for calls.
    pub(super) fn listen(&self, wanted: bool) {
        self.is_wanted.store(wanted, Ordering::Relaxed);
        self.open_or_close();
    }

    fn open_or_close(&self) {
        let mut listener = lock(&self.listener);
        // Looked at under the lock: what forgets the connection closes the stream afterwards.
        let is_open = || self.open_connection().is_some();
        // Closed, it would not open again: nothing more could come over it in this session.
        let is_kept = listener.is_some() && self.settings.single_streams.is_known();
        let wanted = (is_kept || self.is_needed()) && is_open() && self.can_push();
        match (&*listener, wanted) {
            (None, true) => {
                let stop = self.closed.child_token();
                *listener = Some(stop.clone());
                let listen = self.listen_while_owned();
                let own = Weak::clone(&self.own);
                let single_streams = self.settings.single_streams.clone();
                let name = Arc::clone(&self.settings.name);
                self.settings.tasks.spawn_service(async move {
                    let none = tokio::select! {
                        none = listen => none,
                        () = stop.cancelled() => return,
                    };
                    if none == NoGetStream::Spent {
                        note_spent(&single_streams, &name);
                        let mut is_told = false;
                        let look = move || {
                            let this = own.upgrade();
                            this.is_some_and(|this| this.may_have_missed(&mut is_told))
                        };
                        return look_for_changes(look, stop).await;
                    }
                    let forgotten = own.upgrade().and_then(|this| this.open_connection());
                    if let (NoGetStream::Session, Some(connection)) = (none, forgotten) {
                        LABELED.upstream_lost.add(&connection.settings.name, 1);
                        connection.forget();
                    }
                });
            }
            (Some(stop), false) => {
                stop.cancel();
                *listener = None;
            }
            _ => {}
        }
    }

    /// Keeps the GET stream open except while the fence is closed: another replica that goes on with the session needs the
    /// stream, and upstreams may allow one only. Does not keep the connection.
    fn listen_while_owned(&self) -> impl Future<Output = NoGetStream> + Send + use<> {
        let (fence, http) = (self.settings.fence.clone(), Arc::clone(&self.http));
        let (own, connection) = (Weak::clone(&self.own), Weak::clone(&self.connection));
        let listen = move || {
            let changing = Weak::clone(&own);
            let on_change = move |change| {
                if let Some(this) = changing.upgrade() {
                    this.changed(change);
                }
            };
            let heard = Heard(Weak::clone(&connection));
            Box::pin(Arc::clone(&http).listen(on_change, heard))
        };
        let mut listening = listen();
        async move {
            loop {
                tokio::select! {
                    none = listening => return none,
                    () = fence.until_closed() => {}
                }
                fence.opened().await;
                listening = listen();
            }
        }
    }

    fn changed(&self, change: GetStreamChange) {
        match change {
            GetStreamChange::Opened => {
                self.is_refused.store(false, Ordering::Relaxed);
                let again = self.was_open.swap(true, Ordering::Relaxed);
                if again {
                    self.settings.single_streams.unlearn();
                }
                self.hears(again);
            }
            GetStreamChange::Refused(status) => {
                self.is_refused.store(true, Ordering::Relaxed);
                self.doubt(status);
            }
        }
    }

    /// From now on, who follows a resource of this state hears of it when notices may have been missed.
    pub(super) fn follow(&self, state: &SessionState) {
        self.state.get_or_init(|| state.clone());
    }

    /// Reports a stream that was open and is refused now. Many servers have none: without one before, that says
    /// nothing.
    fn doubt(&self, status: u16) {
        let was_open = self.was_open.load(Ordering::Relaxed);
        if let Some(state) = self.state.get().filter(|_| was_open) {
            state.doubt.raise(&LinkError::Status(status));
        }
    }

    /// Notes that no stream announces changes any more, where a client listens. Returns whether the connection is open.
    /// Followed resources are announced once, which sets `is_told`: they are not compared, and clients read them again.
    pub(super) fn may_have_missed(&self, is_told: &mut bool) -> bool {
        let is_open = self.open_connection().is_some();
        if is_open && self.is_wanted.load(Ordering::Relaxed) {
            self.hears_of_lists(false);
            if !std::mem::replace(is_told, true) {
                self.announce_followed();
            }
        }
        is_open
    }

    /// The stream is open. Change notices sent before, or since the last stream broke, were missed.
    fn hears(&self, again: bool) {
        self.hears_of_lists(!again && self.is_late.load(Ordering::Relaxed));
        if again {
            self.announce_followed();
        }
    }

    fn hears_of_lists(&self, is_late: bool) {
        let (intake, lists) = (&self.settings.intake, self.declared.announced());
        if !lists.is_empty() {
            intake.heard(&self.settings.name, &lists, is_late);
        }
    }

    fn announce_followed(&self) {
        let (intake, state) = (&self.settings.intake, self.state.get());
        for uri in state.map(|state| state.followed.all()).unwrap_or_default() {
            let notice = Notice::resource_updated(&uri);
            intake.notice(&self.settings.name, notice, NoticeArrival::now(None));
        }
    }

    /// Opens the stream before a call is sent, where something can come over it.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn hear(&self, call: &Call) {
        match call.revision.era() {
            Era::Legacy => self.hear_changes().await,
            Era::Modern => self.hear_questions(call).await,
        }
    }

    /// The same before any request of a legacy client.
    pub(super) async fn hear_changes(&self) {
        let is_new = |attempt| attempt > self.awaited.load(Ordering::Relaxed);
        if !self.is_awaited.load(Ordering::Acquire) || self.http.opening().is_some_and(is_new) {
            // Seldom, and a call need not have room for it.
            Box::pin(self.hear_calls()).await;
        }
        self.called();
    }

    /// Opens the stream before the first call of a session and after a quiet while, and waits for its head: what the
    /// upstream announces in that call would be lost. So does a call that finds the stream being opened again. It is
    /// closed a while after the last call.
    async fn hear_calls(&self) {
        let http = &self.http;
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        // A stream that was open before may open again.
        let is_hopeless = is_refused && !http.was_open() && http.opening().is_none();
        if is_hopeless || !http.has_session() || !self.can_push() {
            return self.is_awaited.store(true, Ordering::Release);
        }
        if !self.is_called.swap(true, Ordering::AcqRel) {
            self.called();
            self.open_or_close();
            let closing = close_after_calls(Weak::clone(&self.own));
            self.settings.tasks.spawn_service(closing);
        }
        let attempt = http.opening().unwrap_or_default();
        if timeout(HEAD, http.answered()).await.is_err() {
            self.is_late.store(true, Ordering::Relaxed);
            tracing::debug!(
                upstream = %self.settings.name,
                "upstream GET stream has no head yet: the call is sent without"
            );
        }
        self.awaited.fetch_max(attempt, Ordering::Relaxed);
        self.is_awaited.store(true, Ordering::Release);
    }

    /// Opens the stream before a call in which a modern client may be asked something. Such a client
    /// opens no stream of its own, and a server that does not relate its question to the call asks
    /// it here: without a listener the question would be lost.
    async fn hear_questions(&self, call: &Call) {
        if !self.settings.capabilities.allow_some() || !may_be_asked(&call.message, call) {
            return;
        }
        if !self.is_asked.swap(true, Ordering::Relaxed) {
            self.open_or_close();
        }
        if timeout(OPENING, self.http.answered()).await.is_err() {
            tracing::debug!(upstream = %self.settings.name, "upstream GET stream is not open");
        }
    }

    /// Whether anything can come over a GET stream (DESIGN §6).
    fn can_push(&self) -> bool {
        let text = &*self.declared.capabilities;
        let capabilities = &self.settings.capabilities;
        capabilities.towards(self.declared.revision).text() != "{}"
            || [
                "\"listChanged\"",
                "\"subscribe\"",
                "\"logging\"",
                "\"tasks\"",
            ]
            .iter()
            .any(|word| text.contains(word))
    }
    /// See [`crate::call::UpstreamLink::wait_until_live`].
    pub(super) async fn wait_until_live(&self) -> bool {
        self.can_push() && self.http.notice_feed().begun().await
    }
}

/// Notes that the only stream of a session has ended. The log has it once for an upstream, as a proxy cuts the streams of
/// many sessions together.
fn note_spent(habit: &SingleStreamHabit, upstream: &str) {
    if habit.note() {
        tracing::info!(
            upstream,
            "upstream opens one GET stream in a session: once that has ended, lists are compared every 5 min, and other \
             notices outside calls are not received"
        );
    } else {
        tracing::debug!(
            upstream,
            "the only GET stream of an upstream session has ended"
        );
    }
}

/// Takes the messages of the GET stream.
struct Heard(Weak<LegacyConnection>);

impl MessageSink for Heard {
    fn message(&mut self, message: Message) -> Option<Message> {
        if let Some(connection) = self.0.upgrade() {
            connection.on_message(message, None);
        }
        None
    }

    fn growing(&self) -> Option<GrowingReply> {
        let share = self.0.upgrade()?.settings.arriving_share();
        Some(GrowingReply::outside_calls(&share))
    }

    /// Replies on this stream are strays: `counts_stray` takes their room.
    fn takes_room(&self) -> bool {
        true
    }
}

/// Closes the GET stream a while after the last call, unless something else needs it. Does not keep the
/// connection.
async fn close_after_calls(get_stream: Weak<GetStream>) {
    let mut wait = CALLED_LATELY;
    loop {
        sleep(wait).await;
        let Some(this) = get_stream.upgrade() else {
            return;
        };
        let Some(connection) = this.open_connection() else {
            return;
        };
        let is_quiet = || connection.pending.is_empty() && this.left().is_zero();
        if is_quiet() {
            this.is_awaited.store(false, Ordering::Release);
            this.is_called.store(false, Ordering::Release);
            // A call that came meanwhile opens it, or is seen here.
            if is_quiet() {
                return this.open_or_close();
            }
            if this.is_called.swap(true, Ordering::AcqRel) {
                return;
            }
            this.is_awaited.store(true, Ordering::Release);
        }
        wait = this.left().max(SHORTEST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::declared;
    use crate::protocol::Revision;
    use crate::upstream::carrier::fixture;
    use crate::upstream::carrier::http::http_session::HttpSession;
    use crate::upstream::link::legacy::connection::LegacyConnection;
    use crate::upstream::link::legacy::wire::LegacyWire;

    #[tokio::test]
    async fn stream_that_opens_once_is_kept_when_no_client_listens() {
        for is_single in [false, true] {
            let (settings, client, bounds) = fixture::over_http();
            let settings = Arc::new(settings);
            let http = Arc::new(HttpSession::new("up".into(), client, bounds));
            let declared = declared(Revision::V2025_11_25, r#"{"tools":{"listChanged":true}}"#);
            let connection = LegacyConnection::new(&settings, LegacyWire::Http(http), declared);
            let get_stream = connection.get_stream.clone().expect("one over HTTP");
            get_stream.listen(true);
            assert!(lock(&get_stream.listener).is_some());
            if is_single {
                settings.single_streams.note();
            }
            get_stream.listen(false);
            assert_eq!(lock(&get_stream.listener).is_some(), is_single);
            connection.forget();
            get_stream.listen(false);
            assert!(lock(&get_stream.listener).is_none(), "the session is over");
        }
    }

    // The upstream was replaced: sessions begun before may have been refused a second stream.
    #[tokio::test]
    async fn second_stream_disproves_the_habit() {
        let (settings, client, bounds) = fixture::over_http();
        let settings = Arc::new(settings);
        let http = Arc::new(HttpSession::new("up".into(), client, bounds));
        let declared = declared(Revision::V2025_11_25, r#"{"tools":{"listChanged":true}}"#);
        let connection = LegacyConnection::new(&settings, LegacyWire::Http(http), declared);
        let get_stream = connection.get_stream.clone().expect("one over HTTP");
        settings.single_streams.note();
        get_stream.changed(GetStreamChange::Opened);
        let is_known = || settings.single_streams.is_known();
        assert!(is_known(), "the first one says nothing");
        get_stream.changed(GetStreamChange::Opened);
        assert!(!is_known());
        assert!(settings.single_streams.note(), "the log has it again");
        assert!(!settings.single_streams.note());
    }
}
