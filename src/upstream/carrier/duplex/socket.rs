//! WebSocket toward an upstream: one JSON-RPC message per text frame, subprotocol `mcp`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::SplitStream;
use futures_util::{Sink, SinkExt, StreamExt};
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::{HeaderMap, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;

use super::refused::refused;
use crate::budget::EXEMPT_BYTES;
use crate::protocol::websocket::{SUBPROTOCOL, accept_key, fresh_key};
use crate::runtime::lifecycle::TaskSpawner;
use crate::runtime::read_meter::{MeteredReads, MeteredStream, ReadMeter};
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::http_session::ResponseBounds;
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;

/// Time between two pings, whatever else is written: only their pongs come from an upstream that works on long calls.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A socket without a frame for this long, pongs included, is dead.
const SILENCE: Duration = Duration::from_mins(1);
/// How long one write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(30);
/// How long the closing handshake may take, and a running write before it.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Queued messages, at most; each belongs to a waiting call.
const WAITING: usize = 64;
/// Queued cancellations, at most; each of a call that was running.
const CANCELLATIONS: usize = 4096;
/// Buffers of a socket, bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Bytes around the payload of a control frame of a server: a head without a mask. Spec: RFC 6455 §5.2.
const CONTROL_HEAD: usize = 2;
/// First step in which room for a message is taken, bytes.
const FIRST_STEP: usize = 64 << 10;

type UpstreamSocket = WebSocketStream<MeteredStream<TokioIo<Upgraded>>>;

/// The sending half of a socket.
#[derive(Debug)]
pub(crate) struct SocketWriter {
    outbox: mpsc::Sender<QueuedMessage>,
    /// Cancellations of requests that were written, or are being written.
    cancellations: mpsc::Sender<Bytes>,
    closed: CancellationToken,
    /// Cancelled when the writer has ended.
    ended: CancellationToken,
}

/// A queued message.
#[derive(Debug)]
struct QueuedMessage {
    text: Bytes,
    /// Told whether it left for sure; dropped when it did not leave. `None` where no sender waits.
    left: Option<oneshot::Sender<bool>>,
}

impl QueuedMessage {
    /// Whether the sender was dropped before the write.
    fn is_withdrawn(&self) -> bool {
        self.left.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Queued messages and cancellations.
struct WriteQueue {
    cancellations: mpsc::Receiver<Bytes>,
    messages: mpsc::Receiver<QueuedMessage>,
}

impl WriteQueue {
    /// The next message to write, cancellations first; `None` once the writer is gone. A withdrawn message is skipped,
    /// so that no cancellation overtakes its request.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn next(&mut self) -> Option<QueuedMessage> {
        loop {
            tokio::select! {
                biased;
                Some(text) = self.cancellations.recv() => return Some(QueuedMessage { text, left: None }),
                next = self.messages.recv() => match next {
                    Some(message) if message.is_withdrawn() => {}
                    next => return next,
                },
            }
        }
    }
}

/// The receiving half of a socket.
#[derive(Debug)]
pub(crate) struct SocketReceiver {
    stream: SplitStream<UpstreamSocket>,
    /// Counts what the socket reads of a message.
    meter: Arc<ReadMeter>,
    /// The longest message, bytes.
    limit: usize,
    /// The last large message. While it lives, the next read takes a buffer of its own and not the large one again,
    /// which the socket would then keep.
    last: Bytes,
    closed: CancellationToken,
}

/// Opens a socket.
pub(super) async fn open(
    client: &HttpClient,
    bounds: ResponseBounds,
    tasks: &TaskSpawner,
) -> Result<(SocketWriter, SocketReceiver), LinkError> {
    let key = fresh_key();
    let response = client.upgrade(&key, SUBPROTOCOL).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(match response.status() {
            status if status.is_success() => {
                LinkError::Invalid("it does not switch to WebSocket".to_owned())
            }
            _ => refused(&response),
        });
    }
    check(response.headers(), &key)?;
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|_| LinkError::Lost { last_words: None })?;
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(bounds.message))
        .max_frame_size(Some(bounds.message));
    let meter = ReadMeter::new(EXEMPT_BYTES);
    let io = MeteredStream::new(TokioIo::new(upgraded), MeteredReads::by(Arc::clone(&meter)));
    let socket = UpstreamSocket::from_raw_socket(io, Role::Client, Some(config)).await;
    let (sink, stream) = socket.split();
    let writer = SocketWriter::new(sink, tasks);
    let closed = writer.closed.clone();
    let reader = SocketReceiver {
        stream,
        meter,
        limit: bounds.message,
        last: Bytes::new(),
        closed,
    };
    Ok((writer, reader))
}

