//! `LegacyClientLink`: the downstream link of a running call whose client is legacy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::questions::SentRequest;
use super::{EventStream, NoticeSource, Session, lock};
use crate::budget::{KeptLeases, ReplyRoom};
use crate::call::{
    ClientCapabilities, DownstreamLink, InputOutcome, InputRequests, LogLevel, Notice,
    ProgressBatch,
};
use crate::protocol::RequestId;

/// Orders calls and streams by age, over all sessions.
static ORDER: AtomicU64 = AtomicU64::new(0);

/// A running call of a session. Its event stream exists from the first message that is not the
/// reply, or when the exchange decides not to wait any longer (SPEC T-13).
#[derive(Debug)]
pub struct LegacyClientLink {
    session: Arc<Session>,
    id: RequestId,
    response_stream: Arc<ResponseStream>,
    /// Whether the HTTP exchange of the call is still open.
    awaited: AtomicBool,
    order: u64,
    /// The upstream that has the call.
    upstream: OnceLock<Arc<str>>,
    cancel: CancellationToken,
    /// Whether the call was cancelled by the end of this process.
    is_cut_off: AtomicBool,
    reason: OnceLock<String>,
    /// The request, where another replica may make the call again.
    request: OnceLock<Bytes>,
    /// Leases of the call's replies on the caller's share.
    leases: KeptLeases,
}

/// Where the messages of an exchange go; the calls of a JSON-RPC array share one.
#[derive(Debug, Default)]
pub struct ResponseStream {
    stream: OnceLock<Arc<EventStream>>,
    opened: Mutex<Option<Waker>>,
    /// Whether the stream carries more than these calls.
    is_shared: bool,
    /// Ids of the calls, where they are several.
    array: OnceLock<Box<[RequestId]>>,
}

impl ResponseStream {
    /// An open response stream: all messages of the call go on `stream`.
    #[must_use]
    pub fn onto(stream: Arc<EventStream>) -> Arc<Self> {
        Arc::new(Self {
            stream: OnceLock::from(stream),
            is_shared: true,
            ..Self::default()
        })
    }

    /// Notes the `calls` of a JSON-RPC array, so that another replica can end each of them if this one is lost. Must come
    /// before the stream opens, which the first poll of a call may do.
    pub fn note_array(&self, calls: Box<[RequestId]>) {
        drop(self.array.set(calls));
    }

    /// Whether several calls share the stream.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The response stream of a call that is made again: it has begun as `stream`.
    #[must_use]
    pub fn begun(stream: Arc<EventStream>) -> Arc<Self> {
        Arc::new(Self {
            stream: OnceLock::from(stream),
            ..Self::default()
        })
    }
}

