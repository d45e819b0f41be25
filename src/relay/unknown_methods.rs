//! Messages defined by no revision and by no extension that the gateway understands. On a merged endpoint
//! their upstream is unknown. On a pure endpoint such messages pass if both sides declare an extension that
//! may define them; between two legacy sides always, since legacy extensions need no declaration.
//! Spec: SPEC N-01, M-22; BRIDGING §2.2, §2.4 ("unknown"), §6.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::Relay;
use super::view::EndpointView;
use crate::call::{ClientCapabilities, Notice, ServerDeclaration};
use crate::protocol::methods::{self, Direction};
use crate::protocol::{Era, Message, extensions, json};
use crate::session::{HeldNotifications, Session};
use crate::telemetry::metrics::LABELED;
use crate::translate::project::RevisionProjection;

/// A notification up to this size is copied, bytes: as a part of its array it would keep the whole array
/// while it waits.
const SMALL_BYTES: usize = 16 << 10;
/// Characters of a method in the log.
const SHOWN: usize = 64;

/// Whether a client and an upstream declare an extension in common that we do not understand.
pub(super) fn is_shared(client: &ClientCapabilities, declared: &ServerDeclaration) -> bool {
    let declared = std::str::from_utf8(&declared.capabilities).unwrap_or("{}");
    extensions::share_foreign(client.text(), declared)
}

/// Whether a notification of an upstream, of a kind of its own, may go to the client; `shared` is
/// asked only if it matters. What a modern upstream sends was checked where it arrived.
pub(super) fn may_notify(
    view: &EndpointView,
    projection: RevisionProjection,
    notice: &Notice,
    shared: impl FnOnce() -> bool,
) -> bool {
    let Ok(message) = Message::parse(notice.bytes.clone(), json::MAX_DEPTH) else {
        return false;
    };
    let method = message.method().unwrap_or_default();
    let may = match (methods::lookup(method), view) {
        (Some(known), _) => known.direction != Direction::ToServer && projection.is_legacy(),
        (None, EndpointView::Merged(_)) => false,
        (None, EndpointView::Pure) => projection.is_legacy() || shared(),
    };
    if !may {
        LABELED.notices_unknown.add("upstream", 1);
        let method: String = method.chars().take(SHOWN).collect();
        tracing::debug!(%method, "dropped a notification of an upstream");
    }
    may
}

/// Counts a notification of a client that goes no further.
fn dropped(method: &str) {
    LABELED.notices_unknown.add("client", 1);
    let method: String = method.chars().take(SHOWN).collect();
    tracing::debug!(%method, "dropped a notification of a client");
}

impl Relay {
    /// Takes a notification that a modern client sent by itself: none is defined, and it does not
    /// say what its client declares (SPEC M-22).
    pub fn modern_notification(&self, message: &Message) {
        dropped(message.method().unwrap_or_default());
    }

    /// Passes a notification of a legacy client to the open upstreams of its session.
    pub(super) fn pass_on(
        &self,
        session: &Arc<Session>,
        message: &Message,
        until: Instant,
    ) -> HeldNotifications {
        let method = message.method().unwrap_or_default();
        let may = match methods::lookup(method) {
            Some(known) => known.direction != Direction::ToClient && known.is_in(session.revision),
            None => self.is_pure(&session.endpoint),
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
}
