//! Messages defined by no revision and by no extension that the gateway understands. On a merged endpoint
//! their upstream is unknown. On a pure endpoint such messages pass if both sides declare an extension that
//! may define them; between two legacy sides always, since legacy extensions need no declaration.
//! Spec: SPEC N-01, M-22; BRIDGING §2.2, §2.4 ("unknown"), §6.

use crate::call::{ClientCapabilities, Notice, ServerDeclaration};
use crate::protocol::methods::{self, Direction};
use crate::protocol::{Message, extensions, json};
use crate::telemetry::metrics::LABELED;
use crate::translate::project::RevisionProjection;

/// Characters of a method in the log.
const SHOWN: usize = 64;

/// Whether a client and an upstream declare an extension in common that we do not understand.
pub(crate) fn is_shared(client: &ClientCapabilities, declared: &ServerDeclaration) -> bool {
    extensions::share_foreign(client.text(), &declared.capabilities)
}

/// Whether a notification of an upstream, of a kind of its own, may go to the client of an endpoint that is pure or
/// not; `shared` is asked only if it matters. What a modern upstream sends was checked where it arrived.
pub(super) fn may_notify(
    is_pure: bool,
    projection: RevisionProjection,
    notice: &Notice,
    shared: impl FnOnce() -> bool,
) -> bool {
    let Ok(message) = Message::parse(notice.bytes.clone(), json::MAX_DEPTH) else {
        return false;
    };
    let method = message.method().unwrap_or_default();
    let may = match methods::lookup(method) {
        Some(known) => known.direction != Direction::ToServer && projection.is_legacy(),
        None => is_pure && (projection.is_legacy() || shared()),
    };
    if !may {
        LABELED.notices_unknown.add("upstream", 1);
        let method: String = method.chars().take(SHOWN).collect();
        tracing::debug!(%method, "dropped a notification of an upstream");
    }
    may
}
