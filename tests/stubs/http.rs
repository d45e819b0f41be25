//! The Streamable HTTP transport.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::duplex;
use crate::methods::{Handled, Later, receive};
use crate::modern::{self, Scripted};
use crate::options::{Era, Mode, Sse};
use crate::outlet::Outlet;
use crate::rpc::{Message, refusal};
use crate::session::Session;
use crate::stream::Stream;
use crate::world::World;

/// Request bodies at most.
const MAX_BODY: usize = 64 << 20;
/// How soon a client may come back to a stream that we ended early, in milliseconds.
const RETRY: u64 = 100;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, std::io::Error>>;

/// Serves on loopback until the process ends.
pub(crate) async fn serve(world: Arc<World>, port: u16) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .context("cannot listen")?;
    let address = listener.local_addr()?;
    let url = match world.options.mode {
        Mode::Sse { .. } => format!("http://{address}/sse"),
        Mode::Ws { .. } => format!("ws://{address}/ws"),
        Mode::Http { .. } | Mode::Stdio => format!("http://{address}/mcp"),
    };
    let ready = json!({"url": url, "pid": std::process::id()});
    writeln!(std::io::stdout(), "{ready}")?;
    std::io::stdout().flush()?;
    if world.options.until_eof {
        std::thread::spawn(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap_or_default();
            std::process::exit(0);
        });
    }
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(connection(Arc::clone(&world), socket));
    }
}

