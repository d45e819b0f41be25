//! HTTP clients of one upstream: our own pool for HTTP/1.1, hyper's for HTTP/2 and
//! upgrades. Spec: DESIGN §6; SPEC U-11.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri, Version};
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use super::body::UpstreamBody;
use super::client_error::ClientError;
use super::exchange_error::ExchangeError;
use super::h2_clients::{AT_ONCE, ClientSet};
use super::pool::{self, ConnectionPool, KeepRule, TcpRoute, UpstreamDial};
use crate::config::{HttpCarrier, TransportKind};
use crate::egress;
use crate::ownership::Fence;

/// How long a TCP connect may take.
const CONNECT: Duration = Duration::from_secs(10);
/// TCP keep-alive of a silent connection: the time before the first probe, the time between probes, and the number of
/// unanswered probes after which it is closed. A stream may be silent for hours.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// How long the other end may leave bytes of ours unacknowledged. Keep-alive probes are not sent
/// meanwhile, and the kernel's own limit is a quarter of an hour.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// The same for the shared connections of HTTP/2, where a dead one would fail every call: pinged after
/// this much silence, and given up without an answer after as much again.
const PING: Duration = Duration::from_secs(20);

/// HTTP/2 flow-control window of one exchange. The window of the connection is a multiple, so that exchanges waiting
/// for room in the byte budget do not block the others.
const STREAM_WINDOW: u32 = 256 << 10;

/// How requests reach one upstream.
#[derive(Debug)]
pub(super) enum ClientChoice {
    /// HTTP/1.1, as nothing can negotiate more.
    Pooled(ConnectionPool),
    /// Over TLS, which negotiates the version.
    Negotiated {
        lanes: Box<HyperClients>,
        pool: ConnectionPool,
        /// Whether the upstream speaks HTTP/1.1. Set by its answers.
        is_http1: AtomicBool,
    },
    /// HTTP/1.1 that may be upgraded, which the pool cannot.
    Upgraded(Box<HyperClients>),
}

/// hyper's clients.
#[derive(Debug, Clone)]
pub(super) enum HyperClients {
    Direct(ClientSet<HttpsConnector<HttpConnector>>),
    Proxied(ClientSet<HttpsConnector<Tunnel<HttpConnector>>>),
}

/// The client for one request.
#[derive(Debug)]
pub(super) enum ClientGrant<'a> {
    /// Takes requests in origin form that name their host.
    Pool(&'a ConnectionPool),
    /// Takes requests in absolute form.
    Shared(&'a HyperClients),
}

impl ClientChoice {
    /// The way to the upstream that `carrier` describes.
    ///
    /// # Errors
    /// [`ClientError`] when the configuration cannot be used.
    pub(super) fn new(carrier: &HttpCarrier, uri: &Uri) -> Result<Self, ClientError> {
        let route = route(carrier)?;
        let keep = KeepRule {
            unnamed: carrier.pool_idle,
        };
        let pool = |dial| ConnectionPool::new(dial, uri.clone(), pool::SIZE, keep);
        if upgrades(carrier) {
            return Ok(Self::Upgraded(Box::new(HyperClients::new(carrier, route)?)));
        }
        if carrier.url.scheme() == "http" {
            return Ok(Self::Pooled(pool(UpstreamDial::plain(route))));
        }
        let mut tls = tls_config(carrier)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let dial = UpstreamDial::tls(route.clone(), tls, server_name(uri)?);
        Ok(Self::Negotiated {
            pool: pool(dial),
            lanes: Box::new(HyperClients::new(carrier, route)?),
            is_http1: AtomicBool::new(false),
        })
    }

    /// The client for the next request.
    pub(super) fn carry(&self) -> ClientGrant<'_> {
        match self {
            Self::Pooled(pool) => ClientGrant::Pool(pool),
            Self::Negotiated { pool, is_http1, .. } if is_http1.load(Ordering::Relaxed) => {
                ClientGrant::Pool(pool)
            }
            Self::Negotiated { lanes, .. } | Self::Upgraded(lanes) => ClientGrant::Shared(lanes),
        }
    }

    /// Notes the HTTP version of the upstream, by the outcome of a request.
    pub(super) fn note(&self, outcome: &Result<Response<UpstreamBody>, ExchangeError>) {
        let Self::Negotiated { is_http1, .. } = self else {
            return;
        };
        match outcome {
            Ok(answer) if answer.version() < Version::HTTP_2 => {
                is_http1.store(true, Ordering::Relaxed);
            }
            // The upstream may have been upgraded to HTTP/2 only.
            Err(error) if error.is_connect() => is_http1.store(false, Ordering::Relaxed),
            Ok(_) | Err(_) => {}
        }
    }
}

