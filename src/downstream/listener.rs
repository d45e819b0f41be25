//! The accept loop: TLS by ALPN, deadlines, the connection cap, the peer's address, the drain.
//!
//! Own code because `axum::serve` installs no timer, so that silent connections live for ever.
//! Plaintext speaks HTTP/1.1 only: with the protocol sniffed, no head deadline would hold.

mod connection;
mod head_clock;
mod overload;
mod place;
mod preface;
mod stall;
mod streams;
mod tls;
mod window;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub use self::connection::Answer;
use self::connection::Protocols;
use self::overload::Overload;
pub(super) use self::place::Place;
use super::peer::{BlockError, TrustedProxies};
use crate::config;
use crate::lifecycle::Tasks;
use crate::telemetry::metrics::COUNTERS;
use crate::workers::Workers;

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
        /// What was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// `server.trusted_proxies` cannot be read.
    #[error(transparent)]
    Proxies(#[from] BlockError),
}

/// A bound socket with everything its connections need.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    settings: Arc<Settings>,
    max_connections: usize,
    /// Whether its connections are those of clients.
    is_public: bool,
}

/// What every connection is given.
struct Settings {
    protocols: Protocols,
    tls: Option<TlsAcceptor>,
    handshake_timeout: Duration,
    proxies: TrustedProxies,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds `settings.listen`; a request head may have `header_bytes`. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The address, the certificate or the list of proxies cannot be used.
    pub fn bind(settings: &config::Server, header_bytes: usize) -> Result<Self, ListenError> {
        let address = settings.listen;
        let fail = |source| ListenError::Bind { address, source };
        let socket = open(address).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        Ok(Self {
            socket,
            address,
            settings: Arc::new(Settings {
                protocols: Protocols::new(settings, header_bytes),
                tls,
                handshake_timeout: settings.handshake_timeout,
                proxies: TrustedProxies::parse(&settings.trusted_proxies)?,
            }),
            max_connections: settings.max_connections,
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

    /// Where we listen; with port 0 configured, the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves `service` until the drain begins, each connection on one of `workers`; connections end
    /// by themselves then (the running exchange is finished), at the latest when everything stops.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket; connections go on.
    pub async fn run<S: Answer>(self, service: S, tasks: Tasks, workers: Workers) {
        let places = Arc::new(Semaphore::new(self.max_connections));
        let overload = Overload::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = tasks.draining().cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            };
            // Replies are written whole; waiting for more would only delay them.
            drop(stream.set_nodelay(true));
            let (Some(place), Some(seat)) = (Place::take(&places, self.is_public), workers.place())
            else {
                COUNTERS.connections_refused.add(u64::from(self.is_public));
                overload.refuse(stream, self.settings.tls.is_some(), &tasks);
                continue;
            };
            // Its events are to come to its worker: they are asked for there anew.
            let Ok(stream) = stream.into_std() else {
                continue;
            };
            let (settings, service) = (Arc::clone(&self.settings), service.clone());
            let (runtime, own) = (seat.runtime().clone(), tasks.clone());
            tasks.spawn_on(&runtime, async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => serve(stream, peer, settings, service, place, own).await,
                    Err(error) => tracing::error!(%error, "a connection cannot be watched"),
                }
                drop(seat);
            });
        }
    }
}

async fn serve<S: Answer>(
    stream: TcpStream,
    peer: SocketAddr,
    settings: Arc<Settings>,
    service: S,
    place: Place,
    tasks: Tasks,
) {
    let exchange = connection::Exchange::new(service, peer.ip(), Arc::clone(&settings), place);
    match &settings.tls {
        None => settings.protocols.http1(stream, exchange, &tasks).await,
        // Larger, and what is plain need not have room for it.
        Some(tls) => Box::pin(serve_tls(stream, tls, peer, &settings, exchange, &tasks)).await,
    }
}

async fn serve_tls<S: Answer>(
    stream: TcpStream,
    tls: &TlsAcceptor,
    peer: SocketAddr,
    settings: &Settings,
    exchange: connection::Exchange<S>,
    tasks: &Tasks,
) {
    let handshake = tokio::time::timeout(settings.handshake_timeout, tls.accept(stream));
    let stream = tokio::select! {
        biased;
        () = tasks.draining().cancelled() => return,
        outcome = handshake => match outcome {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, %peer, "TLS handshake failed"),
            Err(_elapsed) => return tracing::debug!(%peer, "TLS handshake took too long"),
        },
    };
    if tls::chose_http2(&stream) {
        settings.protocols.http2(stream, exchange, tasks).await;
    } else {
        settings.protocols.http1(stream, exchange, tasks).await;
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    // A restart must not wait for old connections to leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Peers that were gone before we looked cost nothing; a shortage needs time to pass.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        return;
    }
    tracing::error!(%error, "cannot accept connections");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
