//! One request in flight, and the two interfaces that make every pairing work (DESIGN §3).
//!
//! A downstream adapter turns bytes into a [`Call`]; an upstream adapter answers it. Neither knows
//! the other: what a call may do toward its client stands in [`DownstreamLink`], one logical
//! connection to a server in [`UpstreamLink`].

mod burst;
mod capabilities;
mod deaf;
mod declared;
mod fitting;
mod notice;
mod principal;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

pub use burst::Burst;
pub use capabilities::{Capabilities, ClientCapabilities, MAX_DECLARED};
pub use deaf::Deaf;
pub use declared::{Declared, takes_tasks};
pub use notice::{Level, Notice, NoticeKind};
pub use principal::{BindingKey, OwnerKey, Principal};
pub use reply::Reply;

use crate::budget::ReplyRoom;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::protocol::{Message, Revision};
use crate::telemetry::trace::TraceContext;

/// One request from a client, with everything the steps below `downstream` need.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who asks.
    pub principal: Arc<Principal>,
    /// On which endpoint.
    pub endpoint: Arc<Endpoint>,
    /// In which revision.
    pub revision: Revision,
    /// What is asked.
    pub message: Message,
    /// The way back to the client.
    pub link: Arc<dyn DownstreamLink>,
    /// W3C trace context, ours as the parent of what goes upstream.
    pub trace: TraceContext,
    /// Cancelled when the client no longer wants an answer.
    pub cancel: CancellationToken,
    /// Answers and state returned by the client, if this call resumes a suspended one.
    pub resumption: Option<Arc<Resumption>>,
    /// The `Mcp-Param-*` headers of a modern request, unchanged (SPEC M-34); `None` if the carrier has no
    /// headers per request: the comparison is skipped.
    pub param_headers: Option<Vec<(HeaderName, HeaderValue)>>,
}

/// Answers to a suspended round, and the state carried with the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// Key → JSON text of the client's result; keys as the upstream chose them.
    pub answers: Vec<(String, Bytes)>,
    /// What [`Round::carry`] held.
    pub carry: CarriedState,
}

/// One question an upstream has for the client.
#[derive(Debug, Clone)]
pub struct Question {
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    /// JSON text of `params`; absent when the method takes none.
    pub params: Option<Bytes>,
}

/// Questions asked together.
#[derive(Debug, Clone)]
pub struct Round {
    /// Key → question; keys are unique in the round and chosen by the asking side.
    pub entries: Vec<(String, Question)>,
    /// How long the client may take, where the asking side does not wait for every answer.
    pub limit: Option<Duration>,
    /// What a stateless upstream wants back with the answers.
    pub carry: Option<CarriedState>,
}

/// The state of an upstream that keeps none, to be sealed into ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedState {
    /// Which upstream asked.
    pub upstream: Arc<str>,
    /// Exact `requestState` of the upstream.
    pub state: Option<Bytes>,
    /// Digest of the method and its salient parameters.
    pub digest: [u8; 32],
}

/// One answer: JSON text of a `result`, or of an `error` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The client answered.
    Result(Bytes),
    /// The client refused with a JSON-RPC error.
    Error(Bytes),
}

/// What became of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Answers by key: all, or those that arrived within the limit of the round.
    Answered(Vec<(String, Answer)>),
    /// The client must retry with answers; JSON text of the `input_required` result, which becomes the reply of
    /// the call.
    Suspended(Bytes),
    /// The client cannot be asked; names what is missing, or says why.
    CannotAsk(String),
    /// The client was asked, and there will be no answer.
    Unanswered,
}

/// What a call may do toward its client.
pub trait DownstreamLink: Send + Sync + std::fmt::Debug {
    /// Capabilities declared to upstreams: those of the client that are reachable, expressible and permitted
    /// (BRIDGING §1.2). Whether a call may ask at all is decided by [`ask`](Self::ask): not during a list
    /// request, for example (SPEC M-60).
    fn capabilities(&self) -> &ClientCapabilities;

    /// Hands a notification to the client's stream. Never waits; bounded by coalescing and
    /// counted drops.
    fn notify(&self, notice: Notice);

    /// Hands on progress that came at once; `token` is the client's (JSON text).
    fn progress(&self, token: &Arc<str>, burst: Burst) {
        burst.notices(token).for_each(|notice| self.notify(notice));
    }

    /// Asks the client.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions.
    fn ask(&self, round: Round) -> BoxFuture<'_, Asked>;

    /// The upstream closed the stream of the call and brings the rest when it is asked again: a client
    /// that can resume is told so the same way, after the time that the upstream named. Spec: SPEC
    /// T-27.
    fn hang_up(&self, retry: Option<Duration>) {
        if let Some(behind) = self.behind() {
            behind.hang_up(retry);
        }
    }

