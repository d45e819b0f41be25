//! Modern requests as frames of a WebSocket: each stands alone, as over HTTP, but has no headers to
//! compare, and is cancelled by a notification on its socket. Spec: SPEC §2; DESIGN §3.

mod request;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, SelectAll};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::request::{
    EndedRequest, HandedMessages, IdReservation, RunningCalls, SocketMessages, SocketRequest,
};
use super::keeper::keeper_of;
use super::listen::subscribe;
use super::parsed_request::{EarlyEnd, ParsedRequest};
use super::{LISTEN, envelope, refusal};
use crate::call::Reply;
use crate::config::LimitsConfig;
use crate::downstream::McpService;
use crate::downstream::access_log::{AccessLine, AccessRecord};
use crate::downstream::admission::MessageDue;
use crate::downstream::busy::draining;
use crate::downstream::call_telemetry::error_word;
use crate::downstream::channel::Channel;
use crate::fault::{Fault, FaultKind, FaultSide};
use crate::protocol::{Message, MessageKind, RequestId};
use crate::relay::modern_notification;
use crate::telemetry::names::error_type;
use crate::telemetry::request_tag;

/// Messages read and not yet polled by the writer, at most; then no frame is read.
const WAITING: usize = 16;
/// Messages handed out at once, unless one call has more.
const AT_ONCE: usize = 64;
/// Calls of a socket that is being written to run on until their messages have so many bytes.
const AHEAD_BYTES: usize = 1 << 20;

/// The calls of one socket, reader's side.
#[derive(Debug)]
pub(in crate::downstream) struct SocketCalls {
    queue: mpsc::Sender<SocketRequest>,
    running: Arc<RunningCalls>,
    /// Calls and subscriptions of the socket at once.
    most: usize,
}

/// The calls of one socket, writer's side: polling `SocketFrames` drives the calls, dropping it cancels the calls.
pub(in crate::downstream) struct SocketFrames {
    queue: mpsc::Receiver<SocketRequest>,
    entries: SelectAll<SocketRequest>,
    most: usize,
    /// Messages that calls brought while an earlier batch was written, in their order.
    ahead: VecDeque<HandedMessages>,
    ahead_bytes: usize,
    /// Records and sizes of the messages returned by the last poll, possibly not written yet.
    unwritten: Vec<(AccessRecord, usize)>,
    /// Access lines that end with the write of those messages.
    ended: Vec<EndedRequest>,
}

/// The two sides of a socket, with its bounds.
pub(in crate::downstream) fn on_socket(limits: &LimitsConfig) -> (SocketCalls, SocketFrames) {
    let (sender, receiver) = mpsc::channel(WAITING);
    // As many as run may wait.
    let most = 2 * limits.calls_per_principal + limits.subscriptions_per_session;
    let calls = SocketCalls {
        queue: sender,
        running: Arc::default(),
        most,
    };
    let frames = SocketFrames {
        queue: receiver,
        entries: SelectAll::new(),
        most,
        ahead: VecDeque::new(),
        ahead_bytes: 0,
        unwritten: Vec::new(),
        ended: Vec::new(),
    };
    (calls, frames)
}

impl SocketCalls {
    /// Waits until the queue has room for one message.
    ///
    /// # Cancel safety
    /// Can be dropped and asked again.
    pub(in crate::downstream) async fn room(&self) {
        // Without a writer the socket ends.
        drop(self.queue.reserve().await);
    }

    /// Cancels the call that a notification names, without a reply; `false` when no call of this socket has the id.
    /// Spec: SPEC M-43.
    pub(in crate::downstream) fn cancel(&self, message: &Message) -> bool {
        let named = message.method() == Some("notifications/cancelled");
        let id = message.param("requestId").filter(|_| named);
        let id = id.and_then(RequestId::parse);
        let call = id.and_then(|id| self.running.lock().get(&id).cloned());
        call.inspect(CancellationToken::cancel).is_some()
    }

    /// Refuses a request.
    pub(in crate::downstream) fn refuse(
        &self,
        channel: &Arc<Channel>,
        message: &Message,
        fault: &Fault,
        line: Option<&Arc<AccessLine>>,
    ) {
        let (_, reply) = refusal::of_fault(fault);
        self.say(channel, message, reply, line);
    }

