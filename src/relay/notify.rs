//! Notifications of a client for its upstreams, and the streams of upstreams that follow its own.
//! Spec: BRIDGING §2.4; SPEC C-10, L-06; DESIGN §6 (GET streams).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::list_changes::LISTS;
use crate::call::{Notice, NoticeArrival};
use crate::outbound::SessionLinks;
use crate::protocol::methods::{self, Direction};
use crate::protocol::{Era, Message, RequestId, json};
use crate::session::{HeldNotifications, Session};
use crate::telemetry::metrics::LABELED;

/// Upstream streams stay open this long after the client's.
const LISTEN_AFTER: Duration = Duration::from_mins(1);

/// A notification up to this size, in bytes, is copied: as a slice of its array it would keep the whole array
/// in memory while it waits.
const SMALL_BYTES: usize = 16 << 10;
/// Characters of a method in the log.
const SHOWN: usize = 64;

/// Takes the notifications of clients.
#[derive(Debug)]
pub(crate) struct ClientNotices {
    pub(super) links: Arc<SessionLinks>,
}

impl ClientNotices {
    /// Passes a notification of a legacy client to the open upstreams of its session.
    fn pass_on(
        &self,
        session: &Arc<Session>,
        message: &Message,
        until: Instant,
    ) -> HeldNotifications {
        let method = message.method().unwrap_or_default();
        let may = match methods::lookup(method) {
            Some(known) => known.direction != Direction::ToClient && known.is_in(session.revision),
            None => self.links.views.is_pure(&session.endpoint),
        };
        if !may {
            dropped(method);
            return HeldNotifications::default();
        }
        let mut links = session.links().all();
        // The modern era has no notifications of clients.
        links.retain(|link| {
            let declared = link.declared();
            declared.is_some_and(|declared| declared.revision.era() == Era::Legacy)
        });
        if links.is_empty() && methods::lookup(method).is_none() {
            dropped(method);
        }
        let mut bytes = message.bytes().clone();
        if bytes.len() <= SMALL_BYTES {
            bytes = Bytes::copy_from_slice(&bytes);
        }
        HeldNotifications::send(session, links, &bytes, until)
    }

    /// Accepts a notification of a client. Notifications for upstreams are enqueued in order; if a queue is
    /// full, the caller is held until `until`. A cancellation never waits.
    pub(crate) fn notification(
        &self,
        session: &Arc<Session>,
        message: &Message,
        until: Instant,
    ) -> HeldNotifications {
        match message.method() {
            Some("notifications/initialized") => session.set_initialized(),
            Some("notifications/cancelled") => {
                let id = message.param("requestId").and_then(RequestId::parse);
                let call = id.and_then(|id| session.running(&id));
                // Unknown and finished ids are ignored (SPEC C-10).
                if let Some(call) = call {
                    let reason = message.param("reason").and_then(json::string);
                    call.cancel(reason.map(std::borrow::Cow::into_owned));
                }
            }
            Some("notifications/progress") | None => {}
            Some(_) => return self.pass_on(session, message, until),
        }
        HeldNotifications::default()
    }

    /// The client has missed messages of its upstreams, perhaps changes. The gateway sends it a change notification for
    /// each list and for each resource that it subscribes to.
    pub(crate) fn missed(&self, session: &Arc<Session>) {
        let is_pure = self.links.views.is_pure(&session.endpoint);
        for upstream in &session.endpoint.upstreams {
            // An adopted session may be the first of this process that asks the upstream.
            let inherited = session.adopted_link(upstream);
            let inherited = inherited.and_then(|link| link.continuation);
            let known = inherited
                .map(|former| former.declared)
                .or_else(|| self.links.presumed(session, upstream));
            let announces = |what: &str| known.as_ref().is_some_and(|known| known.announces(what));
            let told = LISTS.into_iter().filter(|what| !is_pure || announces(what));
            told.for_each(|what| self.links.tell_changed(session, upstream, what));
            let intake = self.links.client(session, upstream).intake;
            for uri in session.subscriptions().granted_at(upstream) {
                let notice = Notice::resource_updated(&uri);
                intake.notice(upstream, notice, NoticeArrival::now(None));
            }
        }
    }

    /// The client opened a stream for messages outside calls: its upstreams may send some.
    pub(crate) fn listen(&self, session: &Arc<Session>) {
        let is_first = session.begin_watching();
        session.send_held_on_get();
        session.tell_links();
        // One watcher for a session, however often its client reconnects.
        if !is_first {
            return;
        }
        let session = Arc::downgrade(session);
        self.links.spawner.spawn_service(async move {
            loop {
                tokio::time::sleep(LISTEN_AFTER).await;
                let Some(session) = session.upgrade() else {
                    return;
                };
                if session.closed().is_cancelled() {
                    return;
                }
                if !session.standalone().is_attached() {
                    session.end_watching();
                    // A client that came back meanwhile found this watcher, which has to go on.
                    let goes_on = session.standalone().is_attached() && session.begin_watching();
                    session.tell_links();
                    if !goes_on {
                        return;
                    }
                }
            }
        });
    }
}

/// Drops a notification of a modern client: the revision defines none, and it carries no
/// declaration of its client (SPEC M-22).
pub(crate) fn modern_notification(message: &Message) {
    dropped(message.method().unwrap_or_default());
}

/// Counts a notification of a client that is not passed on.
fn dropped(method: &str) {
    LABELED.notices_unknown.add("client", 1);
    let method: String = method.chars().take(SHOWN).collect();
    tracing::debug!(%method, "dropped a notification of a client");
}
