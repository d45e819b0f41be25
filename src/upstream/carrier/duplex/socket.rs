//! WebSocket toward an upstream: one JSON-RPC message per text frame, subprotocol `mcp`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::SplitStream;
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::{HeaderMap, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;

use super::refused::refused;
use super::socket_writer::SocketWriter;
use crate::budget::EXEMPT_BYTES;
use crate::protocol::websocket::{SUBPROTOCOL, accept_key, fresh_key};
use crate::runtime::lifecycle::TaskSpawner;
use crate::runtime::read_meter::{MeteredReads, MeteredStream, ReadMeter};
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::carrier::http::http_session::ResponseBounds;
use crate::upstream::error::LinkError;
use crate::upstream::room::ArrivingMessage;

/// A socket without a frame for this long, pongs included, is dead.
const SILENCE: Duration = Duration::from_mins(1);
/// Buffers of a socket, bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Bytes around the payload of a control frame of a server: a head without a mask. Spec: RFC 6455 §5.2.
const CONTROL_HEAD: usize = 2;
/// First step in which room for a message is taken, bytes.
const FIRST_STEP: usize = 64 << 10;

type UpstreamSocket = WebSocketStream<MeteredStream<TokioIo<Upgraded>>>;

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
    let closed = writer.closed().clone();
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