    fn say(
        &self,
        channel: &Arc<Channel>,
        message: &Message,
        reply: Reply,
        line: Option<&Arc<AccessLine>>,
    ) {
        let text = reply.into_response(message.id().unwrap_or("null"));
        self.put(SocketRequest {
            messages: Some(stream::iter([vec![text]]).boxed()),
            line: line.map(Arc::clone),
            complete: Arc::new(AtomicBool::new(true)),
            _place: None,
            _owed: channel.owe(),
        });
    }

    fn put(&self, entry: SocketRequest) {
        // The queue has room, unless the socket has ended: each frame is one entry.
        drop(self.queue.try_send(entry));
    }

    /// Takes the id of a call.
    fn enter(&self, id: RequestId) -> Result<(IdReservation, CancellationToken), Fault> {
        let mut running = self.running.lock();
        if running.len() >= self.most {
            return Err(Fault::downstream(
                FaultKind::CallerBusy,
                "too many calls run on this connection",
            ));
        }
        if running.contains_key(&id) {
            return Err(Fault::downstream(
                FaultKind::InvalidRequest,
                "a call with this id is running, choose another id",
            ));
        }
        let token = CancellationToken::new();
        running.insert(id.clone(), token.clone());
        drop(running);
        let running = Arc::clone(&self.running);
        Ok((IdReservation { running, id }, token))
    }
}

/// Handles a modern message of a socket, after [`SocketCalls::room`] has resolved.
pub(in crate::downstream) fn on_message(
    service: &Arc<McpService>,
    channel: &Arc<Channel>,
    calls: &SocketCalls,
    message: Message,
    line: Option<Arc<AccessLine>>,
    due: MessageDue,
) {
    let record = line
        .as_ref()
        .map_or_else(AccessRecord::default, |line| line.record().clone());
    // No notification but the cancellation means anything. Spec: SPEC M-22.
    if message.kind() != MessageKind::Request {
        if message.kind() == MessageKind::Notification {
            modern_notification(&message);
        }
        return;
    }
    if service.tasks.draining().is_cancelled() {
        record.outcome(error_type::BUSY);
        return calls.refuse(channel, &message, &draining(), line.as_ref());
    }
    let envelope = match envelope::read_body(&message) {
        Ok(envelope) => envelope,
        Err(refusal) => {
            record.outcome(error_type::BAD_REQUEST);
            return calls.say(channel, &message, refusal.reply(), line.as_ref());
        }
    };
    channel.needs_no_session();
    let id = message.id().unwrap_or("null").to_owned();
    let Some(key) = RequestId::parse(&id) else {
        return;
    };
    let (place, cancelled) = match calls.enter(key) {
        Ok(entered) => entered,
        Err(fault) => {
            record.outcome(error_word(fault.kind));
            return calls.refuse(channel, &message, &fault, line.as_ref());
        }
    };
    let asked = ParsedRequest {
        principal: Arc::clone(&channel.principal),
        endpoint: Arc::clone(&channel.endpoint),
        message,
        envelope,
        patience: service.settings.limits.call_wait,
        share: channel.reply_share().cloned(),
        connection: None,
        // Frames are not forwarded: a socket has the implicit session of its own replica.
        home: None,
        claim: None,
    };
    let service = Arc::clone(service);
    let about = record;
    let complete = Arc::new(AtomicBool::new(false));
    let whole = Arc::clone(&complete);
    let messages = request_tag::keep(async move {
        let begun = messages_of(&service, asked, due, &about, whole).await;
        begun.unwrap_or_else(|stopped| {
            about.outcome(stopped.word());
            let text = stopped.reply().into_response(&id);
            stream::iter([vec![text]]).boxed()
        })
    });
    let messages = messages.flatten_stream();
    let messages = messages.take_until(cancelled.cancelled_owned()).boxed();
    calls.put(SocketRequest {
        messages: Some(messages),
        line,
        complete,
        _place: Some(place),
        _owed: channel.owe(),
    });
}

