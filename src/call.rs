//! One request in flight, and the two interfaces that make every pairing work (DESIGN §3).
//!
//! A downstream adapter turns bytes into a [`Call`]; an upstream adapter answers it. Neither knows
//! the other: [`DownstreamLink`] is the way of a call back to its client, [`UpstreamLink`] one logical
//! connection to a server.

mod caller_access;
mod capabilities;
mod declared;
mod keys;
mod notice;
mod null_intake;
mod principal;
mod progress_batch;
mod reply;
#[cfg(test)]
pub(crate) mod samples;
mod upstream_continuation;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;

pub use caller_access::{CallerAccess, CallerToken};
pub use capabilities::{Capabilities, ClientCapabilities, MAX_DECLARED};
pub use declared::{ServerDeclaration, takes_tasks};
pub use keys::{AccessKey, BindingKey, OwnerKey};
pub use notice::{LogLevel, Notice, NoticeArrival, NoticeKind};
pub use null_intake::NullIntake;
pub use principal::Principal;
pub use progress_batch::ProgressBatch;
pub use reply::Reply;
pub use upstream_continuation::{AdoptedLink, UpstreamContinuation};

use crate::budget::{ReplyRoom, ReplyShare};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::protocol::{Message, Revision, json};
use crate::telemetry::trace::TraceContext;

/// One request from a client, with everything the steps below `downstream` need.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller.
    pub principal: Arc<Principal>,
    /// The endpoint called.
    pub endpoint: Arc<Endpoint>,
    /// The client's revision.
    pub revision: Revision,
    /// The request.
    pub message: Message,
    /// The way back to the client.
    pub link: Arc<dyn DownstreamLink>,
    /// W3C trace context; the gateway's span is the parent of requests to upstreams.
    pub trace: TraceContext,
    /// Cancelled when the client no longer wants an answer.
    pub cancel: CancellationToken,
    /// Answers and state returned by the client, if this call resumes a suspended one.
    pub resumption: Option<Arc<ResumedInput>>,
    /// The `Mcp-Param-*` headers of a modern request, unchanged (SPEC M-34); `None` if the carrier has no
    /// headers per request: the comparison is skipped.
    pub param_headers: Option<Vec<(HeaderName, HeaderValue)>>,
}

/// Answers to a suspended round, and the state carried with the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumedInput {
    /// Key → JSON text of the client's result; keys as the upstream chose them.
    pub answers: Vec<(String, Bytes)>,
    /// The value of [`InputRequests::carry`].
    pub carry: CarriedState,
}

/// One question an upstream has for the client.
#[derive(Debug, Clone)]
pub struct InputRequest {
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: String,
    /// JSON text of `params`; absent when the method takes none.
    pub params: Option<Bytes>,
}

impl InputRequest {
    /// JSON text of its parameters.
    #[must_use]
    pub fn params_text(&self) -> &str {
        let params = self.params.as_deref().map(std::str::from_utf8);
        params.and_then(Result::ok).unwrap_or("{}")
    }
}

/// Questions asked together.
#[derive(Debug, Clone)]
pub struct InputRequests {
    /// Key → question; keys are unique in the round and chosen by the asking side.
    pub entries: Vec<(String, InputRequest)>,
    /// Time limit, if the asking side does not wait for every answer.
    pub limit: Option<Duration>,
    /// State to return to a stateless upstream with the answers.
    pub carry: Option<CarriedState>,
}

/// The state of an upstream that keeps none, to be sealed into ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedState {
    /// The upstream that asked.
    pub upstream: Arc<str>,
    /// Exact `requestState` of the upstream.
    pub state: Option<Bytes>,
    /// Digest of the method and its salient parameters.
    pub digest: [u8; 32],
}

/// One answer: JSON text of a `result`, or of an `error` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputResponse {
    /// The client answered.
    Result(Bytes),
    /// The client refused with a JSON-RPC error.
    Error(Bytes),
}

impl InputResponse {
    /// Whether the `action` of the answer is `accept`.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        let Self::Result(result) = self else {
            return false;
        };
        let text = std::str::from_utf8(result).unwrap_or_default();
        json::member(text, "action") == Some("\"accept\"")
    }
}

/// Result of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputOutcome {
    /// Answers by key: all, or those that arrived within the limit of the round.
    Answered(Vec<(String, InputResponse)>),
    /// The client must retry with answers; JSON text of the `input_required` result, which becomes the reply of
    /// the call.
    Suspended(Bytes),
    /// The client cannot be asked; names what is missing, or says why.
    CannotAsk(String),
    /// The client was asked, and there will be no answer.
    Unanswered,
}

/// The way of a call back to its client.
pub trait DownstreamLink: Send + Sync + std::fmt::Debug {
    /// Capabilities declared to upstreams: those of the client that are reachable, expressible and permitted
    /// (BRIDGING §1.2). Whether a call may ask at all is decided by [`ask`](Self::ask): not during a list
    /// request, for example (SPEC M-60).
    fn capabilities(&self) -> &ClientCapabilities {
        let behind = self.behind().map(DownstreamLink::capabilities);
        behind.unwrap_or(&capabilities::NONE)
    }

    /// Hands a notification to the client's stream. Never waits; bounded by coalescing and
    /// counted drops.
    fn notify(&self, notice: Notice) {
        if let Some(behind) = self.behind() {
            behind.notify(notice);
        }
    }