/// Spec: RFC 6455 §4.1.
fn check(headers: &HeaderMap, key: &str) -> Result<(), LinkError> {
    let accept = headers.get(SEC_WEBSOCKET_ACCEPT);
    let expected = accept_key(key.as_bytes());
    let answers = accept.map(http::HeaderValue::as_bytes) == expected.as_deref().map(str::as_bytes);
    let chosen = headers.get(http::header::SEC_WEBSOCKET_PROTOCOL);
    if answers && chosen.is_none_or(|chosen| chosen == SUBPROTOCOL) {
        Ok(())
    } else {
        Err(LinkError::Invalid(
            "its WebSocket handshake is wrong".to_owned(),
        ))
    }
}

async fn write<S>(
    mut sink: S,
    mut waiting: WriteQueue,
    closed: CancellationToken,
    ended: CancellationToken,
) where
    S: Sink<Message, Error = WsError> + Unpin,
{
    let _ended = ended.drop_guard();
    let mut ping_at = Instant::now() + PING_EVERY;
    loop {
        let next = tokio::select! {
            biased;
            () = closed.cancelled() => break,
            // Before the messages: there may always be one.
            () = sleep_until(ping_at) => Err(()),
            next = waiting.next() => Ok(next),
        };
        let (frame, left) = match next {
            Err(()) => {
                ping_at = Instant::now() + PING_EVERY;
                (Message::Ping(Bytes::new()), None)
            }
            Ok(None) => break,
            Ok(Some(QueuedMessage { text, left })) => match text.try_into() {
                Ok(text) => (Message::Text(text), left),
                // Messages are JSON and thus UTF-8.
                Err(_) => continue,
            },
        };
        let hurried = async {
            closed.cancelled().await;
            sleep(CLOSE_WITHIN).await;
        };
        let written = tokio::select! {
            biased;
            written = sink.send(frame) => Some(written),
            () = sleep(WRITE_WITHIN) => None,
            () = hurried => None,
        };
        match written {
            Some(Ok(())) => tell(left, true),
            // The upstream closed first: the frame was not written.
            Some(Err(
                WsError::ConnectionClosed
                | WsError::AlreadyClosed
                | WsError::Protocol(ProtocolError::SendAfterClosing),
            )) => {
                closed.cancel();
                break;
            }
            Some(Err(_)) | None => {
                tell(left, false);
                break;
            }
        }
    }
    closed.cancel();
    drop(timeout(CLOSE_WITHIN, sink.close()).await);
}

/// Reports to the sender of a message whether the message left; a dropped sender is ignored.
fn tell(sender: Option<oneshot::Sender<bool>>, left: bool) {
    if let Some(sender) = sender {
        sender.send(left).unwrap_or_default();
    }
}

