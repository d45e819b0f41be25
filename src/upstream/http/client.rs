//! The only HTTP client for MCP traffic: pooled, no redirects, no ambient proxy, and requests
//! built from an inclusion list of headers, so that nothing of the caller's leaves by accident.
//! Spec: SPEC U-11, A-22; DESIGN §6.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::config::HttpCarrier;

/// Idle pooled connections are closed after this.
const POOL_IDLE: Duration = Duration::from_mins(1);
/// Idle connections kept per upstream; more are closed when they become idle.
const POOL_SIZE: usize = 512;
/// How long a TCP connect may take.
const CONNECT: Duration = Duration::from_secs(10);

type Direct = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;
type Proxied = Client<HttpsConnector<Tunnel<HttpConnector>>, Full<Bytes>>;

#[derive(Debug, Clone)]
enum Pool {
    Direct(Direct),
    Proxied(Proxied),
}

/// A client for one upstream.
#[derive(Debug, Clone)]
pub struct HttpClient {
    pool: Pool,
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
pub struct ExchangeError(#[from] hyper_util::client::legacy::Error);

impl ExchangeError {
    /// Whether the upstream could not be reached at all, so that nothing can have run.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        self.0.is_connect()
    }
}

/// Headers of one message, besides the fixed ones.
#[derive(Debug, Default, Clone)]
pub struct MessageHeaders {
    /// `Mcp-Session-Id`
    pub session: Option<HeaderValue>,
    /// `MCP-Protocol-Version`
    pub version: Option<HeaderValue>,
    /// `Last-Event-ID`
    pub last_event: Option<HeaderValue>,
    /// `traceparent`
    pub traceparent: Option<HeaderValue>,
    /// `tracestate`
    pub tracestate: Option<HeaderValue>,
}

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

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
        let tls = tls_config(carrier)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let builder = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .enable_http2();
        let mut pool = Client::builder(TokioExecutor::new());
        pool.pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_SIZE);
        let pool = match &carrier.proxy {
            None => Pool::Direct(pool.build(builder.wrap_connector(tcp))),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.as_str().parse()?, tcp);
                Pool::Proxied(pool.build(builder.wrap_connector(tunnel)))
            }
        };
        Ok(Self {
            pool,
            uri: carrier.url.as_str().parse()?,
            fixed,
        })
    }

    /// Posts one JSON-RPC message. Spec: SPEC U-01.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn post(
        &self,
        message: Bytes,
        headers: MessageHeaders,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let mut request = self.request(Method::POST, headers, message);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        self.send(request).await
    }

    /// Opens, or resumes, an event stream.
    ///
    /// # Errors
    /// [`ExchangeError`] when no response head arrives.
    pub async fn listen(
        &self,
        headers: MessageHeaders,
    ) -> Result<Response<Incoming>, ExchangeError> {
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
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.send(self.request(Method::DELETE, headers, Bytes::new()))
            .await
    }

    fn request(&self, method: Method, own: MessageHeaders, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.reserve(8 + self.fixed.len());
        for (name, value) in &self.fixed {
            headers.insert(name, value.clone());
        }
        let own = [
            (SESSION, own.session),
            (VERSION, own.version),
            (LAST_EVENT, own.last_event),
            (TRACEPARENT, own.traceparent),
            (TRACESTATE, own.tracestate),
        ];
        for (name, value) in own {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        request
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let response = match &self.pool {
            Pool::Direct(client) => client.request(request).await,
            Pool::Proxied(client) => client.request(request).await,
        };
        Ok(response?)
    }
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
