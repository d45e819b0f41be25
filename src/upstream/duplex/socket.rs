//! WebSocket toward an upstream: one JSON-RPC message per text frame, subprotocol `mcp`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::{HeaderMap, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;

use super::refused;
use crate::lifecycle::Tasks;
use crate::protocol::websocket::{SUBPROTOCOL, accept_key, fresh_key};
use crate::upstream::error::LinkError;
use crate::upstream::http::client::HttpClient;
use crate::upstream::http::wire::Bounds;

/// A quiet socket is asked whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A socket from which nothing comes for so long, not even answers to pings, is dead.
const SILENCE: Duration = Duration::from_mins(1);
/// How long one write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(30);
/// How long the closing handshake may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Messages that may wait to be written; each belongs to a call that waits.
const WAITING: usize = 64;
/// Buffers of a socket, bytes.
const BUFFER_BYTES: usize = 16 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The way out.
#[derive(Debug)]
pub(crate) struct Writer {
    outbox: mpsc::Sender<Bytes>,
    closed: CancellationToken,
    /// Cancelled when nothing is written any more.
    ended: CancellationToken,
}

/// The way in.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: SplitStream<Socket>,
    closed: CancellationToken,
}

/// Opens a socket.
pub(super) async fn open(
    client: &HttpClient,
    bounds: Bounds,
    tasks: &Tasks,
) -> Result<(Writer, Reader), LinkError> {
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
    let io = TokioIo::new(upgraded);
    let socket = Socket::from_raw_socket(io, Role::Client, Some(config)).await;
    let (sink, stream) = socket.split();
    let (outbox, waiting) = mpsc::channel(WAITING);
    let (closed, ended) = (CancellationToken::new(), CancellationToken::new());
    tasks.spawn_service(write(sink, waiting, closed.clone(), ended.clone()));
    let writer = Writer {
        outbox,
        closed: closed.clone(),
        ended,
    };
    Ok((writer, Reader { stream, closed }))
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

async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut waiting: mpsc::Receiver<Bytes>,
    closed: CancellationToken,
    ended: CancellationToken,
) {
    let _ended = ended.drop_guard();
    loop {
        let next = tokio::select! {
            () = closed.cancelled() => break,
            next = timeout(PING_EVERY, waiting.recv()) => next,
        };
        let frame = match next {
            Err(_quiet) => Message::Ping(Bytes::new()),
            Ok(None) => break,
            Ok(Some(message)) => match message.try_into() {
                Ok(text) => Message::Text(text),
                // Messages are JSON and thus UTF-8.
                Err(_) => continue,
            },
        };
        if !matches!(timeout(WRITE_WITHIN, sink.send(frame)).await, Ok(Ok(()))) {
            break;
        }
    }
    closed.cancel();
    drop(timeout(CLOSE_WITHIN, sink.close()).await);
}

impl Writer {
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    pub(super) async fn send(&self, message: Bytes) -> Result<(), LinkError> {
        let lost = LinkError::Lost { last_words: None };
        if self.closed.is_cancelled() {
            return Err(lost);
        }
        self.outbox.send(message).await.map_err(|_| lost)
    }

    pub(super) fn try_send(&self, message: Bytes) -> bool {
        !self.closed.is_cancelled() && self.outbox.try_send(message).is_ok()
    }

    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.ended.cancelled().await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Reader {
    /// The next message. The reader of one session may wait: what is not read stays in the socket.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let frame = tokio::select! {
                () = self.closed.cancelled() => return None,
                frame = timeout(SILENCE, self.stream.next()) => frame,
            };
            match frame {
                Ok(Some(Ok(Message::Text(text)))) => return Some(text.into()),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => {}
                Ok(Some(Ok(Message::Binary(_)))) => {
                    tracing::warn!("upstream socket sends what is no text");
                }
                Ok(Some(Ok(Message::Close(_))) | None) => return self.over("it was closed"),
                Ok(Some(Err(error))) => return self.over(&error.to_string()),
                Err(_silent) => return self.over("nothing comes any more"),
            }
        }
    }

    fn over(&self, why: &str) -> Option<Bytes> {
        tracing::debug!(why, "upstream socket is over");
        self.closed.cancel();
        None
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}
