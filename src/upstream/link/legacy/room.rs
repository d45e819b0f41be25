//! Room for large replies on a pipe, whose messages name their call only once complete.

use std::sync::Weak;

use super::connection::LegacyConnection;
use super::pending_calls::PendingCalls;
use super::wire::LegacyWire;
use crate::budget::{EXEMPT_BYTES, ReplyLease, ReplyShare};
use crate::protocol::Message;
use crate::upstream::deadlines::StoppedClocks;
use crate::upstream::error::LinkError;
use crate::upstream::room::{PipeCalls, too_late};

impl PipeCalls for Weak<LegacyConnection> {
    fn share(&self) -> Option<ReplyShare> {
        let connection = self.upgrade()?;
        let settings = &connection.settings;
        let of_call = settings
            .exclusive
            .then(|| connection.pending.reply_share())
            .flatten();
        Some(of_call.unwrap_or_else(|| settings.arriving_share()))
    }

    fn serves_one_session(&self) -> bool {
        self.upgrade().is_none_or(|it| it.settings.exclusive)
    }

    fn stop_clocks(&self) -> Option<StoppedClocks> {
        Some(self.upgrade()?.pending.stop_clocks())
    }
}

impl PendingCalls {
    /// Makes room for a message of a pipe that is a reply to a call: waits as long as the call does, and at most 10 s
    /// where the pipe serves several sessions. Then the call fails, and the message is to be dropped: `false`. A
    /// `lease` is the room taken while the message was read; a shared pipe's is the upstream's, and given back once
    /// the caller's share has room.
    pub(super) async fn has_room(
        &self,
        message: &Message,
        lease: Option<ReplyLease>,
        exclusive: bool,
        wire: &LegacyWire,
    ) -> bool {
        let id = message.number().filter(|_| message.method().is_none());
        let Some(id) = id else { return true };
        let Some(call) = self.get(id) else {
            return true;
        };
        let Some(room) = call.reply_room() else {
            return true;
        };
        let (mut lease, arrived) = room.lease_of(lease, exclusive);
        let len = message.bytes().len();
        // Later messages are not read meanwhile.
        let _stopped = (!lease.try_grow_to(len)).then(|| self.stop_clocks());
        drop(arrived);
        tokio::select! {
            biased;
            () = call.activity.make_room(&mut lease, len) => {}
            () = call.over.cancelled() => return true,
            () = wire.until_closed() => return true,
            () = too_late(exclusive) => {
                self.fail(id, LinkError::no_room());
                return false;
            }
        }
        room.kept.keep(lease);
        true
    }

    /// Counts a large reply that came over HTTP on another stream than that of its call, as on the GET stream. The
    /// stream does not wait for one call: where there is no room now, the call fails, and the reply is to be
    /// dropped: `false`.
    pub(super) fn counts_stray(&self, id: u64, len: usize) -> bool {
        if len <= EXEMPT_BYTES {
            return true;
        }
        let Some(call) = self.get(id) else {
            return true;
        };
        let Some(room) = call.reply_room() else {
            return true;
        };
        let mut lease = room.share.lease();
        if !lease.try_grow_to(len) {
            self.fail(id, LinkError::no_room());
            return false;
        }
        room.kept.keep(lease);
        true
    }
}