    /// Hands on a burst of progress; `token` is the client's (JSON text).
    fn progress(&self, token: &Arc<str>, burst: ProgressBatch) {
        burst.notices(token).for_each(|notice| self.notify(notice));
    }

    /// Asks the client.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the questions.
    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        match self.behind() {
            Some(behind) => behind.ask(round),
            None => Box::pin(std::future::ready(InputOutcome::CannotAsk(
                "nobody stands behind this request".to_owned(),
            ))),
        }
    }

    /// The upstream closed the call's stream and will continue on a resumed one: a client that can resume
    /// gets its stream closed the same way, with the upstream's `retry` time. Spec: SPEC T-27.
    fn hang_up(&self, retry: Option<Duration>) {
        if let Some(behind) = self.behind() {
            behind.hang_up(retry);
        }
    }

    /// The wrapped link, if this link is a decorator: default methods delegate to the wrapped link.
    fn behind(&self) -> Option<&dyn DownstreamLink> {
        None
    }

    /// The link for messages after the call's reply; `None` without one. Does not keep the client's
    /// session alive.
    fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
        self.behind()?.afterwards()
    }

    /// Why the client cancelled the call, if it did and said so (SPEC C-12).
    fn cancel_reason(&self) -> Option<&str> {
        self.behind()?.cancel_reason()
    }

    /// The minimum log level that the client wants for this call; `None` if the client set no level
    /// (SPEC C-21).
    fn level(&self) -> Option<LogLevel> {
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

    /// Whether this link times questions out: each expires a while after the client was last asked it.
    fn keeps_time(&self) -> bool {
        self.behind().is_some_and(DownstreamLink::keeps_time)
    }

    /// Records the call's upstream, once routed.
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

    /// Sends a notification. Dropped when the connection is not open: opening it transfers the state again.
    fn notify(&self, message: Bytes) -> BoxFuture<'_, ()>;

    /// Opens the connection if needed and returns the upstream's declaration.
    ///
    /// # Errors
    /// A [`Fault`] when it cannot be opened.
    fn open(&self) -> BoxFuture<'_, Result<Arc<ServerDeclaration>, Fault>>;

    /// Opens the stream for change notices, as a call would, so that no change of a list requested next is
    /// missed. For an open connection.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    fn prepare(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The declaration of the upstream, while the connection is open.
    fn declared(&self) -> Option<Arc<ServerDeclaration>>;

    /// The upstream's session, where another process could continue it: over HTTP, and no other session's.
    fn continuation(&self) -> Option<UpstreamContinuation> {
        None
    }

    /// Whether the open connection ends with this process: a child, an HTTP+SSE stream or a socket.
    fn ends_with_process(&self) -> bool {
        false
    }

    /// Whether messages outside calls are wanted now: opens or closes the stream for them, where
    /// the carrier has one of its own.
    fn listen(&self, wanted: bool);

    /// Number of the current epoch in which no change notice was missed; every epoch has a new
    /// number. `None` while notices may be missed.
    fn notice_feed(&self) -> Option<u64> {
        None
    }

    /// Waits for such an epoch to begin; `false` as soon as none can. For an open connection that is
    /// listened to.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    fn wait_until_live(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    /// Another replica owns the session now and continues the upstream's session. From here on nothing is sent to the
    /// upstream, not even when the link is closed. To be called before [`close`](Self::close).
    fn disown(&self) {}

    /// Closes the link for good, telling the upstream; the session that owned the link is gone.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The receiver of upstream messages outside calls.
pub trait NoticeIntake: Send + Sync + std::fmt::Debug {
    /// A connection was opened: what the upstream declares now.
    fn opened(&self, upstream: &Arc<str>, declared: &Arc<ServerDeclaration>);

    /// Change notices of `lists` (`tools`, `prompts`, `resources`) are received from now on, and were not just
    /// before: changes since an earlier listing may have been missed. `is_late` if calls were sent before the
    /// first stream for change notices opened. Told every few minutes where no stream opens again.
    fn heard(&self, upstream: &Arc<str>, lists: &[&'static str], is_late: bool);

    /// A notification that does not belong to a single call.
    fn notice(&self, upstream: &Arc<str>, notice: Notice, arrival: NoticeArrival);

    /// The upstream itself said that one of its lists (`tools`, `prompts`, `resources`) has changed: a notice of it comes
    /// as well. Other replicas may not hear the notice.
    fn list_changed(&self, _upstream: &Arc<str>, _what: &'static str) {}

    /// A task changed, according to `notifications/tasks/status` of the upstream; `call` is the number of the
    /// call that waits for the task.
    fn task_changed(&self, upstream: &Arc<str>, status: &Message, call: Option<u64>);

    /// A question that names no call.
    fn question(&self, upstream: &Arc<str>, question: InputRequest) -> BoxFuture<'_, InputOutcome>;

    /// Whether sessions of several owners are or were attached, so that a message without a call could be
    /// any owner's.
    fn serves_several_owners(&self) -> bool {
        false
    }

    /// The byte budget for messages outside calls while they are read; `None` if they count in no caller's share.
    fn reply_share(&self) -> Option<ReplyShare> {
        None
    }
}
