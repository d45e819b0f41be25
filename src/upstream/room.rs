//! Room in the byte budget for the reply to a request of ours, while it is read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::deadlines::{CallActivity, StoppedClocks};
use crate::budget::{EXEMPT_BYTES, ReplyLease, ReplyRoom, ReplyShare};
use crate::process::ReadRoom;

/// How long a reply waits for room on a connection of several sessions: messages behind it wait too.
const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Resolves when a reply has waited too long for room: never on a connection of one session.
pub(super) async fn too_late(serves_one_session: bool) {
    if serves_one_session {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(ROOM_WITHIN).await;
}

/// Room that a reply has taken from its caller's share so far.
#[derive(Debug)]
pub(crate) struct GrowingReply {
    lease: ReplyLease,
    /// The activity of the call: its idle clock stops while there is no room.
    activity: Arc<CallActivity>,
}

impl GrowingReply {
    /// Room for a reply to a call; none is taken yet.
    pub(super) fn of(room: ReplyRoom<'_>, activity: &Arc<CallActivity>) -> Self {
        Self {
            lease: room.share.lease(),
            activity: Arc::clone(activity),
        }
    }

    /// Room in `share` for a message outside calls; none is taken yet.
    pub(super) fn outside_calls(share: &ReplyShare) -> Self {
        Self {
            lease: share.lease(),
            activity: Arc::new(CallActivity::new()),
        }
    }

    /// Takes the room missing for `len` bytes, waiting while there is none.
    ///
    /// # Cancel safety
    /// Nothing more is taken.
    pub(super) async fn grow_to(&mut self, len: usize) {
        if len > EXEMPT_BYTES {
            self.activity.make_room(&mut self.lease, len).await;
        }
    }

    /// Gives back the room beyond `len` bytes.
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
pub(super) trait PipeCalls: Send + Sync {
    /// The share of the caller of all calls, also while none runs; of the upstream where several sessions share the
    /// pipe.
    fn share(&self) -> Option<ReplyShare>;

    /// Whether the pipe may wait for room as long as it takes: no other session waits behind it.
    fn serves_one_session(&self) -> bool {
        true
    }

    /// Stops their idle clocks until the guard is dropped; `None` if the pipe is over.
    fn stop_clocks(&self) -> Option<StoppedClocks>;
}

impl PipeCalls for () {
    fn share(&self) -> Option<ReplyShare> {
        None
    }

    fn stop_clocks(&self) -> Option<StoppedClocks> {
        None
    }
}

/// Before there are calls: one share for all messages.
impl PipeCalls for ReplyShare {
    fn share(&self) -> Option<ReplyShare> {
        Some(self.clone())
    }

    fn stop_clocks(&self) -> Option<StoppedClocks> {
        None
    }
}

/// Room for the message arriving on a pipe, whose call is not known yet.
pub(crate) struct ArrivingMessage {
    calls: Box<dyn PipeCalls>,
    lease: Option<ReplyLease>,
    /// Whether the message has found no room for [`ROOM_WITHIN`], and comes without.
    is_late: bool,
}

impl fmt::Debug for ArrivingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ArrivingMessage").field(&self.lease).finish()
    }
}

impl ReadRoom for ArrivingMessage {
    fn grow_to(&mut self, len: usize) -> impl Future<Output = ()> + Send {
        Self::grow_to(self, len)
    }
}

impl ArrivingMessage {
    /// Room for a message to one of `calls`; none is taken yet.
    pub(super) fn new(calls: impl PipeCalls + 'static) -> Self {
        Self {
            calls: Box::new(calls),
            lease: None,
            is_late: false,
        }
    }

    /// A message that counts in no share.
    pub(super) fn uncounted() -> Self {
        Self::new(())
    }

    /// Takes the room missing for `len` bytes, waiting while there is none; where several sessions share the pipe, for
    /// [`ROOM_WITHIN`], then the message goes on without. A small message gives back the room left by the message before.
    ///
    /// # Cancel safety
    /// Nothing more is taken.
    pub(super) async fn grow_to(&mut self, len: usize) {
        if len <= EXEMPT_BYTES {
            self.lease = None;
            self.is_late = false;
            return;
        }
        if self.lease.is_none() {
            self.lease = self.calls.share().map(|share| share.lease());
        }
        if let Some(lease) = &mut self.lease
            && !lease.try_grow_to(len)
            && !self.is_late
        {
            let _stopped = self.calls.stop_clocks();
            let serves_one_session = self.calls.serves_one_session();
            tokio::select! {
                biased;
                () = lease.grow_to(len) => {}
                () = too_late(serves_one_session) => self.is_late = true,
            }
        }
    }