impl SocketWriter {
    pub(super) fn new<S>(sink: S, tasks: &TaskSpawner) -> Self
    where
        S: Sink<Message, Error = WsError> + Unpin + Send + 'static,
    {
        let (outbox, messages) = mpsc::channel(WAITING);
        let (sender, cancellations) = mpsc::channel(CANCELLATIONS);
        let waiting = WriteQueue {
            cancellations,
            messages,
        };
        let (closed, ended) = (CancellationToken::new(), CancellationToken::new());
        tasks.spawn_service(write(sink, waiting, closed.clone(), ended.clone()));
        Self {
            outbox,
            cancellations: sender,
            closed,
            ended,
        }
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Writes one message. A dropped send is not written, unless the write has begun.
    ///
    /// # Errors
    /// [`LinkError::SessionGone`] when the message did not leave, so that the upstream cannot have seen it;
    /// [`LinkError::Lost`] when it may have left.
    pub(super) async fn send(&self, text: Bytes) -> Result<(), LinkError> {
        if self.closed.is_cancelled() {
            return Err(LinkError::SessionGone);
        }
        let (left, told) = oneshot::channel();
        let left = Some(left);
        let queued = self.outbox.send(QueuedMessage { text, left }).await;
        queued.map_err(|_| LinkError::SessionGone)?;
        match told.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(LinkError::Lost { last_words: None }),
            Err(_) => Err(LinkError::SessionGone),
        }
    }

    pub(super) fn try_send(&self, text: Bytes) -> bool {
        let message = QueuedMessage { text, left: None };
        !self.closed.is_cancelled() && self.outbox.try_send(message).is_ok()
    }

    /// Queues the cancellation of a request ahead of messages. A socket whose upstream leaves `CANCELLATIONS` of them
    /// unread is closed, which cancels every call.
    pub(super) fn cancel(&self, text: Bytes) {
        if self.cancellations.try_send(text).is_err() {
            self.closed.cancel();
        }
    }

    /// Sends a close frame and waits for the end of the writer: two seconds at most, even if the other end does not
    /// read.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.ended.cancelled().await;
    }
}

