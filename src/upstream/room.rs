//! Room in the byte budget for the reply to a request of ours, while it is read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::activity::{Activity, Paused};
use crate::budget::{EXEMPT_BYTES, ReplyLease, ReplyRoom, ReplyShare};

/// How long a reply waits for room on a connection that several sessions share: what comes behind it waits too.
const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Ends when a reply has waited too long for room: never on a connection that serves one session.
pub(super) async fn too_late(serves_one_session: bool) {
    if serves_one_session {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(ROOM_WITHIN).await;
}

/// Whether replies to requests of `method` may go to other callers than the one who asks: those wait for the same
/// reply, and must not wait for that one's room.
pub(super) fn is_list(method: &str) -> bool {
    method.ends_with("/list")
}

/// What a reply has taken of its caller's share so far.
#[derive(Debug)]
pub(crate) struct Growing {
    lease: ReplyLease,
    /// Of the call, whose idle clock stands still while there is no room.
    activity: Arc<Activity>,
}

impl Growing {
    /// Nothing yet, of `room`.
    pub(super) fn of(room: ReplyRoom<'_>, activity: &Arc<Activity>) -> Self {
        Self {
            lease: room.share.lease(),
            activity: Arc::clone(activity),
        }
    }

    /// Takes what is missing for `len` bytes, and waits for it where there is no room.
    ///
    /// # Cancel safety
    /// Nothing more is taken.
    pub(super) async fn grow_to(&mut self, len: usize) {
        if len > EXEMPT_BYTES {
            self.activity.make_room(&mut self.lease, len).await;
        }
    }

    /// Gives back what `len` bytes do not need.
    pub(super) fn shrink_to(&mut self, len: usize) {
        self.lease.shrink_to(len);
    }

    /// The lease of a reply of `len` bytes that is whole.
    pub(super) fn whole(mut self, len: usize) -> ReplyLease {
        self.lease.shrink_to(len);
        self.lease
    }
}

/// The calls that run on a pipe.
pub(super) trait Calls: Send + Sync {
    /// The share of the one caller whose they are; `None` where several sessions share the pipe.
    fn share(&self) -> Option<ReplyShare>;

    /// Their idle clocks stand still until the guards are dropped.
    fn pause(&self) -> Vec<Paused>;
}

impl Calls for () {
    fn share(&self) -> Option<ReplyShare> {
        None
    }

    fn pause(&self) -> Vec<Paused> {
        Vec::new()
    }
}

/// Room for the message that is coming on a pipe, before it is known what it is.
pub(crate) struct Arriving {
    calls: Box<dyn Calls>,
    lease: Option<ReplyLease>,
}

impl fmt::Debug for Arriving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arriving").field(&self.lease).finish()
    }
}

impl Arriving {
    /// Nothing yet; for a message to one of `calls`.
    pub(super) fn new(calls: impl Calls + 'static) -> Self {
        Self {
            calls: Box::new(calls),
            lease: None,
        }
    }

    /// In nobody's share.
    pub(super) fn uncounted() -> Self {
        Self::new(())
    }

    /// Takes what is missing for `len` bytes, and waits for it where there is no room. A message that is small
    /// gives back what the one before it has left.
    ///
    /// # Cancel safety
    /// Nothing more is taken.
    pub(super) async fn grow_to(&mut self, len: usize) {
        if len <= EXEMPT_BYTES {
            self.lease = None;
            return;
        }
        if self.lease.is_none() {
            self.lease = self.calls.share().map(|share| share.lease());
        }
        if let Some(lease) = &mut self.lease
            && !lease.try_grow_to(len)
        {
            let _paused = self.calls.pause();
            lease.grow_to(len).await;
        }
    }

    /// The lease of a message of `len` bytes that is whole.
    pub(super) fn take(&mut self, len: usize) -> Option<ReplyLease> {
        let mut lease = self.lease.take()?;
        lease.shrink_to(len);
        Some(lease)
    }
}
