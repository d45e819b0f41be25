//! Notifications of a client, and what its streams mean for its upstreams.
//! Spec: BRIDGING §2.4; SPEC C-10, L-06; DESIGN §6 (GET streams).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Relay;
use crate::call::{Call, Reply};
use crate::cause::chain;
use crate::outbound::{EMPTY, RelayFailure, outcome};
use crate::protocol::methods::{self, Direction};
use crate::protocol::{Era, Message, RequestId, json};
use crate::session::{HeldNotifications, Session};
use crate::telemetry::metrics::LABELED;

/// Upstream streams stay open this long after the client's.
const LISTEN_AFTER: Duration = Duration::from_mins(1);

/// A notification up to this size is copied, bytes: as a part of its array it would keep the whole array
/// while it waits.
const SMALL_BYTES: usize = 16 << 10;
/// Characters of a method in the log.
const SHOWN: usize = 64;

impl Relay {
    /// Takes a notification that a modern client sent by itself: none is defined, and it does not
    /// say what its client declares (SPEC M-22).
    pub fn modern_notification(&self, message: &Message) {
        dropped(message.method().unwrap_or_default());
    }

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
        let mut links = session.links();
        // The modern era has no notifications of clients that we could write.
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
        session.send_notification(links, &bytes, until)
    }

    /// Accepts a notification of a client. Notifications for upstreams are enqueued in order; if a queue is
    /// full, the caller is held until `until`. A cancellation never waits.
    pub fn notification(
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

    /// The client opened a stream for messages outside calls: its upstreams may send some.
    pub fn listen(&self, session: &Arc<Session>) {
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
                    // A client that came back meanwhile found a watcher: go on being it.
                    let goes_on = session.standalone().is_attached() && session.begin_watching();
                    session.tell_links();
                    if !goes_on {
                        return;
                    }
                }
            }
        });
    }

    /// Tells every upstream of the session that is open what to log; the answer is ours. One that is opened
    /// later, or does not answer within the time of merged lists, is told before its next call.
    /// Spec: SPEC G-03, C-21.
    pub(super) async fn tell_all(
        &self,
        call: &Call,
        session: &Arc<Session>,
    ) -> Result<Reply, RelayFailure> {
        let (links, level) = (session.links(), session.levels().wanted());
        let wait = self.links.connect_wait;
        let told = links.iter().map(|link| async {
            let logs = link
                .declared()
                .is_some_and(|declared| has_member(&declared.capabilities, "logging"));
            let upstream = link.upstream();
            let method = call.message.method().unwrap_or_default();
            if !logs || self.policy.decide_part(call, upstream, method).is_err() {
                return;
            }
            let audited = self.policy.audit_part(call, upstream);
            let asked = link.call(&call.message, call);
            let Ok(reply) = tokio::time::timeout(wait, asked).await else {
                LABELED.upstream_skipped.add(upstream, 1);
                session.levels().unknown(upstream);
                return;
            };
            audited.end(outcome(&reply));
            match reply {
                Ok(reply) => {
                    if reply.error().is_some() {
                        tracing::debug!(%upstream, "upstream rejected logging/setLevel");
                    }
                    if let Some(level) = level {
                        session.levels().tell(upstream, level);
                    }
                }
                Err(fault) => tracing::debug!(%upstream, error = chain(&fault), "level not set"),
            }
        });
        join_all(told).await;
        Ok(Reply::Result(EMPTY))
    }
}

/// Counts a notification of a client that goes no further.
fn dropped(method: &str) {
    LABELED.notices_unknown.add("client", 1);
    let method: String = method.chars().take(SHOWN).collect();
    tracing::debug!(%method, "dropped a notification of a client");
}

fn has_member(object: &[u8], name: &str) -> bool {
    let members = std::str::from_utf8(object)
        .ok()
        .and_then(|text| json::members(text).ok());
    members.is_some_and(|members| members.iter().any(|(known, _)| known == name))
}
