//! The GET stream of an HTTP session: for whom it is open, and that it is when a question may come
//! on it. Spec: BRIDGING §2.3, §3.4; DESIGN §6 (GET streams).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::place::may_be_asked;
use super::wire::Wire;
use crate::call::{Call, Notice};
use crate::protocol::Era;
use crate::telemetry::metrics::LABELED;
use crate::upstream::http::get_stream::Refused;
use crate::upstream::lock;

/// How long a call waits for the stream to be open; then it goes on without.
const OPENING: Duration = Duration::from_millis(500);

/// The GET stream of a connection.
#[derive(Debug, Default)]
pub(super) struct Ears {
    /// What closes it, while it is wanted.
    listener: Mutex<Option<CancellationToken>>,
    /// Whether it is open for a client that opens no stream of its own.
    is_asked: AtomicBool,
    /// The resources that the link follows.
    followed: OnceLock<Followed>,
}

/// URIs of the resources that are subscribed to at the upstream: of a link, through all its
/// connections. Bounded by `limits.subscriptions_per_session` of each of its sessions.
#[derive(Debug, Clone, Default)]
pub(super) struct Followed(Arc<Mutex<HashSet<String>>>);

impl Followed {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        lock(&self.0).contains(uri)
    }

    pub(super) fn insert(&self, uri: String) {
        lock(&self.0).insert(uri);
    }

    pub(super) fn remove(&self, uri: &str) {
        lock(&self.0).remove(uri);
    }

    /// Those of now.
    pub(super) fn all(&self) -> Vec<String> {
        lock(&self.0).iter().cloned().collect()
    }
}

impl Connection {
    /// Opens or closes the GET stream; it stays open for who may be asked on it.
    pub(super) fn listen(self: &Arc<Self>, wanted: bool) {
        let Wire::Http(http) = &self.wire else { return };
        let mut listener = lock(&self.ears.listener);
        let wanted = wanted || self.ears.is_asked.load(Ordering::Relaxed);
        match (&*listener, wanted && !self.is_closed() && self.can_push()) {
            (None, true) => {
                let stop = self.closed.child_token();
                *listener = Some(stop.clone());
                let (opening, this) = (Arc::downgrade(self), Arc::downgrade(self));
                let forgotten = Arc::downgrade(self);
                let mut was_open = false;
                let on_open = move || {
                    let again = std::mem::replace(&mut was_open, true);
                    if let Some(this) = opening.upgrade() {
                        this.hears(again);
                    }
                };
                let listen = Arc::clone(http).listen(on_open, move |message| {
                    if let Some(this) = this.upgrade() {
                        this.on_message(message, None);
                    }
                });
                self.settings.tasks.spawn_service(async move {
                    let refused = tokio::select! {
                        refused = listen => refused,
                        () = stop.cancelled() => return,
                    };
                    if refused == Refused::Session
                        && let Some(this) = forgotten.upgrade()
                        && !this.is_closed()
                    {
                        LABELED.upstream_lost.add(&this.settings.name, 1);
                        this.forget();
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

    /// From now on, who follows one of these hears of it when notices may have been missed.
    pub(super) fn follow(&self, followed: &Followed) {
        self.ears.followed.get_or_init(|| followed.clone());
    }

    /// The stream is open: what was announced before it was has been heard by nobody, also between
    /// it and one that broke.
    fn hears(&self, again: bool) {
        let lists = self.declared().announced();
        if !lists.is_empty() {
            self.settings.intake.heard(&self.settings.name, &lists);
        }
        let followed = self.ears.followed.get().filter(|_| again);
        for uri in followed.map(Followed::all).unwrap_or_default() {
            let notice = Notice::resource_updated(&uri);
            self.settings.intake.notice(&self.settings.name, notice);
        }
    }

    /// Opens the stream before a call in which a modern client may be asked something. Such a client
    /// opens no stream of its own, and a server that does not relate its question to the call asks
    /// it here: with nobody listening, it would never be heard.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn hear_questions(self: &Arc<Self>, call: &Call) {
        let Wire::Http(http) = &self.wire else { return };
        if call.revision.era() == Era::Legacy
            || !self.settings.capabilities.allow_some()
            || !may_be_asked(&call.message, call)
        {
            return;
        }
        if !self.ears.is_asked.swap(true, Ordering::Relaxed) {
            self.listen(true);
        }
        let opening = tokio::time::timeout(OPENING, http.answered());
        if opening.await.is_err() {
            tracing::debug!(upstream = %self.settings.name, "the stream outside calls is not open");
        }
    }

    /// Whether anything can come over a GET stream (DESIGN §6).
    pub(super) fn can_push(&self) -> bool {
        let text = String::from_utf8_lossy(&self.declared().capabilities);
        self.settings.capabilities.text() != "{}"
            || [
                "\"listChanged\"",
                "\"subscribe\"",
                "\"logging\"",
                "\"tasks\"",
            ]
            .iter()
            .any(|word| text.contains(word))
    }
}