async fn messages_of(
    service: &Arc<McpService>,
    mut asked: ParsedRequest,
    due: MessageDue,
    record: &AccessRecord,
    complete: Arc<AtomicBool>,
) -> Result<SocketMessages, EarlyEnd> {
    if due.is_some() {
        let paid = Box::pin(service.modern.pay(&mut asked, due)).await;
        paid.map_err(EarlyEnd::Failed)?;
    }
    if let Some(keeper) = other_keeper(service, &asked).await {
        return Err(EarlyEnd::Failed(keeper));
    }
    let claimed = service.sessions.claim_implicit(
        (&asked.principal, &asked.endpoint),
        &asked.envelope.capabilities,
        asked.home.is_some(),
    );
    asked.claim = claimed.await;
    if asked.method() == LISTEN {
        let begun = subscribe(service, &asked).await;
        return Ok(begun.inspect(|_| record.answered())?.boxed());
    }
    let id = asked.id();
    let exchange = service.modern.begin_exchange(asked, None, record).await?;
    // Its reply is the last of them.
    let messages = exchange.messages(id);
    let ending = stream::poll_fn(move |_| {
        complete.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    });
    Ok(messages.chain(ending).boxed())
}

/// The refusal of a request that goes on with what another replica keeps, unless that replica is lost: frames are not
/// forwarded.
async fn other_keeper(service: &McpService, asked: &ParsedRequest) -> Option<Fault> {
    let forwarder = service.forwarder.as_ref()?;
    let parts = (&*service.relay, &*service.modern.parking);
    let keeper = keeper_of(parts, &asked.principal, &asked.endpoint, &asked.message)?;
    let is_elsewhere = Box::pin(forwarder.is_kept_elsewhere(keeper)).await;
    is_elsewhere.then(|| {
        let text = "another replica keeps what this request goes on with: send it over HTTP";
        Fault::new(FaultKind::GatewayBusy, FaultSide::Gateway, text)
    })
}

impl SocketFrames {
    /// The next messages, never an empty list, ordered within each call. Write them before the next poll: that poll
    /// ends the access lines of their requests.
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub(in crate::downstream) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Bytes>> {
        self.note_written();
        let mut messages = Vec::new();
        while messages.len() < AT_ONCE {
            let Some(next) = self.ahead.pop_front().or_else(|| self.poll_calls(cx)) else {
                break;
            };
            let bytes = next.bytes();
            self.ahead_bytes = self.ahead_bytes.saturating_sub(bytes);
            if next.record.is_wanted() && !next.messages.is_empty() {
                self.unwritten.push((next.record, bytes));
            }
            self.ended.extend(next.ended);
            messages.extend(next.messages);
        }
        if messages.is_empty() {
            self.note_written();
            return Poll::Pending;
        }
        Poll::Ready(messages)
    }

    /// Runs the calls while an earlier batch is written, and keeps their messages for the next poll: a call
    /// that is not polled would hold its start permit, or the probe of its upstream, for as long as its
    /// client does not read. Stops at [`AT_ONCE`] entries or [`AHEAD_BYTES`].
    ///
    /// # Cancel safety
    /// Nothing is lost between polls.
    pub(in crate::downstream) fn poll_ahead(&mut self, cx: &mut Context<'_>) {
        while self.ahead.len() < AT_ONCE
            && self.ahead_bytes < AHEAD_BYTES
            && let Some(next) = self.poll_calls(cx)
        {
            self.ahead_bytes += next.bytes();
            self.ahead.push_back(next);
        }
    }

    /// The next messages of any call, if a call has some ready.
    fn poll_calls(&mut self, cx: &mut Context<'_>) -> Option<HandedMessages> {
        // Entries beyond `most` are refusals, which end at once.
        while self.entries.len() < self.most + WAITING
            && let Poll::Ready(Some(entry)) = self.queue.poll_recv(cx)
        {
            self.entries.push(entry);
        }
        match self.entries.poll_next_unpin(cx) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    /// Everything that was handed out is written.
    fn note_written(&mut self) {
        for (record, bytes) in self.unwritten.drain(..) {
            record.sent(bytes);
        }
        for ended in self.ended.drain(..) {
            if ended.complete {
                ended.line.record().answered();
            }
        }
    }
}
