//! The accept loop: TLS by ALPN, deadlines, the connection cap, the peer's address, the drain.
//!
//! Own code because `axum::serve` installs no timer, so that silent connections live for ever.
//! Plaintext speaks HTTP/1.1 only: with the protocol sniffed, no head deadline would hold.

mod activity;
mod backlog;
mod connection;
mod connection_entry;
mod connection_permit;
mod connection_shares;
mod expiry;
mod failures;
mod h2_stall;
mod head_clock;
mod holding;
mod overload;
mod permit_pool;
mod preface;
mod replica_tls;
mod stall;
mod streams;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(super) use self::connection::H2_MAX_STREAMS;
use self::connection::HttpServers;
pub use self::connection::ResponseService;
pub(super) use self::connection_permit::{ConnectionPermit, TooManyExchanges};
use self::connection_shares::ConnectionShares;
use self::failures::{ConnectionFailure, ConnectionFailures};
pub(super) use self::holding::OpenExchange;
use self::overload::OverloadRefusals;
use self::permit_pool::PermitPool;
use self::replica_tls::{ListenerTls, ReplicaTls};
use self::tls::ShownCertificate;
use super::peer::{BlockError, TrustedProxies};
use crate::cause::chain;
use crate::cluster::{Cluster, IdentityError};
use crate::config;
use crate::runtime::lifecycle::TaskSpawner;
use crate::runtime::workers::Workers;
use crate::telemetry::metrics::COUNTERS;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// After a failed accept that is not the peer's doing (no descriptor, no memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// `server.trusted_proxies` cannot be read.
    #[error(transparent)]
    Proxies(#[from] BlockError),
}

/// A bound address that refuses connections until a [`Listener`] listens on it.
#[derive(Debug)]
pub struct ReservedAddress {
    socket: TcpSocket,
    address: SocketAddr,
}

/// A bound socket with everything its connections need.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    settings: Arc<ConnectionSettings>,
    shares: ConnectionShares,
    /// Whether its connections are those of clients.
    is_public: bool,
}

/// Settings shared by all connections.
struct ConnectionSettings {
    protocols: HttpServers,
    tls: Option<ListenerTls>,
    handshake_timeout: Duration,
    drain_linger: Duration,
    proxies: TrustedProxies,
    /// Set when the drain begins. Every response asks, which in the token would take a lock.
    draining: AtomicBool,
    failures: ConnectionFailures,
}

