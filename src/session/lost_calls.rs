//! Calls that ran at a lost owner of a session and are made again, as their tool is in `retry_safe`.
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

/// The calls of a session that wait until their streams are resumed: that request carries the token of their caller.
#[derive(Debug, Default)]
pub(super) struct LostCalls(Mutex<Vec<LostCall>>);

impl LostCalls {
    pub(super) fn add(&self, call: LostCall) {
        lock(&self.0).push(call);
    }

    /// The call of the stream with this number, once.
    pub(super) fn take(&self, stream: u32) -> Option<LostCall> {
        let mut calls = lock(&self.0);
        let place = calls
            .iter()
            .position(|call| call.stream.number() == stream)?;
        Some(calls.swap_remove(place))
    }
}