    /// The wrapped link, if this link is a decorator: default methods delegate to the wrapped link.
    fn behind(&self) -> Option<&dyn DownstreamLink> {
        None
    }

    /// The way to the client for what still comes when the call has its reply; nothing where there is
    /// none. Does not keep the client's session.
    fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
        self.behind()?.afterwards()
    }

    /// Why the client cancelled the call, if it did and said so (SPEC C-12).
    fn cancel_reason(&self) -> Option<&str> {
        self.behind()?.cancel_reason()
    }

    /// The minimum log level that the client wants for this call; `None` if the client set no level
    /// (SPEC C-21).
    fn level(&self) -> Option<Level> {
        self.behind()?.level()
    }

    /// The number of the call among all that sessions ever began; `None` where it is no call of a
    /// legacy session.
    fn number(&self) -> Option<u64> {
        self.behind()?.number()
    }

    /// Byte budget for replies to the call; `None` if they count in no caller's share, as for requests of the
    /// gateway itself.
    fn reply_room(&self) -> Option<ReplyRoom<'_>> {
        self.behind()?.reply_room()
    }

    /// Whether the client's time is kept here: each question then ends by itself, a while after the
    /// client was asked it for the last time.
    fn keeps_time(&self) -> bool {
        self.behind().is_some_and(DownstreamLink::keeps_time)
    }

    /// Told to which upstream the call goes, as soon as that is known.
    fn routed(&self, upstream: &Arc<str>) {
        if let Some(behind) = self.behind() {
            behind.routed(upstream);
        }
    }
}

/// One logical connection to an upstream.
pub trait UpstreamLink: Send + Sync + std::fmt::Debug {
    /// The configured name.
    fn upstream(&self) -> &Arc<str>;

    /// Sends `request` and waits for its reply. The id and the progress token of `request` are
    /// replaced by our own; everything else leaves as it is.
    ///
    /// # Errors
    /// A [`Fault`] of side `Upstream` when there is no reply. A JSON-RPC error is a reply.
    ///
    /// # Cancel safety
    /// Dropping the future tells the upstream that the request is cancelled.
    fn call<'a>(
        &'a self,
        request: &'a Message,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Reply, Fault>>;

    /// Sends a notification. Lost when the connection is not open: it will learn the state anew.
    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()>;

    /// Opens the connection if needed and tells what the upstream declared.
    ///
    /// # Errors
    /// A [`Fault`] when it cannot be opened.
    fn open(&self) -> BoxFuture<'_, Result<Arc<Declared>, Fault>>;

    /// Opens the stream on which the upstream announces changes, as a call would, so that a list that is
    /// asked for next cannot change unheard. For an open connection.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    fn prepare(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// What the upstream declared, while the connection is open.
    fn declared(&self) -> Option<Arc<Declared>>;

    /// Whether messages outside calls are wanted now: opens or closes the stream for them, where
    /// the carrier has one of its own.
    fn listen(&self, wanted: bool);

    /// Number of the current period without missed change notices of the upstream; unique per period. `None`
    /// while notices may be missed.
    fn hearing(&self) -> Option<u64> {
        None
    }

    /// Waits until such a period begins; `false` as soon as that is impossible. For an open connection with
    /// [`listen`](Self::listen) on.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    fn until_heard(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    /// Ends the link politely and for good: whoever had it is gone.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Where messages of an upstream go that belong to no call.
pub trait Intake: Send + Sync + std::fmt::Debug {
    /// A connection was opened: what the upstream declares now.
    fn opened(&self, upstream: &Arc<str>, declared: &Arc<Declared>);

    /// Changes of `lists` (`tools`, `prompts`, `resources`) are heard from now on, and were not just
    /// before: what was listed earlier may have changed unheard. `is_late` says that calls were sent
    /// before the first stream for such notices opened.
    fn heard(&self, upstream: &Arc<str>, lists: &[&'static str], is_late: bool);

    /// A notification that does not belong to a single call; `call` is the number ([`DownstreamLink::number`]) of
    /// the call whose stream carried the notification, or which the notification names.
    fn notice(&self, upstream: &Arc<str>, notice: Notice, call: Option<u64>);

    /// A task changed, according to `notifications/tasks/status` of the upstream; `call` is the number of the
    /// call that waits for the task.
    fn task_changed(&self, upstream: &Arc<str>, status: &Message, call: Option<u64>);

    /// A question that names no call.
    fn question(&self, upstream: &Arc<str>, question: Question) -> BoxFuture<'_, Asked>;

    /// Whether users of several owners are or were behind it: what names no call could be any user's.
    fn serves_several_owners(&self) -> bool {
        false
    }
}
