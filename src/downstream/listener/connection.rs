//! One connection: its protocol, its deadlines, its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tower::Service;

use super::ConnectionSettings;
use super::activity::ConnectionActivity;
use super::connection_permit::ConnectionPermit;
use super::failures::ConnectionFailure;
use super::h2_stall::WatchedBody;
use super::head_clock::{ClockedUse, HeadClock};
use super::preface::PrefaceDeadline;
use super::streams::StreamSpawner;
use crate::config;
use crate::runtime::lifecycle::TaskSpawner;
use crate::runtime::observed_stream::ObservedStream;
use crate::runtime::poll_time;
use crate::runtime::wake::WakeFilter;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::request_tag::{self, RequestTag};

/// A quiet HTTP/2 connection is asked whether it is alive; without an answer it is closed.
const H2_PING_EVERY: Duration = Duration::from_secs(20);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Exchanges at once on one HTTP/2 connection; each may be an open event stream.
pub(in crate::downstream) const H2_MAX_STREAMS: u32 = 256;
/// Read and write buffers of a connection; hyper's least is 8 KiB.
const MIN_BUFFER_BYTES: usize = 64 * 1024;

/// The configured HTTP servers.
#[derive(Debug)]
pub(super) struct HttpServers {
    http1: http1::Builder,
    header_bytes: u32,
    header_timeout: Duration,
    idle_timeout: Duration,
    refused_timeout: Duration,
    stall_timeout: Duration,
    drain_linger: Duration,
    ends_in_order: bool,
}

impl HttpServers {
    pub(super) fn new(settings: &config::HttpServerConfig, header_bytes: usize) -> Self {
        let mut http1 = http1::Builder::new();
        // Spec: RFC 6585 §5; SPEC T-17: a larger head is 431.
        http1
            .max_header_size(header_bytes)
            .max_buf_size(header_bytes.max(MIN_BUFFER_BYTES))
            // A client that closes its side is gone: its calls are then detached or cancelled.
            .half_close(false);
        Self {
            http1,
            header_bytes: u32::try_from(header_bytes).unwrap_or(u32::MAX),
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            refused_timeout: settings.refused_idle_timeout,
            stall_timeout: settings.stall_timeout,
            drain_linger: settings.drain_linger,
            ends_in_order: false,
        }
    }

    /// Has HTTP/1.1 connections closed in order. With TLS, a peer that has just sent a request then knows that the request
    /// was not begun. Other connections wait for a request that lies in the socket, as most clients cannot tell.
    pub(super) fn end_in_order(&mut self) {
        self.ends_in_order = true;
    }

    /// Serves HTTP/1.1 on `stream` until it ends, is told to end, or is too slow.
    pub(super) async fn http1<S, A>(
        &self,
        stream: S,
        exchange: ConnectionService<A>,
        tasks: &TaskSpawner,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: ResponseService,
    {
        let clock = HeadClock::new(self.header_timeout, self.idle_timeout, self.refused_timeout);
        exchange
            .place
            .shows(ConnectionActivity::Http1(clock.clone()));
        let mut builder = self.http1.clone();
        builder
            .timer(clock.clone())
            .header_read_timeout(self.header_timeout);
        let reporter = exchange.reporter();
        let note_end = |ended| {
            reporter.ended(ended, |error| {
                ConnectionFailure::of_http1(error, clock.is_idle())
            });
        };
        let io = TokioIo::new(ObservedStream::new(
            stream,
            ClockedUse::new(clock.clone(), self.stall_timeout),
        ));
        let mut connection = pin!(builder.serve_connection(io, exchange).with_upgrades());
        let end = reporter.place.end().clone();
        let ends = async {
            end.cancelled().await;
            if self.ends_in_order && !reporter.place.has_left() {
                // One that was accepted late in the drain has less time.
                tokio::select! {
                    () = sleep(self.drain_linger) => {}
                    () = tasks.stopping().cancelled() => {}
                }
            }
        };
        let wake_filter = WakeFilter::new();
        tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_time::share(|| wake_filter.poll(connection.as_mut(), cx))) => return note_end(ended),
            // It closes a connection whose next request lies in the socket.
            () = ends, if self.ends_in_order => connection.as_mut().graceful_shutdown(),
            () = end.cancelled(), if !self.ends_in_order => {
                if reporter.place.has_left() {
                    return;
                }
                clock.linger(self.drain_linger);
            }
        }
        tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_time::share(|| wake_filter.poll(connection.as_mut(), cx))) => note_end(ended),
            () = tasks.stopping().cancelled() => {}
        }
    }

    /// Serves HTTP/2. Only the preface has a deadline; a quiet peer is pinged; a connection without a stream is closed
    /// after a while, and an unread stream is reset. The end and a drain are announced with GOAWAY.
    pub(super) async fn http2<S, A>(
        &self,
        stream: S,
        exchange: ConnectionService<A>,
        tasks: &TaskSpawner,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: ResponseService,
    {
        let streams = StreamSpawner::default();
        exchange
            .place
            .shows(ConnectionActivity::Http2(streams.clone()));
        let mut builder = http2::Builder::new(streams.clone());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(H2_PING_EVERY)
            .keep_alive_timeout(H2_PING_TIMEOUT)
            .max_concurrent_streams(H2_MAX_STREAMS)
            .max_header_list_size(self.header_bytes);
        let reporter = exchange.reporter();
        let note_end = |ended| reporter.ended(ended, ConnectionFailure::of_http2);
        let io = TokioIo::new(ObservedStream::new(
            stream,
            PrefaceDeadline::new(self.header_timeout),
        ));
        let answers = WatchedResponses {
            exchange,
            streams: streams.clone(),
        };
        let mut connection = pin!(builder.serve_connection(io, answers));
        let end = reporter.place.end().clone();
        let patience = || self.h2_patience(&reporter.place);
        let mut watch = pin!(streams.watch(patience));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return note_end(ended),
            () = end.cancelled() => {
                if reporter.place.has_left() {
                    return;
                }
            }
            () = streams.idle(self.idle_timeout) => {}
            () = streams.idle_after_refusal(self.refused_timeout) => {}
            never = watch.as_mut() => match never {},
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = connection => note_end(ended),
            () = tasks.stopping().cancelled() => {}
            () = streams.deserted(patience()) => COUNTERS.connections_stalled.add(1),
            never = watch => match never {},
        }
    }

    /// How long the peer of an HTTP/2 connection may leave an answer unread. A peer without a good token needs no more time
    /// than for a 401, and could otherwise have 256 answers kept on each of its connections.
    fn h2_patience(&self, place: &ConnectionPermit) -> Duration {
        if place.is_of_stranger() {
            return self.refused_timeout.min(self.stall_timeout);
        }
        self.stall_timeout
    }
}

