//! How connections of a pool are made: directly or through a forward proxy, with TLS or without.

use std::sync::Arc;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

use super::PoolError;
use super::stream::Socket;

/// The way to one upstream.
#[derive(Debug, Clone)]
pub(in crate::upstream::carrier::http) struct Dial {
    route: Route,
    tls: Option<Tls>,
}

/// The route of the TCP connection.
#[derive(Debug, Clone)]
pub(in crate::upstream::carrier::http) enum Route {
    /// Straight to the upstream.
    Direct(HttpConnector),
    /// Through a forward proxy.
    Proxied(Tunnel<HttpConnector>),
}

#[derive(Debug, Clone)]
struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Dial {
    /// Connections in the clear.
    pub(in crate::upstream::carrier::http) fn plain(route: Route) -> Self {
        Self { route, tls: None }
    }

    /// Connections over TLS, to a server that proves to be `name`.
    pub(in crate::upstream::carrier::http) fn tls(
        route: Route,
        config: ClientConfig,
        name: ServerName<'static>,
    ) -> Self {
        let config = Arc::new(config);
        Self {
            route,
            tls: Some(Tls { config, name }),
        }
    }

    /// Connects to `origin`.
    pub(super) async fn connect(&self, origin: &Uri) -> Result<Socket, PoolError> {
        let tcp = self.route.connect(origin.clone()).await?;
        let Some(Tls { config, name }) = &self.tls else {
            return Ok(Socket::Plain(tcp));
        };
        TlsConnector::from(Arc::clone(config))
            .connect(name.clone(), tcp)
            .await
            .map(|tls| Socket::Tls(Box::new(tls)))
            .map_err(|error| PoolError::Connect(error.into()))
    }
}

impl Route {
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
