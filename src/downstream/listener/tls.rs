//! Certificates, and the protocol that a client chose.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config;

/// Why `server.tls` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds no PEM of the right kind.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not fit, or are of an unknown kind.
    #[error("cannot use the certificate of server.tls")]
    Unusable(#[from] rustls::Error),
}

/// Offers HTTP/2 and HTTP/1.1 under the configured certificate. Needs an installed rustls provider.
pub(super) fn acceptor(files: &config::Tls) -> Result<TlsAcceptor, TlsError> {
    let fail = |path: &PathBuf| {
        let path = path.clone();
        move |source| TlsError::File { path, source }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(fail(&files.cert))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(fail(&files.key))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whether ALPN ended with HTTP/2; without ALPN it is HTTP/1.1.
pub(super) fn chose_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}
