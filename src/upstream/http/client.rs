//! The only HTTP client for MCP traffic: pooled, no redirects, no ambient proxy, and requests
//! built from an inclusion list of headers, so that nothing of the caller's leaves by accident.
//! In the clear it uses its own `Pool`, else hyper's, which knows TLS, HTTP/2 and tunnels.
//! Spec: SPEC U-11, A-22; DESIGN §6.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HOST, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::body::UpstreamBody;
use super::lanes::Lanes;
use super::pool::{self, Pool, PoolError};
use super::unreachable;
use crate::config::{HttpCarrier, Transport};

/// How long a TCP connect may take.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection over which nothing comes is asked whether its other end is there: first after this,
/// then this often, and given up after so many questions. A stream may be silent for hours.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// Headers that are put to a request besides those of its message and the configured ones, at most.
const MADE_HERE: usize = 2;

type Direct = Lanes<HttpsConnector<HttpConnector>>;
type Proxied = Lanes<HttpsConnector<Tunnel<HttpConnector>>>;

#[derive(Debug, Clone)]
enum Way {
    /// To a plain-text upstream.
    Plain {
        pool: Pool,
        /// Path and query.
        target: Uri,
    },
    Direct(Direct),
    Proxied(Proxied),
}

/// A client for one upstream.
#[derive(Debug, Clone)]
pub struct HttpClient {
    way: Way,
    uri: Uri,
    fixed: HeaderMap,
}

/// Why no client can be made for an upstream.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("the url cannot be used: {0}")]
    Url(#[from] http::uri::InvalidUri),
    /// A configured header cannot be sent.
    #[error("header {0:?} cannot be sent")]
    Header(String),
    /// The URL names no host.
    #[error("the url names no host")]
    Host,
    /// The trust anchors cannot be read.
    #[error("ca_file cannot be read: {0}")]
    TrustAnchors(String),
    /// No TLS configuration can be made.
    #[error("tls: {0}")]
    Tls(#[from] io::Error),
}

/// Why an exchange failed below HTTP.
#[derive(Debug, thiserror::Error)]
#[error("the connection failed")]
pub struct ExchangeError(#[source] Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Plain(#[from] PoolError),
    #[error(transparent)]
    Hyper(#[from] hyper_util::client::legacy::Error),
}

impl<E: Into<Cause>> From<E> for ExchangeError {
    fn from(cause: E) -> Self {
        Self(cause.into())
    }
}

impl ExchangeError {
    /// Whether the upstream could not be reached at all, so that nothing can have run.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        match &self.0 {
            Cause::Plain(error) => matches!(error, PoolError::Connect(_)),
            Cause::Hyper(error) => error.is_connect(),
        }
    }

    /// Why not, in words that name no address.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        unreachable::reason(self)
    }
}

/// Headers of one message, besides the fixed ones. A list: what is handed through many steps is moved at
/// each of them.
#[derive(Debug, Default, Clone)]
pub struct MessageHeaders(Vec<(HeaderName, HeaderValue)>);

impl MessageHeaders {
    /// How many most messages have at most.
    const USUAL: usize = 8;

    /// These and `value` under `name`, if there is one. Names that repeat stay repeated.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: Option<HeaderValue>) -> Self {
        if let Some(value) = value {
            if self.0.is_empty() {
                self.0.reserve(Self::USUAL);
            }
            self.0.push((name, value));
        }
        self
    }

    /// These and some more.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.0.extend(more);
        self
    }
}

