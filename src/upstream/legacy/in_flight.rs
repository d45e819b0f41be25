//! A request that is on its way: whoever drops it before its reply tells the upstream.

use std::sync::Arc;

use bytes::Bytes;

use super::connection::Connection;
use super::wire::Wire;
use crate::protocol::json;
use crate::upstream::lock;

/// Tells the upstream that a request is cancelled unless it landed (SPEC C-10, C-11).
#[derive(Debug)]
pub(super) struct InFlight {
    connection: Arc<Connection>,
    id: u64,
    done: bool,
}

impl InFlight {
    /// Request `id`, which stands among the pending ones of `connection` until this is dropped.
    pub(super) fn new(connection: Arc<Connection>, id: u64) -> Self {
        Self {
            connection,
            id,
            done: false,
        }
    }

    /// Its reply is there.
    pub(super) fn landed(mut self) {
        self.done = true;
    }

    /// Nobody wants its reply any more.
    pub(super) fn abort(mut self, reason: &str) {
        self.done = true;
        self.tell_cancelled(reason);
    }

    fn tell_cancelled(&self, reason: &str) {
        let reason = json::quote(reason);
        let bytes: Bytes = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":{reason}}}}}"#,
            self.id
        )
        .into();
        match &self.connection.wire {
            Wire::Duplex(duplex) => drop(duplex.try_send(bytes)),
            Wire::Http(_) => {
                let connection = Arc::clone(&self.connection);
                self.connection.settings.tasks.spawn(async move {
                    connection.send(bytes).await;
                });
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(pending) = lock(&self.connection.pending).remove(&self.id) {
            pending.over.cancel();
        }
        if !self.done {
            self.tell_cancelled("the caller has gone");
        }
    }
}
