//! How connections of a pool are made: directly or through a forward proxy, with TLS or without.

use std::sync::Arc;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tower::Service;

use super::PoolError;
use super::stream::PlainOrTls;

/// The way to one upstream.
#[derive(Debug, Clone)]
pub(in crate::upstream::carrier::http) struct UpstreamDial {
    route: TcpRoute,
    tls: Option<DialTls>,
}

/// The route of the TCP connection.
#[derive(Debug, Clone)]
pub(in crate::upstream::carrier::http) enum TcpRoute {
    /// Straight to the upstream.
    Direct(HttpConnector),
    /// Through a forward proxy.
    Proxied(Tunnel<HttpConnector>),
}

#[derive(Debug, Clone)]
struct DialTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl UpstreamDial {
    /// Connections in the clear.
    pub(in crate::upstream::carrier::http) fn plain(route: TcpRoute) -> Self {
        Self { route, tls: None }
    }

    /// Connections over TLS, to a server that proves to be `name`.
    pub(in crate::upstream::carrier::http) fn tls(
        route: TcpRoute,
        config: ClientConfig,
        name: ServerName<'static>,
    ) -> Self {
        let config = Arc::new(config);
        Self {
            route,
            tls: Some(DialTls { config, name }),
        }
    }

    /// Connects to `origin`.
    pub(super) async fn connect(&self, origin: &Uri) -> Result<PlainOrTls, PoolError> {
        let tcp = self.route.connect(origin.clone()).await?;
        let Some(DialTls { config, name }) = &self.tls else {
            return Ok(Either::Left(tcp));
        };
        TlsConnector::from(Arc::clone(config))
            .connect(name.clone(), tcp)
            .await
            .map(|tls| Either::Right(Box::new(tls)))
            .map_err(|error| PoolError::Connect(error.into()))
    }
}

impl TcpRoute {
    async fn connect(&self, origin: Uri) -> Result<TcpStream, PoolError> {
        let connected = match self {
            Self::Direct(tcp) => tcp.clone().call(origin).await.map_err(Into::into),
            Self::Proxied(tunnel) => tunnel.clone().call(origin).await.map_err(Into::into),
        };
        connected
            .map(hyper_util::rt::TokioIo::into_inner)
            .map_err(PoolError::Connect)
    }
}
