//! Calls that a lost owner of a session has taken, and that are made again, as their tool stands in `retry_safe`.
//! Reasons: `docs/adr/0027`.

use std::sync::{Arc, Mutex};

use super::{EventStream, lock};
use crate::protocol::Message;

/// A call whose stream has begun and has no reply.
#[derive(Debug)]
pub struct LostCall {
    /// Its stream, which waits for the reply.
    pub stream: Arc<EventStream>,
    /// Its request.
    pub request: Message,
}

/// The calls of a session that wait for its first request here, which brings the token of their caller.
#[derive(Debug, Default)]
pub(super) struct LostCalls(Mutex<Vec<LostCall>>);

impl LostCalls {
    pub(super) fn add(&self, call: LostCall) {
        lock(&self.0).push(call);
    }

    pub(super) fn take(&self) -> Vec<LostCall> {
        std::mem::take(&mut *lock(&self.0))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
