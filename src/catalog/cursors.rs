//! `PageCursors`: cursors of upstreams, sealed for the client that gets them. Spec: SPEC C-40, A-30.

use std::sync::Arc;

use crate::call::Call;
use crate::fault::Fault;
use crate::outbound::{given_cursor, invalid};
use crate::protocol::json;
use crate::protocol::methods::{self, MethodRow};
use crate::seal::{SealPurpose, Sealer};

/// Seals and opens cursors. Clones share the keys.
#[derive(Debug, Clone)]
pub(crate) struct PageCursors(Arc<Sealer>);

impl PageCursors {
    pub(super) fn new(sealer: Arc<Sealer>) -> Self {
        Self(sealer)
    }

    /// The upstream's cursor inside ours, as JSON text, where the method pages.
    ///
    /// # Errors
    /// The cursor is forged, or was sealed for something else.
    pub(crate) fn opened(&self, call: &Call, upstream: &str) -> Result<Option<String>, Fault> {
        let known = methods::lookup(call.message.method().unwrap_or_default());
        if !known.is_some_and(MethodRow::is_paged) {
            return Ok(None);
        }
        let Some(given) = given_cursor(&call.message) else {
            return Ok(None);
        };
        let context = context(call, upstream);
        let opened = json::string(given)
            .and_then(|text| self.0.open(SealPurpose::Cursor, &context, &text))
            .and_then(|plain| String::from_utf8(plain).ok())
            .ok_or_else(|| invalid("unknown cursor, list again from the start"))?;
        Ok(Some(opened))
    }

    /// JSON text of a cursor of `upstream` (JSON text) as its client gets it.
    pub(crate) fn sealed(&self, call: &Call, upstream: &str, cursor: &str) -> String {
        let context = context(call, upstream);
        let sealed = self
            .0
            .seal(SealPurpose::Cursor, &context, cursor.as_bytes());
        json::quote(&sealed)
    }
}

/// Seal context of a cursor: endpoint, upstream, binding of the caller, method.
fn context(call: &Call, upstream: &str) -> Vec<u8> {
    let mut context = call.endpoint.seal_context();
    context.extend_from_slice(upstream.as_bytes());
    context.push(0);
    context.extend_from_slice(call.principal.binding().bytes());
    context.extend_from_slice(call.message.method().unwrap_or_default().as_bytes());
    context
}