/// A service that answers requests.
pub trait ResponseService:
    Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> ResponseService for S where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// The service of one connection: adds its place, with the client's address, to every request.
#[derive(Debug, Clone)]
pub(super) struct ConnectionService<A> {
    service: A,
    peer: SocketAddr,
    settings: Arc<ConnectionSettings>,
    place: ConnectionPermit,
}

/// Reports how a connection failed.
struct FailureReporter {
    peer: SocketAddr,
    settings: Arc<ConnectionSettings>,
    place: ConnectionPermit,
}

impl FailureReporter {
    fn ended(
        &self,
        ended: hyper::Result<()>,
        cause: impl FnOnce(&hyper::Error) -> Option<ConnectionFailure>,
    ) {
        if let Err(error) = ended
            && let Some(cause) = cause(&error)
        {
            let failures = &self.settings.failures;
            failures.note(self.place.is_client(), cause, self.peer, &error);
        }
    }
}

impl<A> ConnectionService<A> {
    pub(super) fn new(
        service: A,
        peer: SocketAddr,
        settings: Arc<ConnectionSettings>,
        place: ConnectionPermit,
    ) -> Self {
        Self {
            service,
            peer,
            settings,
            place,
        }
    }

    /// The place of the connection.
    pub(super) fn place(&self) -> ConnectionPermit {
        self.place.clone()
    }

    /// The connection ends before it has carried a request.
    pub(super) fn failed(&self, cause: ConnectionFailure, error: &dyn std::error::Error) {
        let failures = &self.settings.failures;
        failures.note(self.place.is_client(), cause, self.peer, error);
    }

    fn reporter(&self) -> FailureReporter {
        FailureReporter {
            peer: self.peer,
            settings: Arc::clone(&self.settings),
            place: self.place.clone(),
        }
    }
}

impl<A: ResponseService> hyper::service::Service<Request<Incoming>> for ConnectionService<A> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = PendingResponse<A::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let proxies = &self.settings.proxies;
        let client = proxies.client(self.peer.ip(), request.headers());
        let place = self.place.of_request(client);
        request.extensions_mut().insert(place);
        let is_trusted = || proxies.trusts(self.peer.ip());
        let tag = RequestTag::of_request(is_trusted, request.headers());
        let settings = (request.version() != Version::HTTP_2).then(|| Arc::clone(&self.settings));
        PendingResponse {
            // `call` without `poll_ready`: both services are always ready, and do no work before their future is
            // polled.
            answer: self.service.clone().call(request),
            settings,
            tag,
        }
    }
}

pin_project! {
    /// An answer, which says its request's id, and during a drain that its connection closes afterwards.
    pub(super) struct PendingResponse<F> {
        #[pin]
        answer: F,
        // Absent for HTTP/2, where GOAWAY says it.
        settings: Option<Arc<ConnectionSettings>>,
        tag: RequestTag,
    }
}

impl<F> Future for PendingResponse<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut answer = ready!(this.tag.within(|| this.answer.poll(cx)));
        if let Ok(response) = &mut answer
            && let Some(id) = this.tag.header()
        {
            response.headers_mut().insert(request_tag::HEADER, id);
        }
        let draining =
            |settings: &Arc<ConnectionSettings>| settings.draining.load(Ordering::Acquire);
        if let Ok(response) = &mut answer
            && this.settings.as_ref().is_some_and(draining)
            && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            // hyper closes the connection after a response with this header. Spec: RFC 9112 §9.6
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        Poll::Ready(answer)
    }
}

/// The same for HTTP/2, where it is watched whether answers are read.
#[derive(Debug, Clone)]
struct WatchedResponses<A> {
    exchange: ConnectionService<A>,
    streams: StreamSpawner,
}

impl<A: ResponseService> hyper::service::Service<Request<Incoming>> for WatchedResponses<A> {
    type Response = Response<WatchedBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let window = self.streams.window();
        let answer = self.exchange.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| WatchedBody::new(body, window))) })
    }
}
