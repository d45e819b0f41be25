//! WebSocket transport: each socket has one session, and sessionless modern requests beside that session; each JSON-RPC
//! message is one text frame. Host, Origin and token are checked before the upgrade, as for every request; the socket
//! ends a minute after its token. Not of the specification: a custom transport as its "Custom Transports" allows.

mod upgrade;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::request::Parts;
use http::{HeaderMap, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use self::upgrade::NoUpgrade;
use super::access_log::{AccessLine, AccessRecord};
use super::call_telemetry::error_word;
use super::channel::{Channel, ChannelEnd};
use super::channel_dispatch::{IncomingMessage, on_bytes};
use super::channel_writer::{ChannelWriter, open_channel};
use super::listener::ConnectionPermit;
use super::liveness::{ClientLiveness, WrittenBytes};
use super::modern::{self, SocketCalls, SocketFrames};
use super::over_budget::over_budget;
use super::socket_reader::{IncomingFrame, SocketReader};
use super::{McpService, reply};
use crate::budget::{BudgetHolder, EXEMPT_BYTES, ReplyShare};
use crate::call::Principal;
use crate::cause::chain;
use crate::endpoint::Endpoint;
use crate::protocol::Revision;
use crate::runtime::observed_stream::ObservedStream;
use crate::runtime::read_meter::{MeteredReads, MeteredStream, ReadMeter};
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::names::error_type;
use crate::telemetry::request_tag::RequestTag;

/// How long the closing handshake may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Bytes drained of an oversized message while its refusal is sent.
const DISCARDED_BYTES: u64 = 16 << 20;
/// Buffers of a socket, bytes.
const BUFFER_BYTES: usize = 16 << 10;

type ClientSocket = WebSocketStream<MeteredStream<ObservedStream<TokioIo<Upgraded>, WrittenBytes>>>;

/// The close code and reason sent to the client; `None` if no Close frame can be sent.
type CloseReason = Option<(CloseCode, &'static str)>;

/// GET with an upgrade: the socket.
pub(super) fn open(
    service: &Arc<McpService>,
    endpoint: &Arc<Endpoint>,
    principal: &Arc<Principal>,
    parts: &mut Parts,
    record: &AccessRecord,
) -> Response<Body> {
    let accepted = upgrade::accept(parts.version, &parts.headers);
    let on_upgrade = parts.extensions.remove::<OnUpgrade>();
    let (response, on_upgrade) = match (accepted, on_upgrade) {
        (Ok(response), Some(on_upgrade)) => (response, on_upgrade),
        (Ok(_), None) => return NoUpgrade::NotAsked.response(),
        (Err(refused), _) => return refused.response(),
    };
    let (channel, _) = match open_channel(service, endpoint, principal, record) {
        Ok(opened) => opened,
        Err(response) => return *response,
    };
    let holder = service.bodies.holder(principal, &parts.extensions);
    channel.share_replies(ReplyShare::new(&service.replies, holder));
    let outgoing = ChannelWriter::new(service, channel);
    let (own, record) = (Arc::clone(service), record.clone());
    // Keep the connection permit: the connection stays open after the upgrade.
    let place = parts.extensions.remove::<ConnectionPermit>();
    service.tasks.spawn(async move {
        match on_upgrade.await {
            Ok(upgraded) => {
                serve_socket(own, upgraded, outgoing, holder, &record).await;
            }
            Err(error) => tracing::debug!(error = chain(&error), "not upgraded"),
        }
        drop(place);
    });
    response
}

async fn serve_socket(
    service: Arc<McpService>,
    upgraded: Upgraded,
    mut outgoing: ChannelWriter,
    holder: BudgetHolder,
    record: &AccessRecord,
) {
    let limit = service.settings.limits.body;
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let server = &service.settings.server;
    // Two pings may stay without answer.
    let liveness = ClientLiveness::new(server.keep_alive * 3, server.stall_timeout);
    let io = ObservedStream::new(
        TokioIo::new(upgraded),
        WrittenBytes::of(Arc::clone(&liveness)),
    );
    let meter = ReadMeter::new(limit);
    let bounds = (limit, server.body_timeout);
    let reader = SocketReader::new(&service.bodies.budget, holder, Arc::clone(&meter), bounds);
    let io = MeteredStream::new(io, MeteredReads::by(meter));
    let socket = ClientSocket::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sink, mut stream) = socket.split();
    let channel = Arc::clone(&outgoing.channel);
    let (calls, mut frames) = modern::on_socket(&service.settings.limits);
    let close = tokio::select! {
        close = read_socket(&service, (&channel, record), reader, &calls, &mut stream, &liveness) => close,
        close = write_socket(&service, &mut outgoing, &mut frames, &mut sink, &liveness) => close,
        () = liveness.lost() => {
            if liveness.is_behind() {
                COUNTERS.channels_slow.add(1);
            }
            None
        }
        // Also while a write waits.
        () = channel.ended.cancelled() => Some(close_of(ChannelEnd::Slow)),
        () = service.tasks.stopping().cancelled() => None,
    };
    // The session and the calls end before the client can come back.
    drop((outgoing, frames));
    if let (Some((code, reason)), Ok(socket)) = (close, sink.reunite(stream)) {
        tracing::debug!(code = u16::from(code), reason, "socket ends");
        end(socket, code, reason).await;
    }
}

/// Takes frames until the client closes, breaks a rule, or is gone.
async fn read_socket(
    service: &Arc<McpService>,
    (channel, opening): (&Arc<Channel>, &AccessRecord),
    mut reader: SocketReader<'_>,
    calls: &SocketCalls,
    stream: &mut SplitStream<ClientSocket>,
    liveness: &ClientLiveness,
) -> CloseReason {
    let headers = HeaderMap::new();
    loop {
        let paused = Instant::now();
        calls.room().await;
        reader.paused(paused);
        let frame = match reader.next(stream).await {
            IncomingFrame::Frame(frame) => frame,
            IncomingFrame::Slow => {
                note_refused(opening, "body_timeout", 0);
                return Some((CloseCode::Policy, "the message is slow"));
            }
            IncomingFrame::NoRoom(exhausted) => {
                let fault = over_budget(exhausted);
                note_refused(opening, error_word(fault.kind), 0);
                return Some((CloseCode::Again, "there is no room for the message"));
            }
        };
        liveness.heard();
        match frame {
            Some(Ok(Message::Text(text))) => {
                let (bytes, over) = reader.whole(Bytes::from(text));
                let tag = RequestTag::random();
                let line = tag.within(|| Arc::new(AccessLine::of_message(opening)));
                let record = line.record();
                record.received(bytes.len());
                let due = service.admission.due(channel.principal.owner());
                let arrival = IncomingMessage {
                    principal: Arc::clone(&channel.principal),
                    headers: &headers,
                    fallback: Revision::LATEST_LEGACY,
                    record,
                    line: Some(Arc::clone(&line)),
                    modern: Some(calls),
                    over,
                };
                tag.within(|| {
                    if let Err((fault, id)) = on_bytes(service, channel, &arrival, bytes, due) {
                        record.outcome(error_word(fault.kind));
                        let refusal = reply::error_response(&fault, id.as_deref());
                        channel.answer(refusal, record, Some(&line));
                    }
                });
            }
            Some(Ok(Message::Pong(payload))) => liveness.pong(&payload),
            // Pings are answered below us, while we read on.
            Some(Ok(Message::Ping(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) => return Some((CloseCode::Normal, "")),
            Some(Ok(Message::Binary(bytes))) => {
                note_refused(opening, error_type::BAD_REQUEST, bytes.len());
                return Some((CloseCode::Unsupported, "only text frames are taken"));
            }
            Some(Err(error)) => return refusal_of(&error, opening),
            None => return None,
        }
    }
}

/// Writes messages until the channel ends, and a ping when no message is ready or the last ping is `keep_alive`
/// old. The stall timeout of the connection limits how long the client may read nothing.
async fn write_socket(
    service: &McpService,
    outgoing: &mut ChannelWriter,
    calls: &mut SocketFrames,
    sink: &mut SplitSink<ClientSocket, Message>,
    liveness: &ClientLiveness,
) -> CloseReason {
    let every = service.settings.server.keep_alive;
    let mut pinged = Instant::now();
    loop {
        let messages = poll_fn(|cx| {
            let Poll::Ready(of_session) = outgoing.poll_next(cx) else {
                return calls.poll_next(cx).map(Ok);
            };
            Poll::Ready(of_session.map(|mut messages| {
                if let Poll::Ready(of_calls) = calls.poll_next(cx) {
                    messages.extend(of_calls);
                }
                messages
            }))
        });
        let mut sent = Ok(());
        if let Ok(messages) = timeout(every, messages).await {
            let messages = match messages {
                Ok(messages) => messages,
                Err(end) => return Some(close_of(end)),
            };
            liveness.writing(messages.iter().map(Bytes::len).sum());
            let answers = outgoing.channel.unwritten.among(&messages);
            // The frames are copies, which wait in the socket until they are written.
            let large = messages
                .iter()
                .filter(|message| message.len() > EXEMPT_BYTES);
            let _held: Vec<Bytes> = large.cloned().collect();
            let frames = messages.into_iter().filter_map(text_frame);
            let mut frames = futures_util::stream::iter(frames.map(Ok));
            sent = beside(calls, sink.send_all(&mut frames)).await;
            if sent.is_ok() {
                outgoing.channel.unwritten.written(&answers);
            }
        }
        if sent.is_ok() && pinged.elapsed() >= every {
            pinged = Instant::now();
            let ping = Message::Ping(liveness.ping());
            sent = beside(calls, sink.send(ping)).await;
        }
        if let Err(error) = sent {
            if is_stall(&error) {
                COUNTERS.channels_slow.add(1);
            }
            return None;
        }
    }
}

/// Awaits a write while the calls of the socket run on.
async fn beside<T>(calls: &mut SocketFrames, writing: impl Future<Output = T>) -> T {
    let mut writing = pin!(writing);
    poll_fn(|cx| {
        let written = writing.as_mut().poll(cx);
        if written.is_pending() {
            calls.poll_ahead(cx);
        }
        written
    })
    .await
}

/// Whether the connection was given up because its peer took nothing for `server.stall_timeout`.
fn is_stall(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
}

/// Close code and reason for an unreadable frame; `None` when the client is gone.
fn refusal_of(error: &Error, opening: &AccessRecord) -> CloseReason {
    match error {
        Error::Capacity(CapacityError::MessageTooLong { size, .. }) => {
            COUNTERS.bodies_too_large.add(1);
            note_refused(opening, "too_large", *size);
            Some((CloseCode::Size, "the message is too large"))
        }
        Error::Utf8(_) => {
            note_refused(opening, error_type::BAD_REQUEST, 0);
            Some((CloseCode::Invalid, "a text frame is not UTF-8"))
        }
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        Error::Protocol(_) => {
            note_refused(opening, error_type::BAD_REQUEST, 0);
            Some((CloseCode::Protocol, ""))
        }
        _ => None,
    }
}

/// Writes the access line of a frame that is not a message; `bytes` is the frame's size, 0 if unknown.
fn note_refused(opening: &AccessRecord, word: &'static str, bytes: usize) {
    let line = RequestTag::random().within(|| AccessLine::of_message(opening));
    line.record().received(bytes);
    line.record().outcome(word);
}

/// A message as a text frame; messages are JSON and thus UTF-8.
fn text_frame(message: Bytes) -> Option<Message> {
    message.try_into().ok().map(Message::Text)
}

/// Spec: RFC 6455 §7.4.1.
fn close_of(end: ChannelEnd) -> (CloseCode, &'static str) {
    match end {
        ChannelEnd::Session => (CloseCode::Normal, "the session has ended"),
        ChannelEnd::Slow => (CloseCode::Policy, "messages are not read"),
        ChannelEnd::Silent => (
            CloseCode::Policy,
            "neither initialize nor a modern request came",
        ),
        ChannelEnd::Expired => (CloseCode::Policy, "the token has expired"),
        ChannelEnd::Draining => (CloseCode::Away, "the gateway is shutting down"),
    }
}

/// Says why, and reads on for a moment: a connection that is closed with unread bytes is reset,
/// and the client never learns it.
async fn end(mut socket: ClientSocket, code: CloseCode, reason: &'static str) {
    let frame = CloseFrame {
        code,
        reason: reason.into(),
    };
    let closing = async {
        if socket.close(Some(frame)).await.is_err() {
            // After the client's goodbye there is none of our own: the answer to it still waits.
            // Spec: RFC 6455 §5.5.1.
            drop(socket.flush().await);
            return;
        }
        if matches!(code, CloseCode::Size | CloseCode::Again) {
            // The rest of the message is no frame any more.
            let rest = socket.get_mut();
            rest.observer().release();
            let mut rest = rest.take(DISCARDED_BYTES);
            drop(tokio::io::copy(&mut rest, &mut tokio::io::sink()).await);
        } else {
            while let Some(Ok(_)) = socket.next().await {}
        }
    };
    // Ignore the outcome: the socket is closed in any case.
    drop(tokio::time::timeout_at(Instant::now() + CLOSE_WITHIN, closing).await);
}