impl LegacyClientLink {
    pub(super) fn new(
        session: Arc<Session>,
        id: RequestId,
        response_stream: Arc<ResponseStream>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            id,
            response_stream,
            awaited: AtomicBool::new(true),
            order: ORDER.fetch_add(1, Ordering::Relaxed),
            upstream: OnceLock::new(),
            cancel: CancellationToken::new(),
            is_cut_off: AtomicBool::new(false),
            reason: OnceLock::new(),
            request: OnceLock::new(),
            leases: KeptLeases::default(),
        })
    }

    /// Keeps the request of the call, so that another replica can make the call again if this one is lost. Before the call
    /// has a stream.
    pub fn keep_request(&self, request: Bytes) {
        drop(self.request.set(request));
    }

    /// The session of the call.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The call's stream; from now on it is answered as a stream of events.
    #[must_use]
    pub fn stream(&self) -> Arc<EventStream> {
        Arc::clone(self.open())
    }

    fn open(&self) -> &Arc<EventStream> {
        if let Some(stream) = self.response_stream.stream.get() {
            return stream;
        }
        let stream = self.response_stream.stream.get_or_init(|| {
            if let Some(ids) = self.response_stream.array.get() {
                // Its calls are not made again: the first reply would end the stream.
                return self.session.new_stream(ids, None);
            }
            let id = std::slice::from_ref(&self.id);
            self.session.new_stream(id, self.request.get())
        });
        let waker = {
            let mut opened = lock(&self.response_stream.opened);
            // Under the lock, which `abandon` takes too: either this sees `awaited` cleared, or `abandon` sees the
            // stream, so `settle` is always called.
            if !self.awaited.load(Ordering::Relaxed) {
                stream.settle();
            }
            opened.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        stream
    }

    /// Ready once the call has a stream.
    pub fn poll_opened(&self, cx: &mut Context<'_>) -> Poll<Arc<EventStream>> {
        let mut opened = lock(&self.response_stream.opened);
        if let Some(stream) = self.response_stream.stream.get() {
            return Poll::Ready(Arc::clone(stream));
        }
        *opened = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Clears the waker of [`poll_opened`](Self::poll_opened) until its next poll. For a caller that is
    /// about to do work that may open the stream, and polls afterwards anyway.
    pub fn rest(&self) {
        *lock(&self.response_stream.opened) = None;
    }

    /// The stream, when there is one.
    #[must_use]
    pub fn opened(&self) -> Option<&Arc<EventStream>> {
        self.response_stream.stream.get()
    }

    /// Whether the call's messages have a reader: the call's exchange, or one that resumed the stream.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
            || self
                .response_stream
                .stream
                .get()
                .is_some_and(|stream| stream.is_attached())
    }

    /// The client has closed the exchange of the call; the call runs on.
    pub fn abandon(&self) {
        let _opened = lock(&self.response_stream.opened);
        self.awaited.store(false, Ordering::Relaxed);
        if let Some(stream) = self.response_stream.stream.get() {
            stream.settle();
        }
    }

    /// The id of its request.
    #[must_use]
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// The upstream that has the call, once that is known.
    #[must_use]
    pub fn upstream(&self) -> Option<&Arc<str>> {
        self.upstream.get()
    }

    pub(super) fn order(&self) -> u64 {
        self.order
    }

    /// Whether the call went to `upstream`.
    pub(super) fn is_at(&self, upstream: &str) -> bool {
        self.upstream.get().is_some_and(|at| **at == *upstream)
    }

    /// The client, or the end of the session, cancels the call.
    pub fn cancel(&self, reason: Option<String>) {
        if let Some(reason) = reason {
            self.reason.get_or_init(|| reason);
        }
        self.cancel.cancel();
    }

    /// Ends the call because its replica stops before it is over: the client is told that its outcome is unknown.
    pub(super) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Release);
        self.cancel(Some("the gateway stops".to_owned()));
    }

    /// Whether the call was ended because its replica stops.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Acquire)
    }

    /// Cancelled when the client no longer wants the answer.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The call is over: its id is free again, and its open questions need no answer.
    pub fn end(&self) {
        if let Some(stream) = self.response_stream.stream.get() {
            self.session.questions.end_call(self.order, stream);
        }
        self.session.end_call(&self.id, self.order);
    }
}

impl DownstreamLink for LegacyClientLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.session.capabilities
    }

    fn notify(&self, notice: Notice) {
        self.open().notify(notice);
    }

    fn progress(&self, token: &Arc<str>, burst: ProgressBatch) {
        self.open().notify_all(burst.notices(token));
    }

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(async move {
            let stream = self.stream();
            SentRequest::ask_round(&self.session, &stream, Some(self.order), round).await
        })
    }

    fn hang_up(&self, retry: Option<Duration>) {
        // Older clients cannot resume a stream that was closed early. Spec: SPEC T-28.
        if self.session.revision.has_priming_event() && !self.response_stream.is_shared {
            self.open().hang_up(retry);
        }
    }

    fn cancel_reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    fn level(&self) -> Option<LogLevel> {
        self.session.levels().wanted()
    }

    fn number(&self) -> Option<u64> {
        Some(self.order)
    }

    fn reply_room(&self) -> Option<ReplyRoom<'_>> {
        Some(ReplyRoom {
            share: self.session.reply_share()?,
            kept: &self.leases,
        })
    }

    fn routed(&self, upstream: &Arc<str>) {
        drop(self.upstream.set(Arc::clone(upstream)));
        self.session.routed(self);
    }

    fn afterwards(&self) -> Option<Arc<dyn DownstreamLink>> {
        Some(Arc::new(PostReplyLink {
            session: Arc::downgrade(&self.session),
            capabilities: self.session.capabilities.clone(),
        }))
    }
}

/// The link of a call after its reply: the session's stream for messages outside calls.
#[derive(Debug)]
struct PostReplyLink {
    session: Weak<Session>,
    capabilities: ClientCapabilities,
}

impl DownstreamLink for PostReplyLink {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn notify(&self, notice: Notice) {
        if let Some(session) = self.session.upgrade() {
            session.tell(notice, NoticeSource::default());
        }
    }

    fn ask(&self, _round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        let refusal = InputOutcome::CannotAsk("the call is over".to_owned());
        Box::pin(std::future::ready(refusal))
    }
}
