//! Leases for large replies of a child. A line names its call only once it is complete, so the lease moves to the call
//! then.

use std::sync::Weak;

use super::ModernServerLink;
use super::pipe::OpenPipe;
use crate::budget::{ReplyLease, ReplyShare};
use crate::protocol::Message;
use crate::upstream::deadlines::StoppedClocks;
use crate::upstream::error::LinkError;
use crate::upstream::room::{PipeCalls, too_late};

/// The calls that run on one child of a link.
pub(super) struct ChildCalls {
    link: Weak<ModernServerLink>,
    child: Weak<OpenPipe>,
}

impl ChildCalls {
    pub(super) fn new(link: &Weak<ModernServerLink>, child: &Weak<OpenPipe>) -> Self {
        Self {
            link: Weak::clone(link),
            child: Weak::clone(child),
        }
    }
}

impl PipeCalls for ChildCalls {
    fn share(&self) -> Option<ReplyShare> {
        let link = self.link.upgrade()?;
        let flights = link.pipe()?.flights();
        let mut flights = flights.iter().filter(|_| link.settings.exclusive);
        let of_call = flights.find_map(|flight| Some(flight.reply_room()?.share.clone()));
        Some(of_call.unwrap_or_else(|| link.settings.arriving_share()))
    }

    fn serves_one_session(&self) -> bool {
        self.link.upgrade().is_none_or(|it| it.settings.exclusive)
    }

    fn stop_clocks(&self) -> Option<StoppedClocks> {
        let (link, child) = (self.link.upgrade()?, self.child.upgrade()?);
        Some(link.pipe()?.stop_clocks(&child))
    }
}

impl ModernServerLink {
    /// Reserves budget for a reply of the child `from`, as a legacy connection does. `false` where the call has failed
    /// because its budget stayed full.
    pub(super) async fn has_room(
        &self,
        message: &Message,
        lease: Option<ReplyLease>,
        from: Option<&OpenPipe>,
    ) -> bool {
        let id = message.number().filter(|_| message.method().is_none());
        let (Some(pipe), Some(id), Some(from)) = (self.pipe(), id, from) else {
            return true;
        };
        let Some((flight, mut reply)) = pipe.take_reply(id, from) else {
            return true;
        };
        let Some(room) = flight.reply_room() else {
            pipe.give_back(id, reply);
            return true;
        };
        let (mut lease, arrived) = room.lease_of(lease, self.settings.exclusive);
        let len = message.bytes().len();
        // The child's output is not read during the wait, so the idle clocks of its other requests stop.
        let waits = !lease.try_grow_to(len);
        let _stopped = waits.then(|| pipe.stop_clocks(from));
        drop(arrived);
        let has_room = tokio::select! {
            biased;
            () = flight.activity.make_room(&mut lease, len) => true,
            () = reply.closed() => true,
            () = self.closed.cancelled() => true,
            () = from.closed().cancelled() => true,
            () = too_late(self.settings.exclusive) => false,
        };
        if !has_room {
            // Fails if the caller has gone meanwhile.
            drop(reply.send(Err(LinkError::no_room())));
            return false;
        }
        room.kept.keep(lease);
        pipe.give_back(id, reply);
        true
    }
}
