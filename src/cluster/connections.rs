//! Connections to one other replica: HTTP/1.1 over TLS 1.3, one exchange at a time on each, idle ones kept.
//!
//! A connection that is dropped in the middle of an exchange is closed, which is how the other replica learns that the
//! client has gone. The other replica closes a connection in order (`close_notify` of TLS) only while no request on it has
//! begun and is without an answer. A process that is killed sends no `close_notify`.

use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::AbortOnDropHandle;

use super::failure::ForwardFailure;
use crate::lock::lock;
use crate::runtime::lifecycle::TaskSpawner;

/// For TCP and TLS: a living replica is not silent for so long.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Idle connections that are kept.
const MAX_IDLE: usize = 64;
/// How long they are kept: shorter than the other side does.
const IDLE: Duration = Duration::from_secs(30);
/// For a connection whose last exchange has just ended.
const READY_WITHIN: Duration = Duration::from_millis(10);
/// A peer that vanished without a word is noticed after so long without an acknowledgement.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Before the first probe of a quiet connection, and between two.
const PROBE: Duration = Duration::from_secs(3);
/// Of the buffers of a connection, which hold a head.
const MAX_BUFFER: usize = 256 * 1024;

/// A request's body on its way to another replica.
pub type ForwardedBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Told whether a request is on its way to another replica: from then on the line of the request is that one's.
pub type OnWay<'a> = dyn Fn(bool) + Send + Sync + 'a;

/// Connections to one replica.
#[derive(Debug)]
pub(super) struct PeerConnections {
    address: String,
    tls: (Arc<ClientConfig>, ServerName<'static>),
    idle: Mutex<Vec<(PeerConnection, Instant)>>,
    /// Cancelled when the replica counts as gone.
    gone: CancellationToken,
}

/// One connection without an exchange. Dropped, it is closed.
#[derive(Debug)]
struct PeerConnection {
    sender: SendRequest<ForwardedBody>,
    _close: AbortOnDropHandle<()>,
}

impl PeerConnections {
    pub(super) fn new(address: String, tls: (Arc<ClientConfig>, ServerName<'static>)) -> Self {
        Self {
            address,
            tls,
            idle: Mutex::default(),
            gone: CancellationToken::new(),
        }
    }

    /// Ends what is under way: the replica counts as gone.
    pub(super) fn give_up(&self) {
        self.gone.cancel();
        lock(&self.idle).clear();
    }

    /// Whether the replica counts as gone.
    pub(super) fn is_given_up(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Sends a request and waits for the head of its answer, however long that takes; the body follows by itself. The
    /// request is given back where it was not sent, as where `lapsed` is ready before there is a connection. `on_way` is
    /// told when it may be read by the other replica, and when it was not after all.
    ///
    /// # Errors
    /// See [`ForwardFailure`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection: the other replica sees its client leave.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<ForwardedBody>,
        tasks: &TaskSpawner,
        on_way: &OnWay<'_>,
        lapsed: impl Future<Output = ()>,
    ) -> Result<Response<ForwardedAnswer>, (ForwardFailure, Option<Request<ForwardedBody>>)> {
        let mut lapsed = pin!(lapsed);
        loop {
            if self.is_given_up() {
                return Err((ForwardFailure::NoReplica, Some(request)));
            }
            let (mut connection, is_reused) = if let Some(connection) = self.idle().await {
                (connection, true)
            } else {
                let connected = tokio::select! {
                    connected = self.connect(tasks) => connected,
                    () = &mut lapsed => Err(ForwardFailure::Silent),
                };
                match connected {
                    Ok(connection) => (connection, false),
                    Err(failure) => return Err((failure, Some(request))),
                }
            };
            on_way(true);
            let answer = tokio::select! {
                biased;
                answer = connection.sender.try_send_request(request) => answer,
                () = self.gone.cancelled() => return Err((ForwardFailure::Gone, None)),
            };
            match answer {
                Ok(response) => return Ok(self.answer(response, connection)),
                Err(mut error) => {
                    let unsent = error.take_message();
                    let is_begun = unsent.is_none() && !error.error().is_incomplete_message();
                    on_way(is_begun);
                    match unsent {
                        // The peer closed the idle connection.
                        Some(unsent) if is_reused => request = unsent,
                        Some(unsent) => {
                            let error = io::Error::other(error.into_error());
                            return Err((ForwardFailure::Unreachable(error), Some(unsent)));
                        }
                        None if is_begun => {
                            return Err((ForwardFailure::Broken(error.into_error()), None));
                        }
                        None => return Err((ForwardFailure::Closed, None)),
                    }
                }
            }
        }
    }

    fn answer(
        self: &Arc<Self>,
        response: Response<Incoming>,
        connection: PeerConnection,
    ) -> Response<ForwardedAnswer> {
        response.map(|body| ForwardedAnswer {
            body,
            gone: None,
            rest: Some((connection, Arc::clone(self))),
        })
    }

    /// An idle connection that is still open.
    async fn idle(&self) -> Option<PeerConnection> {
        loop {
            let (mut connection, since) = lock(&self.idle).pop()?;
            if since.elapsed() > IDLE {
                continue;
            }
            // At the end of an exchange its connection becomes ready a moment later.
            if let Ok(Ok(())) = timeout(READY_WITHIN, connection.sender.ready()).await {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: PeerConnection) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE && !self.gone.is_cancelled() {
            idle.push((connection, Instant::now()));
        }
    }

    async fn connect(&self, tasks: &TaskSpawner) -> Result<PeerConnection, ForwardFailure> {
        let connected = timeout(CONNECT_WITHIN, self.handshake()).await;
        let (sender, connection) = connected.map_err(|_| ForwardFailure::Silent)??;
        let close = tasks.spawn_owned(async move {
            // How it ended, its exchange is told.
            drop(connection.await);
        });
        Ok(PeerConnection {
            sender,
            _close: close,
        })
    }

    async fn handshake(&self) -> Result<HttpHandshake, ForwardFailure> {
        let stream = TcpStream::connect(&self.address)
            .await
            .map_err(ForwardFailure::Unreachable)?;
        watch(&stream).map_err(ForwardFailure::Unreachable)?;
        let (config, name) = &self.tls;
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name.clone(), stream).await;
        let stream = stream.map_err(ForwardFailure::Unreachable)?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_BUFFER);
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        handshake.map_err(ForwardFailure::Broken)
    }
}

type HttpHandshake = (
    SendRequest<ForwardedBody>,
    http1::Connection<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>, ForwardedBody>,
);

/// Notices a peer that vanished: streams may be quiet for long.
fn watch(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    let probes = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE);
    socket.set_tcp_keepalive(&probes)
}

