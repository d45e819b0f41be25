//! Certificates, their renewal, and the protocol that a client chose.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::expiry::not_after;
use crate::cause::chain;
use crate::config;
use crate::lock::lock;
use crate::telemetry::metrics::{COUNTERS, LEVELS};

/// No chain and no key is as large.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Why `server.tls` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file holds no PEM of the right kind.
    #[error("cannot read {path}: {source}")]
    Pem {
        /// Which file.
        path: PathBuf,
        /// The parser's error.
        source: Error,
    },
    /// Certificate and key do not fit, or are of an unknown kind.
    #[error("cannot use the certificate of server.tls")]
    Unusable(#[from] rustls::Error),
}

/// The certificate shown in handshakes, and the files with certificate and key.
#[derive(Debug)]
pub(super) struct ShownCertificate {
    files: config::TlsConfig,
    current: Mutex<Arc<ServerConfig>>,
    /// Contents of both files at the last check.
    seen: Mutex<CertificatePair>,
}

/// The bytes of both files.
#[derive(Debug, PartialEq, Eq)]
struct CertificatePair {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl ShownCertificate {
    /// Reads the configured files. Needs an installed rustls provider.
    ///
    /// # Errors
    /// They cannot be read, or used together.
    pub(super) fn load(files: &config::TlsConfig) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::File {
                path: path.clone(),
                source,
            })
        };
        let pair = CertificatePair {
            cert: read(&files.cert)?,
            key: read(&files.key)?,
        };
        Ok(Self {
            current: Mutex::new(pair.server(files)?),
            files: files.clone(),
            seen: Mutex::new(pair),
        })
    }

    /// For one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&lock(&self.current)))
    }

    /// Looks at the files every `server.tls.reload`, for as long as it is polled: handshakes show a
    /// changed certificate from then on.
    pub(super) async fn watch(&self) {
        let mut refused = None;
        loop {
            tokio::time::sleep(self.files.reload).await;
            self.look(&mut refused).await;
        }
    }

    /// Loads changed files; `refused` is the last pair that could not be loaded.
    async fn look(&self, refused: &mut Option<UnusablePair>) {
        let pair = match CertificatePair::read(&self.files).await {
            Ok(pair) => pair,
            Err(error) => return self.refuse(refused, None, &error),
        };
        if *lock(&self.seen) == pair {
            *refused = None;
            return;
        }
        match pair.server(&self.files) {
            Ok(server) => {
                *lock(&self.current) = server;
                *lock(&self.seen) = pair;
                *refused = None;
                tracing::info!(cert = %self.files.cert.display(), "certificate of server.tls replaced");
            }
            Err(error) => self.refuse(refused, Some(pair), &error),
        }
    }

    /// Keeps the certificate in use. The second look that finds the same pair warns, once: between two
    /// writes a new certificate stands beside the old key.
    fn refuse(
        &self,
        refused: &mut Option<UnusablePair>,
        pair: Option<CertificatePair>,
        error: &TlsError,
    ) {
        let before = refused.as_mut().filter(|before| before.pair == pair);
        let Some(before) = before else {
            *refused = Some(UnusablePair { pair, said: false });
            return;
        };
        if !std::mem::replace(&mut before.said, true) {
            COUNTERS.certificates_refused.add(1);
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(
                cert = %self.files.cert.display(), error = chain(&error), cause,
                "changed certificate of server.tls refused, the last good one stays in use"
            );
        }
    }
}

/// A pair that could not be used.
#[derive(Debug)]
struct UnusablePair {
    /// Absent where a file could not be read.
    pair: Option<CertificatePair>,
    /// Whether the refusal was logged.
    said: bool,
}

impl CertificatePair {
    async fn read(files: &config::TlsConfig) -> Result<Self, TlsError> {
        Ok(Self {
            cert: read(&files.cert).await?,
            key: read(&files.key).await?,
        })
    }

    /// Offers HTTP/2 and HTTP/1.1 under this certificate.
    fn server(&self, files: &config::TlsConfig) -> Result<Arc<ServerConfig>, TlsError> {
        let fail = |path: &PathBuf| {
            let path = path.clone();
            move |source| TlsError::Pem { path, source }
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.cert)
            .collect::<Result<_, _>>()
            .map_err(fail(&files.cert))?;
        if chain.is_empty() {
            // rustls would say that the peer sent none.
            return Err(fail(&files.cert)(Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(fail(&files.key))?;
        let expiry = chain.iter().filter_map(|one| not_after(one)).min();
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        if let Some(expiry) = expiry {
            let seconds = i64::try_from(expiry.as_secs()).unwrap_or(i64::MAX);
            LEVELS.certificate_expiry.set("server.tls", seconds);
        }
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = async {
        let mut bytes = Vec::new();
        let file = tokio::fs::File::open(path).await?;
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).await?;
        Ok(bytes)
    };
    read.await.map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

/// Whether ALPN chose HTTP/2; without ALPN the connection is HTTP/1.1.
pub(super) fn chose_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn file_without_a_certificate_is_named() {
        let pair = CertificatePair {
            cert: b"no certificate".to_vec(),
            key: Vec::new(),
        };
        let files = config::TlsConfig {
            cert: "cert.pem".into(),
            key: "key.pem".into(),
            reload: Duration::from_secs(1),
        };
        let error = pair.server(&files).expect_err("a refusal").to_string();
        assert_eq!(error, "cannot read cert.pem: no items found");
    }
}
