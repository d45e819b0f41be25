//! `InFlight`: a sent request, cancelled upstream if dropped before its reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::LegacyConnection;
use super::pending_reply::PendingReply;
use super::wire::LegacyWire;
use crate::upstream::link::cancellation;

/// Cancels a request upstream on drop unless it landed (SPEC C-10, C-11).
#[derive(Debug)]
pub(super) struct InFlight {
    connection: Arc<LegacyConnection>,
    pending: Arc<PendingReply>,
    done: bool,
}

impl InFlight {
    /// A request in `pending` of the `connection` until this is dropped.
    pub(super) fn new(connection: Arc<LegacyConnection>, pending: Arc<PendingReply>) -> Self {
        Self {
            connection,
            pending,
            done: false,
        }
    }

    /// The state of the request.
    pub(super) fn pending(&self) -> &Arc<PendingReply> {
        &self.pending
    }

    /// Notes that the reply has arrived.
    pub(super) fn landed(mut self) {
        self.done = true;
        self.pending.landed.store(true, Ordering::Relaxed);
    }

    /// Cancels the request, as its caller no longer wants the reply.
    pub(super) fn abort(mut self, reason: &str) {
        self.done = true;
        self.tell_cancelled(reason);
    }

    /// Takes the request back where it has not left, else cancels it. Its send must have been dropped.
    fn tell_cancelled(&self, reason: &str) {
        if let LegacyWire::Duplex(duplex) = &self.connection.wire
            && duplex.withdraw(&self.pending.departure)
        {
            return;
        }
        // Over HTTP the late reply would come on the request's own stream, which is closed.
        if self.pending.wants_task && self.connection.is_pipe() {
            self.connection.pending.given_up.note(self.pending.id, ());
        }
        let bytes = cancellation::of_request(self.pending.id, reason);
        match &self.connection.wire {
            LegacyWire::Duplex(duplex) => duplex.cancel(bytes),
            LegacyWire::Http(_) => {
                let connection = Arc::clone(&self.connection);
                let token = connection.farewells.token();
                self.connection.settings.tasks.spawn(async move {
                    connection.send(bytes).await;
                    drop(token);
                });
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.done {
            self.tell_cancelled("the caller has gone");
        }
        self.connection.pending.remove(self.pending.id);
        self.pending.over.cancel();
    }
}