impl HyperClients {
    fn new(carrier: &HttpCarrier, route: TcpRoute) -> Result<Self, ClientError> {
        Ok(match route {
            TcpRoute::Direct(tcp) => {
                Self::Direct(ClientSet::new(builder(), connector(carrier, tcp)?))
            }
            TcpRoute::Proxied(tunnel) => {
                Self::Proxied(ClientSet::new(builder(), connector(carrier, tunnel)?))
            }
        })
    }
}

impl ClientGrant<'_> {
    /// Sends a request, unless `fence` closes while a connection of the pool is made.
    pub(super) async fn send(
        self,
        request: Request<Full<Bytes>>,
        fence: &Fence,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        Ok(match self {
            Self::Pool(pool) => pool.send(request, fence).await?.map(UpstreamBody::Plain),
            Self::Shared(HyperClients::Direct(lanes)) => lanes.send(request).await?,
            Self::Shared(HyperClients::Proxied(lanes)) => lanes.send(request).await?,
        })
    }
}

fn route(carrier: &HttpCarrier) -> Result<TcpRoute, ClientError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(PROBE_AFTER));
    tcp.set_keepalive_interval(Some(PROBE_EVERY));
    tcp.set_keepalive_retries(Some(PROBES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    Ok(match &carrier.proxy {
        None => TcpRoute::Direct(tcp),
        Some(proxy) => TcpRoute::Proxied(Tunnel::new(proxy.as_str().parse()?, tcp)),
    })
}

/// TLS over `inner` where the URL asks for it.
fn connector<H>(carrier: &HttpCarrier, inner: H) -> Result<HttpsConnector<H>, ClientError> {
    let builder = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls_config(carrier)?)
        .https_or_http()
        .enable_http1();
    // Upgrades exist in HTTP/1.1 only.
    Ok(if upgrades(carrier) {
        builder.wrap_connector(inner)
    } else {
        builder.enable_http2().wrap_connector(inner)
    })
}

fn upgrades(carrier: &HttpCarrier) -> bool {
    carrier.transport == TransportKind::WebSocket
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut pool = Client::builder(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(pool::LONGEST)
        .pool_max_idle_per_host(pool::SIZE)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(STREAM_WINDOW * AT_ONCE)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING);
    pool
}

/// The name that the certificate of the upstream must have.
fn server_name(uri: &Uri) -> Result<ServerName<'static>, ClientError> {
    let host = uri.host().ok_or(ClientError::Host)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| ClientError::Host)
}

fn tls_config(carrier: &HttpCarrier) -> Result<ClientConfig, ClientError> {
    if carrier.ca_file.is_none() && carrier.url.scheme() == "https" {
        return Ok(egress::system_trust().map_err(io::Error::other)?);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let Some(path) = &carrier.ca_file else {
        // Never used, since redirects are not followed: the authorities of the system need not be read.
        let none = rustls::RootCertStore::empty();
        return Ok(builder.with_root_certificates(none).with_no_client_auth());
    };
    let bad = |error: &dyn std::fmt::Display| ClientError::TrustAnchors(error.to_string());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&error))?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