impl std::fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionSettings")
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl ConnectionSettings {
    /// Waits after a failed accept: peers that were gone before we looked cost nothing, a shortage needs
    /// time to pass.
    async fn pause_after(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(
            error.kind(),
            ConnectionAborted | ConnectionRefused | ConnectionReset
        ) {
            return;
        }
        self.failures.note_accept(error);
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

impl ReservedAddress {
    /// Binds `address`.
    ///
    /// # Errors
    /// The address is taken or not ours.
    pub fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let fail = |source| ListenError::Bind { address, source };
        let socket = bound(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        Ok(Self { socket, address })
    }

    /// The bound address; with port 0, the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Listener {
    /// Binds `settings.listen`; a request head may have `header_bytes`. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The address, the certificate or the list of proxies cannot be used.
    pub fn bind(
        settings: &config::HttpServerConfig,
        header_bytes: usize,
    ) -> Result<Self, ListenError> {
        let reserved = ReservedAddress::bind(settings.listen)?;
        Self::on(reserved, settings, header_bytes)
    }

    /// The same at an address that is bound already.
    ///
    /// # Errors
    /// See [`Self::bind`].
    pub fn on(
        reserved: ReservedAddress,
        settings: &config::HttpServerConfig,
        header_bytes: usize,
    ) -> Result<Self, ListenError> {
        let ReservedAddress { socket, address } = reserved;
        let socket = socket.listen(BACKLOG);
        let socket = socket.map_err(|source| ListenError::Bind { address, source })?;
        let tls = settings
            .tls
            .as_ref()
            .map(ShownCertificate::load)
            .transpose()?
            .map(ListenerTls::Clients);
        Ok(Self {
            socket,
            address,
            settings: Arc::new(ConnectionSettings {
                protocols: HttpServers::new(settings, header_bytes),
                tls,
                handshake_timeout: settings.handshake_timeout,
                drain_linger: settings.drain_linger,
                proxies: TrustedProxies::parse(&settings.trusted_proxies)?,
                draining: AtomicBool::new(false),
                failures: ConnectionFailures::default(),
            }),
            shares: ConnectionShares::new(settings),
            is_public: true,
        })
    }

    /// The same for probes and scrapers: the metrics of connections speak of clients.
    #[must_use]
    pub fn for_operators(self) -> Self {
        Self {
            is_public: false,
            ..self
        }
    }

    /// The same for other replicas, over TLS of their own, whose connections end in order; one that is no replica is closed
    /// before its first request.
    ///
    /// # Errors
    /// The certificate of this replica cannot be used.
    pub fn for_replicas(mut self, cluster: Arc<Cluster>) -> Result<Self, IdentityError> {
        let tls = ListenerTls::Replicas(ReplicaTls::new(cluster)?);
        // Without TLS it must not serve: every connection counts as that of a replica.
        let settings = Arc::get_mut(&mut self.settings).ok_or(IdentityError::InUse)?;
        settings.tls = Some(tls);
        settings.protocols.end_in_order();
        // Replicas say who their client is.
        settings.proxies = TrustedProxies::all();
        Ok(self.for_operators())
    }

    /// The bound address; with port 0 configured, the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves `service`, each connection on one of `workers`, until the drain begins. Then accepts the connections in
    /// the socket's backlog, and ends after `server.drain_linger`. Connections end by themselves: each finishes its
    /// exchange, waits up to `drain_linger` for the next request, and is cut off when the process stops.
    ///
    /// Has to be spawned as a task that the drain waits for.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket; connections go on.
    pub async fn run<S: ResponseService>(self, service: S, tasks: TaskSpawner, workers: Workers) {
        if self.is_public && self.settings.tls.is_some() {
            ConnectionFailures::begin_handshakes();
        }
        let entrance = ConnectionEntrance {
            settings: self.settings,
            pool: Arc::new(PermitPool::new(self.shares, self.is_public)),
            overload: OverloadRefusals::default(),
            is_public: self.is_public,
            service,
            tasks,
            workers,
        };
        let settings = Arc::clone(&entrance.settings);
        entrance.tasks.spawn_service(async move {
            if let Some(ListenerTls::Clients(tls)) = &settings.tls {
                tls.watch().await;
            }
        });
        let draining = entrance.tasks.draining().clone();
        loop {
            let accepted = tokio::select! {
                biased;
                () = draining.cancelled() => break,
                accepted = self.socket.accept() => accepted,
            };
            // Deregister from this runtime: the worker registers the socket with its own reactor.
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => entrance.admit(stream, peer),
                Err(error) => entrance.settings.pause_after(&error).await,
            }
        }
        entrance.settings.draining.store(true, Ordering::Release);
        let stopping = entrance.tasks.stopping().clone();
        let admit = |stream, peer| entrance.admit(stream, peer);
        backlog::empty(self.socket, &entrance.settings, &stopping, admit).await;
    }
}

/// Admits an accepted connection: takes a permit, picks a worker, or refuses.
struct ConnectionEntrance<S> {
    settings: Arc<ConnectionSettings>,
    pool: Arc<PermitPool>,
    overload: OverloadRefusals,
    is_public: bool,
    service: S,
    tasks: TaskSpawner,
    workers: Workers,
}

impl<S: ResponseService> ConnectionEntrance<S> {
    /// Serves a connection on the worker that has the fewest, or refuses it.
    fn admit(&self, stream: std::net::TcpStream, peer: SocketAddr) {
        // Replies are written whole; waiting for more would only delay them.
        drop(SockRef::from(&stream).set_tcp_nodelay(true));
        // A child token has its own lock: connections do not meet in the one of all.
        let end = self.tasks.draining().child_token();
        let is_proxied = self.settings.proxies.trusts(peer.ip());
        let place = self.pool.take(peer.ip(), is_proxied, end);
        let (Some(place), Some(seat)) = (place, self.workers.place()) else {
            COUNTERS.connections_refused.add(u64::from(self.is_public));
            let error = io::Error::other("as many connections as server.max_connections are open");
            self.settings
                .failures
                .note(self.is_public, ConnectionFailure::Full, peer, &error);
            let tls = self.settings.tls.is_some();
            return self.overload.refuse(stream, tls, &self.tasks);
        };
        let (settings, service) = (Arc::clone(&self.settings), self.service.clone());
        let (runtime, tasks) = (seat.runtime().clone(), self.tasks.clone());
        self.tasks.spawn_on(&runtime, async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream, peer, settings, service, place, tasks).await,
                Err(error) => tracing::error!(
                    error = chain(&error),
                    "cannot register connection with reactor"
                ),
            }
            drop(seat);
        });
    }
}

async fn serve<S: ResponseService>(
    stream: TcpStream,
    peer: SocketAddr,
    settings: Arc<ConnectionSettings>,
    service: S,
    place: ConnectionPermit,
    tasks: TaskSpawner,
) {
    let exchange = connection::ConnectionService::new(service, peer, Arc::clone(&settings), place);
    match &settings.tls {
        None => settings.protocols.http1(stream, exchange, &tasks).await,
        // Boxed: the future of a TLS connection is larger, and plain connections need not reserve its size.
        Some(tls) => Box::pin(serve_tls(stream, tls, &settings, exchange, &tasks)).await,
    }
}

async fn serve_tls<S: ResponseService>(
    stream: TcpStream,
    tls: &ListenerTls,
    settings: &ConnectionSettings,
    exchange: connection::ConnectionService<S>,
    tasks: &TaskSpawner,
) {
    let handshake = tokio::time::timeout(settings.handshake_timeout, tls.acceptor().accept(stream));
    let place = exchange.place();
    let lingered = async {
        place.end().cancelled().await;
        if !place.has_left() {
            tokio::time::sleep(settings.drain_linger).await;
        }
    };
    let mut stream = tokio::select! {
        biased;
        () = tasks.stopping().cancelled() => return,
        () = lingered => return,
        outcome = handshake => match outcome {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return exchange.failed(ConnectionFailure::of_handshake(&error), &error),
            Err(elapsed) => return exchange.failed(ConnectionFailure::TlsTimeout, &elapsed),
        },
    };
    if let Some(is_proved) = tls.prove(&mut stream).await {
        // A connection for a proof carries nothing else.
        return COUNTERS
            .cluster_strangers_refused
            .add(u64::from(!is_proved));
    }
    if !tls.admits(&stream).await {
        COUNTERS.cluster_strangers_refused.add(1);
        // In order, as its request has not begun.
        drop(stream.shutdown().await);
        return;
    }
    if tls::chose_http2(&stream) {
        settings.protocols.http2(stream, exchange, tasks).await;
    } else {
        settings.protocols.http1(stream, exchange, tasks).await;
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A restart must not wait for old connections to leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
