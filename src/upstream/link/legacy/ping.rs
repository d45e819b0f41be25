//! Whether an idle child still answers, and an upstream over HTTP in its session. Spec: MCP 2025-11-25, Ping.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::connection::LegacyConnection;
use super::pending_reply::PendingReply;
use super::wire::LegacyWire;
use crate::call::Reply;
use crate::protocol::rpc;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;

/// Asks the upstream of a connection for a sign of life.
#[derive(Debug)]
pub(super) struct Ping<'a> {
    connection: &'a Arc<LegacyConnection>,
}

impl<'a> Ping<'a> {
    /// One over `connection`.
    pub(super) fn over(connection: &'a Arc<LegacyConnection>) -> Self {
        Self { connection }
    }

    /// Sends it beside the calls of a session, and waits as long as the caller does.
    pub(super) async fn in_session(&self) -> Result<Reply, LinkError> {
        let activity = Arc::new(CallActivity::new());
        let id = self.connection.pending.next_id();
        let (flight, reply) = self.connection.take_off(PendingReply::new(id, &activity));
        let answer = self
            .connection
            .exchange(flight.pending(), request(id), None, reply);
        let answer = answer.await;
        flight.landed();
        answer.map(Reply::Relayed)
    }

    /// Sends it to an idle child; `None` where it is not idle, or was stopped meanwhile.
    pub(super) async fn of_child(&self, limit: Duration) -> Option<Result<(), LinkError>> {
        let LegacyWire::Duplex(duplex) = &self.connection.wire else {
            return None;
        };
        // The check must not postpone the idle stop.
        let _unused = duplex.unused()?;
        if !self.connection.pending.is_empty() {
            return None;
        }
        let activity = Arc::new(CallActivity::new());
        let id = self.connection.pending.next_id();
        let (flight, reply) = self.connection.take_off(PendingReply::new(id, &activity));
        let reply = async { reply.await.map_err(|_| duplex.lost())? };
        let asked = duplex.ask(request(id), &flight.pending().departure, reply);
        let found = if let Ok(answer) = timeout(limit, asked).await {
            flight.landed();
            answer.map(drop)
        } else {
            flight.abort("timeout");
            let isolation = self.connection.settings.upstream.isolation;
            Err(duplex.timed_out(activity.started(), isolation))
        };
        // A child stopped as idle, or evicted, has not failed.
        let is_stopped = found.is_err() && duplex.closed().is_cancelled() && !duplex.broke_off();
        (!is_stopped).then_some(found)
    }
}

fn request(id: u64) -> Bytes {
    rpc::request(id, "ping", None).into()
}