    /// The lease of a message of `len` bytes that is whole.
    pub(super) fn take(&mut self, len: usize) -> Option<ReplyLease> {
        self.is_late = false;
        let mut lease = self.lease.take()?;
        lease.shrink_to(len);
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::ByteBudget;
    use crate::call::Principal;
    use crate::upstream::deadlines::PipeClocks;

    const MIB: usize = 1 << 20;
    const IDLE: Duration = Duration::from_mins(1);
    const TOTAL: Duration = Duration::from_mins(10);

    /// The share of one caller, used up: two replies have it, and one has the reserve.
    async fn used_up() -> (ReplyShare, Vec<ReplyLease>) {
        let alice = Principal::new("issuer", "alice", "", Vec::new(), None);
        let budget = ByteBudget::of_replies(16 * MIB, 4 * MIB, MIB);
        let share = ReplyShare::new(&budget, alice.owner().into());
        let mut leases = Vec::new();
        for _ in 0..3 {
            let mut lease = share.lease();
            lease.grow_to(MIB).await;
            leases.push(lease);
        }
        (share, leases)
    }

    /// How long a call of one silent upstream lasts beside `waiting`, which finds room after five times its
    /// `idle_timeout`.
    async fn lasts(
        activity: &CallActivity,
        leases: Vec<ReplyLease>,
        waiting: impl Future<Output = ()>,
    ) -> Duration {
        let freeing = async {
            tokio::time::sleep(5 * IDLE).await;
            drop(leases);
        };
        let begun = tokio::time::Instant::now();
        let expiring = async {
            activity.expired(IDLE, TOTAL).await;
            begun.elapsed()
        };
        tokio::join!(expiring, waiting, freeing).0
    }

    // Spec: SPEC U-12: the upstream has answered.
    #[tokio::test(start_paused = true)]
    async fn wait_for_room_stops_the_idle_clock() {
        let (share, leases) = used_up().await;
        let activity = Arc::new(CallActivity::new());
        let mut lease = share.lease();
        let waiting = async {
            activity.make_room(&mut lease, MIB).await;
            assert!(!activity.awaits_room());
        };
        assert_eq!(lasts(&activity, leases, waiting).await, 6 * IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn reply_whose_wait_is_given_up_is_told_apart() {
        let (share, _leases) = used_up().await;
        let activity = Arc::new(CallActivity::new());
        let mut lease = share.lease();
        let waiting = tokio::time::timeout(IDLE, activity.make_room(&mut lease, MIB));
        assert!(waiting.await.is_err());
        assert!(activity.awaits_room());
        assert!(!activity.is_paused());
    }

    /// The one call on a pipe.
    struct Only(Arc<CallActivity>, ReplyShare, Arc<PipeClocks>);

    impl PipeCalls for Only {
        fn share(&self) -> Option<ReplyShare> {
            Some(self.1.clone())
        }

        fn stop_clocks(&self) -> Option<StoppedClocks> {
            Some(self.2.stop(|| [Arc::clone(&self.0)]))
        }
    }

    // Spec: SPEC U-12: it is not known yet whose reply the pipe holds.
    #[tokio::test(start_paused = true)]
    async fn pipe_that_waits_stops_the_idle_clocks() {
        let (share, leases) = used_up().await;
        let activity = Arc::new(CallActivity::new());
        let calls = Only(Arc::clone(&activity), share, Arc::default());
        let mut room = ArrivingMessage::new(calls);
        let lasted = lasts(&activity, leases, room.grow_to(MIB)).await;
        assert_eq!(lasted, 6 * IDLE);
        assert!(room.take(MIB).is_some());
    }

    // Its reply waits behind the message that is not read.
    #[tokio::test(start_paused = true)]
    async fn call_sent_while_the_pipe_waits_has_its_idle_clock_stopped() {
        let (share, leases) = used_up().await;
        let clocks = Arc::<PipeClocks>::default();
        let before = Arc::new(CallActivity::new());
        let mut room = ArrivingMessage::new(Only(before, share, Arc::clone(&clocks)));
        let sent = Arc::new(CallActivity::new());
        let waiting = async {
            let mut reading = std::pin::pin!(room.grow_to(MIB));
            assert!(futures_util::poll!(reading.as_mut()).is_pending());
            clocks.begin(&sent);
            reading.await;
        };
        assert_eq!(lasts(&sent, leases, waiting).await, 6 * IDLE);
        assert!(!sent.is_paused());
        clocks.begin(&sent);
        assert!(!sent.is_paused(), "the pipe is read");
    }

    /// A pipe of several sessions.
    struct Shared(ReplyShare);

    impl PipeCalls for Shared {
        fn share(&self) -> Option<ReplyShare> {
            Some(self.0.clone())
        }

        fn serves_one_session(&self) -> bool {
            false
        }

        fn stop_clocks(&self) -> Option<StoppedClocks> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shared_pipe_waits_once_for_each_message_without_room() {
        let (share, _leases) = used_up().await;
        let mut room = ArrivingMessage::new(Shared(share));
        let begun = tokio::time::Instant::now();
        for messages in 1..3 {
            for len in [MIB, 2 * MIB, 4 * MIB] {
                room.grow_to(len).await;
            }
            assert_eq!(begun.elapsed(), ROOM_WITHIN * messages);
            drop(room.take(4 * MIB));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_shared_connection_has_replies_wait_briefly() {
        let begun = tokio::time::Instant::now();
        assert!(tokio::time::timeout(TOTAL, too_late(false)).await.is_ok());
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        assert!(tokio::time::timeout(TOTAL, too_late(true)).await.is_err());
    }
}