async fn connection(world: Arc<World>, socket: TcpStream) {
    world.count("connections");
    // Without it replies are only later, not wrong.
    socket.set_nodelay(true).unwrap_or_default();
    let service = service_fn(|request| {
        let world = Arc::clone(&world);
        async move { Ok::<_, Infallible>(answer(&world, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades()
        .await;
    if served.is_err() {
        world.count("broken_connections");
    }
}

async fn answer(world: &Arc<World>, request: Request<Incoming>) -> Response<Body> {
    match (request.uri().path(), request.method().clone()) {
        (path, method) if !matches!(world.options.mode, Mode::Http { .. }) && path != "/stats" => {
            let (path, method) = (path.to_owned(), method);
            other_way(world, &path, &method, request).await
        }
        ("/stats", Method::GET) => json_body(StatusCode::OK, world.stats().to_string()),
        ("/mcp", Method::POST) => post(world, request).await,
        ("/mcp", Method::GET) if !world.options.no_get && world.options.era != Era::Modern => {
            get(world, request.headers()).await
        }
        ("/mcp", Method::DELETE) if world.options.era != Era::Modern => {
            delete(world, request.headers())
        }
        ("/mcp", method) => {
            if method == Method::GET && world.options.hold_listens {
                world.modern.admitted().await;
            }
            let mut response = json_body(
                StatusCode::METHOD_NOT_ALLOWED,
                refusal(-32000, "method not allowed"),
            );
            let allowed = http::HeaderValue::from_static("GET, POST, DELETE");
            response.headers_mut().insert(ALLOW, allowed);
            response
        }
        _ => json_body(StatusCode::NOT_FOUND, refusal(-32000, "no such path")),
    }
}

/// HTTP+SSE and WebSocket.
async fn other_way(
    world: &Arc<World>,
    path: &str,
    method: &Method,
    request: Request<Incoming>,
) -> Response<Body> {
    match (&world.options.mode, path, method) {
        (Mode::Sse { .. }, "/sse", method)
            if *method == Method::GET || world.options.streams_to_posts =>
        {
            let frames = duplex::events(world);
            event_body(Either::Right(StreamBody::new(frames).boxed_unsync()))
        }
        (Mode::Sse { .. }, "/messages", &Method::POST) => {
            let (head, body) = request.into_parts();
            let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
                return refused(StatusCode::BAD_REQUEST, "unreadable body");
            };
            let body = body.to_bytes();
            empty(duplex::post(world, head.uri.query(), &head.headers, &body))
        }
        (Mode::Sse { .. }, "/sse", _) => {
            world.count("refused_posts");
            refused(StatusCode::METHOD_NOT_ALLOWED, "GET opens the stream")
        }
        (Mode::Ws { .. }, "/ws", &Method::GET) => match duplex::upgrade(world, request) {
            Some(switching) => switching.map(|()| Either::Left(Full::default())),
            None => refused(StatusCode::UPGRADE_REQUIRED, "only WebSockets"),
        },
        _ => refused(StatusCode::NOT_FOUND, "no such path"),
    }
}

async fn post(world: &Arc<World>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return refused(StatusCode::BAD_REQUEST, "unreadable body");
    };
    let body = body.to_bytes();
    if world.options.era != Era::Legacy
        && let Some(reply) = modern::echo(world, &head.headers, &body)
    {
        return json_body(StatusCode::OK, reply);
    }
    if (world.options.era != Era::Legacy || world.options.probe.is_some())
        && let Ok(value) = serde_json::from_slice::<Value>(&body)
        && let Some(response) = modern_post(world, value, pairs(&head.headers)).await
    {
        return response;
    }
    let Ok(message) = serde_json::from_slice::<Message<'_>>(&body) else {
        world.count("unreadable");
        return json_body(
            StatusCode::BAD_REQUEST,
            refusal(-32700, "unreadable message"),
        );
    };
    if message.method.is_some() && message.method.as_deref() == world.options.deaf_to.as_deref() {
        world.count("deaf");
        return std::future::pending().await;
    }
    let opens = message.method.as_deref() == Some("initialize");
    let session = if opens {
        match open(world) {
            Some(session) => session,
            None => return refused(StatusCode::SERVICE_UNAVAILABLE, "too many sessions"),
        }
    } else {
        match find(world, &head.headers, message.id) {
            Ok(session) => session,
            Err(response) => return *response,
        }
    };
    let seen = match message.method.as_deref() {
        Some("tools/call") if !is_hot(&body) => pairs(&head.headers),
        _ => Vec::new(),
    };
    let mut response = match receive(world, &session, &message, &seen) {
        Handled::Taken => empty(StatusCode::ACCEPTED),
        Handled::Reply(json) if world.options.sse == Sse::Always => {
            let stream = session.open_stream(world.options.keeps_streams());
            Outlet::Events(Arc::clone(&stream)).finish(Some(json));
            events(world, &session, stream)
        }
        Handled::Reply(json) => json_body(StatusCode::OK, json),
        Handled::Later(later) => match later.tool() {
            "unauthorized" => {
                later.abandon();
                unauthorized()
            }
            "hang_up" => {
                later.abandon();
                broken()
            }
            _ => run(world, &session, later).await,
        },
    };
    if opens
        && !world.options.stateless
        && let Ok(id) = session.id.parse()
    {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

/// The answer to a modern request or to a scripted probe; `None` for other requests.
#[expect(
    clippy::indexing_slicing,
    reason = "a JSON value that has no such member gives null"
)]
async fn modern_post(
    world: &Arc<World>,
    message: Value,
    headers: Vec<(String, String)>,
) -> Option<Response<Body>> {
    match modern::scripted(world, &message) {
        Some(Scripted::Answer(status, body)) => return Some(json_body(status_of(status), body)),
        Some(Scripted::Silence) => std::future::pending().await,
        Some(Scripted::Exit) => std::process::exit(4),
        Some(Scripted::Cut) => return Some(broken()),
        None => {}
    }
    if !modern::is_modern(&world.options, &message) {
        return None;
    }
    if message.get("id").is_none() {
        return Some(empty(StatusCode::ACCEPTED));
    }
    if let Err((status, body)) = modern::check(&message, Some(&headers)) {
        let is_handshake = message["method"] == "initialize";
        world.count(if is_handshake {
            "refused_handshakes"
        } else {
            "refused"
        });
        return Some(json_body(status_of(status), body));
    }
    if message["params"]["name"] == "hang_up" {
        world.count("tool hang_up");
        return Some(broken());
    }
    if message["params"]["name"] == "unauthorized" {
        return Some(unauthorized());
    }
    let stream = Stream::new(None);
    let key = world.modern.key();
    let gone = Gone {
        world: Arc::clone(world),
        key: key.clone(),
    };
    let outlet = Outlet::Events(Arc::clone(&stream));
    tokio::spawn(modern::serve(
        Arc::clone(world),
        key,
        message,
        headers,
        outlet,
    ));
    if world.options.sse == Sse::Always || !stream.is_one_message().await {
        let frames = stream.read(None, gone);
        return Some(event_body(Either::Right(
            StreamBody::new(frames).boxed_unsync(),
        )));
    }
    let reply = stream.collect().await.pop().unwrap_or_default();
    let value: Value = serde_json::from_slice(&reply).unwrap_or_default();
    let status = match value["error"]["code"].as_i64() {
        Some(-32601) => 404,
        Some(-32099..=-32020) => 400,
        _ => 200,
    };
    Some(json_body(status_of(status), reply))
}

/// Cancels a request whose connection is gone.
#[derive(Debug)]
struct Gone {
    world: Arc<World>,
    key: String,
}

impl Drop for Gone {
    fn drop(&mut self) {
        if self.world.modern.cancel(&self.key) {
            self.world.count("streams_closed");
        }
    }
}

fn status_of(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Whether the message cannot want to see its headers; saves copying them.
fn is_hot(body: &[u8]) -> bool {
    !body.windows(12).any(|window| window == b"seen_headers")
}

/// Runs a call and answers in the form that its first event suggests.
async fn run(world: &Arc<World>, session: &Arc<Session>, later: Later) -> Response<Body> {
    let stream = session.open_stream(world.options.keeps_streams());
    let outlet = Outlet::Events(Arc::clone(&stream));
    tokio::spawn(later.run(outlet));
    match world.options.sse {
        Sse::Never => {
            let mut messages = stream.collect().await;
            let reply = messages.pop().unwrap_or_default();
            for message in messages {
                let message = String::from_utf8_lossy(&message).into_owned();
                session.general.message(message);
            }
            json_body(StatusCode::OK, reply)
        }
        Sse::Auto if world.options.poll.is_none() && stream.is_one_message().await => {
            let reply = stream.collect().await.pop().unwrap_or_default();
            json_body(StatusCode::OK, reply)
        }
        _ => events(world, session, stream),
    }
}

/// A POST stream, primed where the revision has priming.
fn events(world: &World, session: &Arc<Session>, stream: Arc<Stream>) -> Response<Body> {
    let primes = primes(world, session);
    match world.options.poll {
        Some(retry) if primes => event_body(Either::Left(Full::new(stream.priming(retry)))),
        _ => {
            let frames = stream.read(primes.then_some(RETRY), ());
            event_body(Either::Right(StreamBody::new(frames).boxed_unsync()))
        }
    }
}

/// Whether streams of this session start with an event that only carries an id.
fn primes(world: &World, session: &Session) -> bool {
    world.options.keeps_streams() && session.with(|inner| inner.revision.as_str() >= "2025-11-25")
}

async fn get(world: &Arc<World>, headers: &HeaderMap) -> Response<Body> {
    let session = match find(world, headers, None) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    world.count("GET");
    let accepts = header(headers, &ACCEPT).unwrap_or_default();
    if !accepts.contains("text/event-stream") {
        return refused(
            StatusCode::NOT_ACCEPTABLE,
            "text/event-stream must be accepted",
        );
    }
    let stream = match header(headers, &LAST_EVENT_ID) {
        Some(event) if world.options.keeps_streams() => {
            world.count("resumptions");
            match session.resume(event) {
                Some(stream) => stream,
                None => return refused(StatusCode::NOT_FOUND, "unknown event id"),
            }
        }
        _ => match &session.general {
            Outlet::Events(stream) => {
                if world.options.hold_listens {
                    world.modern.admitted().await;
                    stream.forget();
                }
                Arc::clone(stream)
            }
            Outlet::Lines(_) | Outlet::Listens(_) | Outlet::Shared(_) => {
                return refused(StatusCode::NOT_FOUND, "no stream");
            }
        },
    };
    let primes = primes(world, &session).then_some(RETRY);
    let frames = stream.read(primes, session.hold_get());
    event_body(Either::Right(StreamBody::new(frames).boxed_unsync()))
}

fn delete(world: &World, headers: &HeaderMap) -> Response<Body> {
    world.count("DELETE");
    let id = header(headers, &SESSION_ID).unwrap_or_default();
    if world.remove_session(id) {
        empty(StatusCode::OK)
    } else {
        refused(StatusCode::NOT_FOUND, "session not found")
    }
}

/// A new session.
fn open(world: &World) -> Option<Arc<Session>> {
    let tag = world.options.keeps_streams().then(|| "g".to_owned());
    let id = if world.options.stateless {
        String::new()
    } else {
        format!("{:032x}", rand::random::<u128>())
    };
    let session = Session::new(id, Outlet::Events(Stream::new(tag)));
    world.add_session(&session).then_some(session)
}

/// The session that the request `id` names.
fn find(
    world: &World,
    headers: &HeaderMap,
    id: Option<&RawValue>,
) -> Result<Arc<Session>, Box<Response<Body>>> {
    let name = match header(headers, &SESSION_ID) {
        Some(name) => name,
        None if world.options.stateless => "",
        None => {
            return Err(Box::new(refused(
                StatusCode::BAD_REQUEST,
                "session id missing",
            )));
        }
    };
    world.session(name).ok_or_else(|| {
        world.count("unknown_sessions");
        let id = id
            .map(|id| serde_json::from_str(id.get()).unwrap_or_default())
            .unwrap_or_default();
        let script = world.options.unknown_session.as_deref();
        let answer = match script.map(|script| modern::play(script, &id)) {
            Some(Scripted::Answer(status, body)) => json_body(status_of(status), body),
            _ => json_body(StatusCode::NOT_FOUND, refusal(-32001, "Session not found")),
        };
        Box::new(answer)
    })
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect()
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn json_body(status: StatusCode, json: impl Into<Bytes>) -> Response<Body> {
    let mut response = response(status, Either::Left(Full::new(json.into())));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn event_body(body: Body) -> Response<Body> {
    let mut response = response(StatusCode::OK, body);
    let events = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, events);
    response
}

/// A body that breaks off before its first byte.
fn broken() -> Response<Body> {
    let cut = futures_util::stream::iter([Err(std::io::ErrorKind::ConnectionReset.into())]);
    let mut response = event_body(Either::Right(StreamBody::new(cut).boxed_unsync()));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn unauthorized() -> Response<Body> {
    let mut response = refused(StatusCode::UNAUTHORIZED, "a token is needed");
    let challenge = http::HeaderValue::from_static("Bearer error=\"invalid_token\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

fn refused(status: StatusCode, message: &str) -> Response<Body> {
    json_body(status, refusal(-32000, message))
}

fn empty(status: StatusCode) -> Response<Body> {
    response(status, Either::Left(Full::default()))
}