/// The body of an answer from another replica. At its end the connection is kept for the next exchange; dropped before,
/// it closes the connection.
#[derive(Debug)]
pub struct ForwardedAnswer {
    body: Incoming,
    /// Ready when the replica counts as gone: made where the body is waited for.
    gone: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    rest: Option<(PeerConnection, Arc<PeerConnections>)>,
}

impl ForwardedAnswer {
    /// Gives the connection back.
    fn end(&mut self) {
        if let Some((connection, peer)) = self.rest.take() {
            peer.keep(connection);
        }
    }
}

impl Body for ForwardedAnswer {
    type Data = Bytes;
    type Error = ForwardFailure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ForwardFailure>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if frame.is_none() || this.body.is_end_stream() {
                this.end();
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(ForwardFailure::Broken)));
        }
        let Some((_, peer)) = &this.rest else {
            return Poll::Pending;
        };
        let gone = this
            .gone
            .get_or_insert_with(|| Box::pin(peer.gone.clone().cancelled_owned()));
        ready!(gone.as_mut().poll(cx));
        this.rest = None;
        Poll::Ready(Some(Err(ForwardFailure::Gone)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ForwardedAnswer {
    fn drop(&mut self) {
        // hyper does not poll a body again that is at its end.
        if self.body.is_end_stream() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::{BodyExt as _, Empty};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::cluster::fixtures::identity;
    use crate::cluster::identity::ReplicaIdentity;

    /// Connections to the replica at `address`, which has this identity.
    fn connections(address: String, identity: &ReplicaIdentity) -> Arc<PeerConnections> {
        let fingerprint = identity.fingerprint();
        let tls = identity.client(&address, fingerprint.as_deref()).unwrap();
        Arc::new(PeerConnections::new(address, tls))
    }

    fn request() -> Request<ForwardedBody> {
        let body = Empty::<Bytes>::new().map_err(|never| match never {});
        Request::new(body.boxed_unsync())
    }

    #[tokio::test]
    async fn request_that_was_not_sent_to_a_lost_replica_has_not_run() {
        let connections = connections("127.0.0.1:9".to_owned(), &identity());
        connections.give_up();
        let (tasks, pending) = (TaskSpawner::new(), std::future::pending());
        let sent = connections.send(request(), &tasks, &|_| {}, pending);
        let (failure, unsent) = sent.await.unwrap_err();
        assert!(unsent.is_some());
        assert!(!failure.is_uncertain(), "{failure:?}");
    }

    /// Accepts one connection, and answers `answered` requests on it. Reads one more, and closes the connection.
    async fn serve(
        listener: TcpListener,
        acceptor: TlsAcceptor,
        answered: usize,
        ends_in_order: bool,
    ) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        for left in (0..=answered).rev() {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            if left > 0 {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        }
        if ends_in_order {
            stream.shutdown().await.unwrap();
        }
    }

    /// How the last of several requests fails, and whether it counts as on its way then.
    async fn failure_after(answered: usize, ends_in_order: bool) -> (ForwardFailure, bool) {
        let identity = identity();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let acceptor = TlsAcceptor::from(identity.server().unwrap());
        let connections = connections(listener.local_addr().unwrap().to_string(), &identity);
        let tasks = TaskSpawner::new();
        let is_on_way = AtomicBool::new(false);
        let on_way = |is| is_on_way.store(is, Ordering::Relaxed);
        let sending = async {
            for _ in 0..answered {
                let sent = connections.send(request(), &tasks, &on_way, std::future::pending());
                sent.await.unwrap();
            }
            let sent = connections.send(request(), &tasks, &on_way, std::future::pending());
            sent.await.unwrap_err()
        };
        let serving = serve(listener, acceptor, answered, ends_in_order);
        let ((failure, unsent), ()) = tokio::join!(sending, serving);
        assert!(unsent.is_none(), "it was sent");
        (failure, is_on_way.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn request_has_not_run_where_the_replica_ends_the_connection_in_order() {
        for answered in [0, 1] {
            let (failure, is_on_way) = failure_after(answered, true).await;
            assert!(!failure.is_uncertain() && !is_on_way, "{failure:?}");
            // As a process ends that is killed.
            let (failure, is_on_way) = failure_after(answered, false).await;
            assert!(failure.is_uncertain() && is_on_way, "{failure:?}");
        }
    }
}
