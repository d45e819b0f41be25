//! Servers between the gateway and a remote upstream: TLS, a forward proxy.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{CertificateParams, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;

/// Ends TLS for `localhost` before a port; its certificate is its own authority.
pub(crate) struct TlsFront {
    pub(crate) port: u16,
    directory: tempfile::TempDir,
}

impl TlsFront {
    /// Starts a `TlsFront` before `port`.
    pub(crate) async fn start(port: u16) -> Self {
        Self::speaking(port, &[]).await
    }

    /// Starts a `TlsFront` before `port` that offers HTTP/2.
    pub(crate) async fn over_http2(port: u16) -> Self {
        Self::speaking(port, &["h2"]).await
    }

    async fn speaking(port: u16, protocols: &[&str]) -> Self {
        let wanted = CertificateParams::new(["localhost".to_owned()]).unwrap();
        Self::showing(port, protocols, &wanted).await
    }

    /// Starts a `TlsFront` before `port` with this certificate.
    pub(crate) async fn showing(port: u16, protocols: &[&str], wanted: &CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = wanted.self_signed(&key).unwrap();
        let key = key.serialize_der().try_into().unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap();
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let front = Self { port: 0, directory };
        std::fs::write(front.ca_file(), certificate.pem()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut tls = acceptor.accept(tcp).await?;
                    let mut behind = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                    copy_bidirectional(&mut tls, &mut behind).await
                });
            }
        });
        Self { port: own, ..front }
    }

    /// The CA file for clients, PEM.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }
}

/// A forward proxy that supports only CONNECT.
pub(crate) struct ConnectProxy {
    pub(crate) url: String,
    tunnels: Arc<AtomicUsize>,
}

impl ConnectProxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tunnels = Arc::new(AtomicUsize::new(0));
        let opened = Arc::clone(&tunnels);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(tunnel(tcp, Arc::clone(&opened)));
            }
        });
        Self { url, tunnels }
    }

    /// Tunnels that were opened so far.
    pub(crate) fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed)
    }
}

async fn tunnel(mut tcp: TcpStream, opened: Arc<AtomicUsize>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(target) = head.strip_prefix("CONNECT ") else {
        return tcp
            .write_all(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            .await;
    };
    let target = target.split(' ').next().unwrap_or_default();
    let mut behind = TcpStream::connect(target).await?;
    opened.fetch_add(1, Ordering::Relaxed);
    tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut tcp, &mut behind).await.map(drop)
}