impl HttpClient {
    /// A client for the upstream that `carrier` describes.
    ///
    /// # Errors
    /// [`ClientError`] when the configuration cannot be used.
    pub fn new(carrier: &HttpCarrier) -> Result<Self, ClientError> {
        let mut fixed = HeaderMap::new();
        for (name, value) in &carrier.headers {
            let bad = || ClientError::Header(name.clone());
            let name: HeaderName = name.parse().map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            value.set_sensitive(true);
            fixed.insert(name, value);
        }
        let uri: Uri = carrier.url.as_str().parse()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(PROBE_AFTER));
        tcp.set_keepalive_interval(Some(PROBE_EVERY));
        tcp.set_keepalive_retries(Some(PROBES));
        let way = match &carrier.proxy {
            // Our own pool knows no upgrades.
            None if carrier.url.scheme() == "http" && !upgrades(carrier) => {
                // Set by hyper's client, but not below it; a configured one stands before it.
                fixed.entry(HOST).or_insert(host(&uri)?);
                let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
                Way::Plain {
                    target: target.parse()?,
                    pool: Pool::new(tcp, uri.clone(), pool::SIZE),
                }
            }
            None => Way::Direct(Lanes::new(shared_pool(), connector(carrier, tcp)?)),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.as_str().parse()?, tcp);
                Way::Proxied(Lanes::new(shared_pool(), connector(carrier, tunnel)?))
            }
        };
        Ok(Self { way, uri, fixed })
    }

    /// Where the upstream is.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Posts one JSON-RPC message to another URL of the same origin. Spec: SPEC H-02.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn post_to(
        &self,
        uri: &Uri,
        message: Bytes,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let mut request = self.request(Method::POST, headers, message);
        *request.uri_mut() = match (&self.way, uri.path_and_query()) {
            (Way::Plain { .. }, Some(path)) => Uri::from(path.clone()),
            _ => uri.clone(),
        };
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(request).await
    }

    /// Asks for a WebSocket with this key and subprotocol. Spec: RFC 6455 §4.1.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn upgrade(
        &self,
        key: &str,
        subprotocol: &'static str,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let mut request = self.request(Method::GET, MessageHeaders::default(), Bytes::new());
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        headers.insert(
            SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static(subprotocol),
        );
        if let Ok(key) = HeaderValue::from_str(key) {
            headers.insert(SEC_WEBSOCKET_KEY, key);
        }
        self.send(request).await
    }

    /// Posts one JSON-RPC message. Spec: SPEC U-01.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub fn post(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, ExchangeError>> + Send {
        let mut request = self.request(Method::POST, headers, message);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send(request)
    }

    /// Opens, or resumes, an event stream.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn listen(
        &self,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let mut request = self.request(Method::GET, headers, Bytes::new());
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        self.send(request).await
    }

    /// Ends the upstream session. Spec: SPEC U-04.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn delete(
        &self,
        headers: MessageHeaders,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        self.send(self.request(Method::DELETE, headers, Bytes::new()))
            .await
    }

    fn request(&self, method: Method, own: MessageHeaders, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let uri = match &self.way {
            Way::Plain { target, .. } => target,
            Way::Direct(_) | Way::Proxied(_) => &self.uri,
        };
        *request.uri_mut() = uri.clone();
        let headers = request.headers_mut();
        headers.reserve(own.0.len() + MADE_HERE + self.fixed.len());
        for (name, value) in &self.fixed {
            // What a message says of itself stands in place of what is configured.
            if !own.0.iter().any(|(own, _)| own == name) {
                headers.insert(name, value.clone());
            }
        }
        for (name, value) in own.0 {
            headers.append(name, value);
        }
        request
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        Ok(match &self.way {
            Way::Plain { pool, .. } => pool.send(request).await?.map(UpstreamBody::Plain),
            Way::Direct(lanes) => lanes.send(request).await?,
            Way::Proxied(lanes) => lanes.send(request).await?,
        })
    }
}

/// As hyper's client spells it: user information and the scheme's own port are left out.
fn host(uri: &Uri) -> Result<HeaderValue, ClientError> {
    let authority = uri.authority().ok_or(ClientError::Host)?;
    let host = match authority.port_u16() {
        None | Some(80) => authority.host().to_owned(),
        Some(port) => format!("{}:{port}", authority.host()),
    };
    HeaderValue::from_str(&host).map_err(|_| ClientError::Host)
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
    carrier.transport == Transport::WebSocket
}

fn shared_pool() -> hyper_util::client::legacy::Builder {
    let mut pool = Client::builder(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(pool::IDLE)
        .pool_max_idle_per_host(pool::SIZE);
    pool
}

fn tls_config(carrier: &HttpCarrier) -> Result<rustls::ClientConfig, ClientError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let Some(path) = &carrier.ca_file else {
        if carrier.url.scheme() == "http" {
            // Never used, and the system's anchors take long to read: redirects are not followed.
            let none = rustls::RootCertStore::empty();
            return Ok(builder.with_root_certificates(none).with_no_client_auth());
        }
        let verified = builder
            .try_with_platform_verifier()
            .map_err(io::Error::other)?;
        return Ok(verified.with_no_client_auth());
    };
    let bad = |error: &dyn std::fmt::Display| ClientError::TrustAnchors(error.to_string());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&error))?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
