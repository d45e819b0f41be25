//! Leases for large replies of a child. A line names its call only once it is complete, so the lease moves to the call
//! then.

use std::sync::Weak;

use tokio_util::sync::CancellationToken;

use super::connection::ModernConnection;
use super::pipe::{ChildPipe, OpenPipe};
use crate::budget::{ReplyLease, ReplyShare};
use crate::protocol::Message;
use crate::upstream::deadlines::StoppedClocks;
use crate::upstream::error::LinkError;
use crate::upstream::room::{PipeCalls, too_late};

/// The calls that run on one child of a connection.
pub(super) struct ChildCalls {
    connection: Weak<ModernConnection>,
    child: Weak<OpenPipe>,
}

impl ChildCalls {
    pub(super) fn new(connection: &Weak<ModernConnection>, child: &Weak<OpenPipe>) -> Self {
        Self {
            connection: Weak::clone(connection),
            child: Weak::clone(child),
        }
    }
}

impl PipeCalls for ChildCalls {
    fn share(&self) -> Option<ReplyShare> {
        let connection = self.connection.upgrade()?;
        let requests = connection.pipe()?.requests();
        let mut requests = requests.iter().filter(|_| connection.settings.exclusive);
        let of_call = requests.find_map(|running| Some(running.reply_room()?.share.clone()));
        Some(of_call.unwrap_or_else(|| connection.settings.arriving_share()))
    }

    fn serves_one_session(&self) -> bool {
        self.connection
            .upgrade()
            .is_none_or(|it| it.settings.exclusive)
    }

    fn stop_clocks(&self) -> Option<StoppedClocks> {
        let (connection, child) = (self.connection.upgrade()?, self.child.upgrade()?);
        Some(connection.pipe()?.stop_clocks(&child))
    }
}

impl ChildPipe {
    /// Reserves budget for a reply of the child `from`, as a legacy connection does. `false` where the call has failed
    /// because its budget stayed full. `closed` is cancelled with the connection.
    pub(super) async fn has_room(
        &self,
        message: &Message,
        lease: Option<ReplyLease>,
        from: &OpenPipe,
        (exclusive, closed): (bool, &CancellationToken),
    ) -> bool {
        let Some(id) = message.number().filter(|_| message.method().is_none()) else {
            return true;
        };
        let Some((running, mut reply)) = self.take_reply(id, from) else {
            return true;
        };
        let Some(room) = running.reply_room() else {
            self.give_back(id, reply);
            return true;
        };
        let (mut lease, arrived) = room.lease_of(lease, exclusive);
        let len = message.bytes().len();
        // The child's output is not read during the wait, so the idle clocks of its other requests stop.
        let waits = !lease.try_grow_to(len);
        let _stopped = waits.then(|| self.stop_clocks(from));
        drop(arrived);
        let has_room = tokio::select! {
            biased;
            () = running.activity.make_room(&mut lease, len) => true,
            () = reply.closed() => true,
            () = closed.cancelled() => true,
            () = from.closed().cancelled() => true,
            () = too_late(exclusive) => false,
        };
        if !has_room {
            // Fails if the caller has gone meanwhile.
            drop(reply.send(Err(LinkError::no_room())));
            return false;
        }
        room.kept.keep(lease);
        self.give_back(id, reply);
        true
    }
}