impl Drop for SocketWriter {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl SocketReceiver {
    /// The next message, which takes room as it comes: unread parts stay in the socket until the budget has room.
    pub(super) async fn next(&mut self, room: &mut ArrivingMessage) -> Option<Bytes> {
        loop {
            let came = tokio::select! {
                () = self.closed.cancelled() => return None,
                came = timeout(SILENCE, poll_fn(|cx| poll(&mut self.stream, &self.meter, &mut self.last, cx))) => came,
            };
            let frame = match came {
                Ok(CameOnSocket::Frame(frame)) => frame,
                Ok(CameOnSocket::NeedsRoom) => {
                    self.make_room(room).await;
                    continue;
                }
                Err(_silent) => return self.over("nothing comes any more"),
            };
            match frame {
                Some(Ok(Message::Text(text))) => return Some(self.whole(text.into())),
                // Some libraries send messages as binary frames, which are parsed like text.
                Some(Ok(Message::Binary(bytes))) => return Some(self.whole(bytes)),
                Some(Ok(Message::Ping(payload) | Message::Pong(payload))) => {
                    self.meter.without(CONTROL_HEAD + payload.len());
                }
                Some(Ok(Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return self.over("it was closed"),
                Some(Err(error)) => return self.over(&error.to_string()),
            }
        }
    }

    /// Takes room for more of the message, in steps that double.
    async fn make_room(&self, room: &mut ArrivingMessage) {
        let doubled = self.meter.allowed().saturating_mul(2);
        let len = doubled.max(FIRST_STEP).min(self.limit);
        tokio::select! {
            () = self.closed.cancelled() => {}
            () = room.grow_to(len) => {
                // The whole message has room then; further bytes are heads of frames.
                let is_all = len >= self.limit;
                self.meter.allow(if is_all { usize::MAX } else { len });
            }
        }
    }

    fn whole(&mut self, message: Bytes) -> Bytes {
        self.meter.restart(EXEMPT_BYTES);
        if message.len() > EXEMPT_BYTES {
            self.last = message.clone();
        }
        message
    }

    fn over(&self, why: &str) -> Option<Bytes> {
        tracing::debug!(why, "upstream socket closed");
        self.closed.cancel();
        None
    }
}

/// What a poll of a socket brings.
enum CameOnSocket {
    /// A frame, an error, or the end.
    Frame(Option<Result<Message, WsError>>),
    /// The bound of the message: room has to be made first.
    NeedsRoom,
}

/// Polls a socket; `last` is given back once the next read has its buffer.
fn poll(
    stream: &mut SplitStream<UpstreamSocket>,
    meter: &ReadMeter,
    last: &mut Bytes,
    cx: &mut Context<'_>,
) -> Poll<CameOnSocket> {
    let polled = stream.poll_next_unpin(cx);
    *last = Bytes::new();
    match polled {
        Poll::Ready(frame) => Poll::Ready(CameOnSocket::Frame(frame)),
        Poll::Pending if meter.was_held_back() => Poll::Ready(CameOnSocket::NeedsRoom),
        Poll::Pending => Poll::Pending,
    }
}

impl Drop for SocketReceiver {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, pending, ready};

    use futures_util::sink;

    use super::*;

    /// Outcomes of two sends whose frames are written by `write`.
    async fn sent<F>(write: impl Fn() -> F + Send + 'static) -> [Result<(), LinkError>; 2]
    where
        F: Future<Output = Result<(), WsError>> + Send + 'static,
    {
        let sink = sink::unfold((), move |(), _: Message| write());
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        let message = || writer.send(Bytes::from_static(b"{}"));
        let (first, second) = tokio::join!(message(), message());
        [first, second]
    }

    #[tokio::test]
    async fn messages_leave_one_after_the_other() {
        assert!(matches!(sent(|| ready(Ok(()))).await, [Ok(()), Ok(())]));
    }

    #[tokio::test]
    async fn after_a_goodbye_nothing_has_run() {
        let after_goodbye = || ready(Err(ProtocolError::SendAfterClosing.into()));
        let outcome = sent(after_goodbye).await;
        assert!(
            matches!(
                outcome,
                [Err(LinkError::SessionGone), Err(LinkError::SessionGone)]
            ),
            "{outcome:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pings_leave_between_messages_too() {
        let (pings, pinged) = mpsc::channel(8);
        let sink = sink::unfold((), move |(), frame: Message| {
            if frame.is_ping() {
                pings.try_send(()).unwrap();
            }
            ready(Ok(()))
        });
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        for _ in 0..4 {
            writer.send(Bytes::from_static(b"{}")).await.unwrap();
            sleep(PING_EVERY * 3 / 4).await;
        }
        // Three times as long as the time between two pings.
        assert!(pinged.len() >= 2, "{} pings", pinged.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_does_not_hold_up_the_end() {
        let sink = sink::unfold((), |(), _: Message| pending());
        let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
        let sending = writer.send(Bytes::from_static(b"{}"));
        let closing = async {
            tokio::task::yield_now().await;
            let began = Instant::now();
            writer.close().await;
            began.elapsed()
        };
        let (outcome, took) = tokio::join!(sending, closing);
        assert!(
            matches!(outcome, Err(LinkError::Lost { .. })),
            "{outcome:?}"
        );
        assert!(
            took <= 2 * CLOSE_WITHIN + Duration::from_millis(10),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_that_waits_is_written_after_the_end_has_begun() {
        // Without `biased` in `write`, some of these rounds would write on.
        for _ in 0..30 {
            let sink = sink::unfold((), |(), _: Message| async {
                sleep(CLOSE_WITHIN * 9 / 10).await;
                Ok(())
            });
            let writer = SocketWriter::new(Box::pin(sink), &TaskSpawner::new());
            for _ in 0..10 {
                assert!(writer.try_send(Bytes::from_static(b"{}")));
            }
            tokio::task::yield_now().await;
            let began = Instant::now();
            writer.close().await;
            let took = began.elapsed();
            assert!(took <= CLOSE_WITHIN, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_waited_behind_a_broken_write_has_surely_not_run() {
        let broken = || {
            ready(Err(
                std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
            ))
        };
        for outcome in [sent(broken).await, sent(pending).await] {
            assert!(
                matches!(
                    outcome,
                    [Err(LinkError::Lost { .. }), Err(LinkError::SessionGone)]
                ),
                "{outcome:?}"
            );
        }
    }
}
