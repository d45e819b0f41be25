//! Whether an idle child still answers. Spec: MCP 2025-11-25, Ping.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::LegacyLink;
use super::calls::Pending;
use super::connection::Connection;
use super::wire::Wire;
use crate::upstream::activity::Activity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

impl LegacyLink {
    /// Asks the child of the link, if one runs and no request waits for it. An error that it answers with is an
    /// answer.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request upstream.
    pub(in crate::upstream) async fn ping(&self, limit: Duration) -> Option<Result<(), LinkError>> {
        self.open_connection()?.ping(limit).await
    }
}

impl Connection {
    async fn ping(self: &Arc<Self>, limit: Duration) -> Option<Result<(), LinkError>> {
        let Wire::Duplex(duplex) = &self.wire else {
            return None;
        };
        // The check must not postpone the idle stop.
        let _unused = duplex.unused()?;
        if !lock(&self.pending).is_empty() {
            return None;
        }
        let activity = Arc::new(Activity::new());
        let id = self.next_id();
        let bytes: Bytes = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into();
        let (flight, reply) = self.take_off(Pending::new(id, &activity));
        let reply = async { reply.await.map_err(|_| duplex.lost())? };
        let asked = duplex.ask(bytes, &flight.pending().departure, reply);
        let found = if let Ok(answer) = timeout(limit, asked).await {
            flight.landed();
            answer.map(drop)
        } else {
            flight.abort("timeout");
            Err(duplex.timed_out(activity.started(), &self.settings))
        };
        // A child stopped as idle, or evicted, has not failed.
        let is_stopped = found.is_err() && duplex.closed().is_cancelled() && !duplex.broke_off();
        (!is_stopped).then_some(found)
    }
}
