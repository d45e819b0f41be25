//! Whether an idle child still answers, and an upstream over HTTP in its session. Spec: MCP 2025-11-25, Ping.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::connection::LegacyConnection;
use super::pending_reply::PendingReply;
use super::wire::LegacyWire;
use crate::call::Reply;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

impl LegacyConnection {
    pub(super) async fn knock(self: &Arc<Self>) -> Result<Reply, LinkError> {
        let activity = Arc::new(CallActivity::new());
        let id = self.next_id();
        let (flight, reply) = self.take_off(PendingReply::new(id, &activity));
        let answer = self.exchange(flight.pending(), request(id), None, reply);
        let answer = answer.await;
        flight.landed();
        answer.map(Reply::Relayed)
    }

    pub(super) async fn ping(self: &Arc<Self>, limit: Duration) -> Option<Result<(), LinkError>> {
        let LegacyWire::Duplex(duplex) = &self.wire else {
            return None;
        };
        // The check must not postpone the idle stop.
        let _unused = duplex.unused()?;
        if !lock(&self.pending).is_empty() {
            return None;
        }
        let activity = Arc::new(CallActivity::new());
        let id = self.next_id();
        let (flight, reply) = self.take_off(PendingReply::new(id, &activity));
        let reply = async { reply.await.map_err(|_| duplex.lost())? };
        let asked = duplex.ask(request(id), &flight.pending().departure, reply);
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

fn request(id: u64) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into()
}
