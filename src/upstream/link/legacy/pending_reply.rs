//! `PendingReply`: a request of ours on a connection whose reply has not come yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::budget::{ReplyLease, ReplyRoom};
use crate::call::{Call, CallerAccess, DownstreamLink};
use crate::protocol::links::LONGEST_ELICITATION_ID;
use crate::protocol::{Message, methods};
use crate::upstream::carrier::duplex::DepartureFlag;
use crate::upstream::deadlines::CallActivity;
use crate::upstream::error::LinkError;
use crate::upstream::lock;

/// Elicitations by URL remembered per call.
const MOST_VISITS: usize = 16;

/// A request of ours without its reply.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts that do not depend on each other"
)]
pub(super) struct PendingReply {
    pub(super) id: u64,
    /// The client's link; none for our own requests.
    pub(super) link: Option<Arc<dyn DownstreamLink>>,
    /// The caller, where callers' tokens are exchanged.
    pub(super) caller: Option<Arc<CallerAccess>>,
    /// JSON text of the client's progress token.
    pub(super) progress: Option<Arc<str>>,
    /// The task whose result is requested: its questions belong to this call.
    pub(super) task: Option<String>,
    /// Whether the call is to become a task.
    pub(super) wants_task: bool,
    /// Whether the reply may go to other callers as well.
    pub(super) is_list: bool,
    /// Whether the client may be asked during the call.
    pub(super) may_be_asked: bool,
    /// Whether a message without a call may belong to this call.
    pub(super) is_talked_of: bool,
    /// The elicitations by URL that the upstream sent for the call, by their ids.
    pub(super) url_elicitations: Mutex<Vec<String>>,
    pub(super) activity: Arc<CallActivity>,
    /// Progress of the send to a pipe or a socket.
    pub(super) departure: DepartureFlag,
    /// Cancelled at the end of the request, which withdraws its questions.
    pub(super) over: CancellationToken,
    /// Whether its reply is there.
    pub(super) landed: AtomicBool,
    pub(super) reply: Mutex<Option<oneshot::Sender<Result<Message, LinkError>>>>,
}

/// Receives the reply to one of our requests, if any.
pub(super) type ReplySlot = oneshot::Receiver<Result<Message, LinkError>>;

impl PendingReply {
    /// A request of our own.
    pub(super) fn new(id: u64, activity: &Arc<CallActivity>) -> Self {
        Self {
            id,
            link: None,
            caller: None,
            progress: None,
            task: None,
            wants_task: false,
            is_list: false,
            may_be_asked: false,
            is_talked_of: true,
            url_elicitations: Mutex::default(),
            activity: Arc::clone(activity),
            departure: DepartureFlag::default(),
            over: CancellationToken::new(),
            landed: AtomicBool::new(false),
            reply: Mutex::default(),
        }
    }

    /// See [`DownstreamLink::number`].
    pub(super) fn number(&self) -> Option<u64> {
        self.link.as_ref()?.number()
    }

    /// Whether it is over with its reply, and not for its caller.
    pub(super) fn has_landed(&self) -> bool {
        self.landed.load(Ordering::Relaxed)
    }

    /// Keeps what its reply has taken, until its call is answered.
    pub(super) fn keep(&self, lease: ReplyLease) {
        if let Some(room) = self.reply_room() {
            room.kept.keep(lease);
        }
    }

    /// The share in which the reply takes room; `None` for a list, which other callers may wait for too.
    pub(super) fn reply_room(&self) -> Option<ReplyRoom<'_>> {
        self.link.as_ref().filter(|_| !self.is_list)?.reply_room()
    }

    /// Notes an elicitation by its id. Only the first ones are remembered.
    pub(super) fn note_asked(&self, elicitation: &str) {
        let mut url_elicitations = lock(&self.url_elicitations);
        if url_elicitations.len() < MOST_VISITS && elicitation.len() <= LONGEST_ELICITATION_ID {
            url_elicitations.push(elicitation.to_owned());
        }
    }

    /// Whether an elicitation was sent for this call.
    pub(super) fn has_asked(&self, elicitation: &str) -> bool {
        lock(&self.url_elicitations)
            .iter()
            .any(|url_elicitation| url_elicitation == elicitation)
    }
}

/// Whether the upstream may ask the client of a call while it runs: questions of a task come with the request for its
/// result.
pub(super) fn may_be_asked(request: &Message, call: &Call) -> bool {
    let asks = |method| methods::may_ask(method) || method == "tasks/result";
    request.method().is_some_and(asks) && call.link.capabilities().allow_any()
}
