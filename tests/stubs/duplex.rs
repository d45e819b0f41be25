//! HTTP+SSE of 2024-11-05 and WebSocket: each connection carries a whole session.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::stream::SplitSink;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use http_body::Frame;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message as WsMessage, Role};

use crate::methods::{Handled, receive};
use crate::modern;
use crate::outlet::Outlet;
use crate::rpc::{Message, refusal};
use crate::session::Session;
use crate::stream::{Event, Stream};
use crate::world::World;

/// Spec: RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Forgets the session when its connection is gone.
pub(crate) struct Ends(Arc<World>, String);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.count("ended");
        self.0.modern.cancel_all(&self.1);
        self.0.remove_session(&self.1);
    }
}

/// A new session whose messages all go on one stream.
fn begin(world: &Arc<World>) -> (Arc<Session>, Arc<Stream>, Ends) {
    let id = format!("{:032x}", rand::random::<u128>());
    let stream = Stream::new(None);
    let session = Session::new(id.clone(), Outlet::Shared(Arc::clone(&stream)));
    world.add_session(&session);
    (session, stream, Ends(Arc::clone(world), id))
}

/// GET of the event stream: its frames, the `endpoint` event first.
pub(crate) fn events(
    world: &Arc<World>,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static {
    world.count("GET");
    let (session, stream, ends) = begin(world);
    let announced = match &world.options.announce {
        Some(url) => url.clone(),
        None => format!("/messages?s={}", session.id),
    };
    let first = format!(": hello\n\nevent: endpoint\ndata: {announced}\n\n");
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from(first)))]);
    first.chain(stream.read(None, ends))
}

/// POST of a message for the stream that the query names.
pub(crate) fn post(
    world: &Arc<World>,
    query: Option<&str>,
    headers: &HeaderMap,
    body: &[u8],
) -> StatusCode {
    let id = query.and_then(|query| query.strip_prefix("s="));
    let Some(session) = id.and_then(|id| world.session(id)) else {
        world.count("unknown_sessions");
        return StatusCode::NOT_FOUND;
    };
    world.remember_headers(headers);
    handle(world, &session, body);
    StatusCode::ACCEPTED
}

fn handle(world: &Arc<World>, session: &Arc<Session>, body: &[u8]) {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let spawn = |work| drop(tokio::spawn(work));
    if modern::piped(world, &session.id, &session.general, text, spawn) {
        return;
    }
    let Ok(message) = serde_json::from_slice::<Message<'_>>(body) else {
        world.count("unreadable");
        return session
            .general
            .message(refusal(-32700, "unreadable message"));
    };
    match receive(world, session, &message, &[]) {
        Handled::Taken => {}
        Handled::Reply(json) => session.general.message(json),
        Handled::Later(later) => {
            tokio::spawn(later.run(session.general.clone()));
        }
    }
}

/// GET that asks for a socket: the answer, and the socket in the background.
pub(crate) fn upgrade(world: &Arc<World>, mut request: Request<Incoming>) -> Option<Response<()>> {
    let key = request
        .headers()
        .get(SEC_WEBSOCKET_KEY)?
        .to_str()
        .ok()?
        .to_owned();
    world.remember_headers(request.headers());
    let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_PROTOCOL, "mcp")
        .header(SEC_WEBSOCKET_ACCEPT, BASE64_STANDARD.encode(accept));
    let world = Arc::clone(world);
    tokio::spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(&mut request).await {
            socket(world, TokioIo::new(upgraded)).await;
        }
    });
    response.body(()).ok()
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

async fn socket(world: Arc<World>, io: TokioIo<hyper::upgrade::Upgraded>) {
    world.count("sockets");
    let (session, stream, _ends) = begin(&world);
    let socket = Socket::from_raw_socket(io, Role::Server, None).await;
    let (mut sink, mut frames) = socket.split();
    let binary = world.options.binary_frames;
    loop {
        tokio::select! {
            frame = frames.next() => match frame {
                Some(Ok(WsMessage::Text(text))) => handle(&world, &session, text.as_bytes()),
                Some(Ok(WsMessage::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            event = stream.next() => if !write(&mut sink, &stream, event, binary).await {
                return;
            },
        }
    }
}

/// Writes an event and all ready ones after it, at once; `false` at the end of the stream.
async fn write(
    sink: &mut SplitSink<Socket, WsMessage>,
    stream: &Stream,
    first: Option<Event>,
    binary: bool,
) -> bool {
    let mut next = Some(first);
    while let Some(event) = next {
        let fed = match event {
            Some(Event::Message(bytes) | Event::Raw(bytes)) if binary => {
                sink.feed(WsMessage::Binary(bytes)).await
            }
            Some(Event::Message(bytes) | Event::Raw(bytes)) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                sink.feed(WsMessage::text(text)).await
            }
            Some(Event::Pause) => sink.flush().await,
            Some(Event::Close) | None => {
                sink.send(WsMessage::Close(None)).await.unwrap_or_default();
                return false;
            }
            Some(Event::Cut) => {
                sink.flush().await.unwrap_or_default();
                return false;
            }
        };
        if fed.is_err() {
            return false;
        }
        next = stream.next().now_or_never();
    }
    sink.flush().await.is_ok()
}
