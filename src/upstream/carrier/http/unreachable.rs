//! Why a connection could not be made, for callers and the log: in words that name no address.

use std::error::Error;

use crate::cause::ConnectionFault;

/// Explanation of the first known fault in the chain of `error`.
pub(super) fn reason(error: &(dyn Error + 'static)) -> &'static str {
    match ConnectionFault::of(error) {
        Some(ConnectionFault::Refused) => "the connection was refused",
        Some(ConnectionFault::TimedOut) => "the connection timed out",
        Some(ConnectionFault::NoRoute) => "there is no route to it",
        Some(ConnectionFault::UnknownHost) => "its host name cannot be resolved",
        Some(ConnectionFault::NotTls) => {
            "its port does not speak TLS (is it plain HTTP? then `url` begins with http://)"
        }
        Some(ConnectionFault::Handshake) => "the TLS handshake failed",
        Some(ConnectionFault::UnknownIssuer) => {
            "its certificate is of an unknown issuer (`ca_file` names further ones)"
        }
        Some(ConnectionFault::OtherName) => "its certificate is for another host name",
        Some(ConnectionFault::Expired) => "its certificate has expired",
        Some(ConnectionFault::Authority) => {
            "its certificate is that of an authority, not of a server"
        }
        Some(ConnectionFault::Untrusted) => "its certificate cannot be trusted",
        Some(ConnectionFault::Proxy) => "the forward proxy before it cannot be reached",
        Some(ConnectionFault::ProxyRefused) => "the forward proxy before it opens no way to it",
        Some(ConnectionFault::NoDescriptor) => "the gateway has too many open connections",
        None => "no connection could be made",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use bytes::Bytes;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use crate::config::{HttpCarrier, TransportKind};
    use crate::upstream::carrier::http::client::HttpClient;
    use crate::upstream::carrier::http::message_headers::MessageHeaders;
    use crate::upstream::error::LinkError;

    /// The explanation for an upstream at `url`.
    async fn said(url: &str, ca_file: Option<PathBuf>) -> String {
        let client = HttpClient::new(&HttpCarrier {
            url: url.parse().unwrap(),
            transport: TransportKind::Streamable,
            headers: Vec::new(),
            ca_file,
            proxy: None,
            pool_idle: std::time::Duration::from_secs(4),
        })
        .unwrap();
        let sent = client.post(Bytes::new(), MessageHeaders::default()).await;
        let error = LinkError::from(sent.expect_err("no upstream"));
        error.to_string()
    }

    /// A port without a listener.
    async fn nobody() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_refused_connection_is_not_an_unknown_host() {
        let port = nobody().await;
        for scheme in ["http", "https"] {
            assert_eq!(
                said(&format!("{scheme}://127.0.0.1:{port}/mcp"), None).await,
                "it cannot be reached: the connection was refused"
            );
            assert_eq!(
                said(&format!("{scheme}://no-such-host.invalid/mcp"), None).await,
                "it cannot be reached: its host name cannot be resolved"
            );
        }
    }

    #[tokio::test]
    async fn a_certificate_that_is_not_trusted_is_called_so() {
        let made = |issuer: &str| {
            let key = KeyPair::generate().unwrap();
            let mut wanted = CertificateParams::new(["inner.test".to_owned()]).unwrap();
            wanted.distinguished_name.push(DnType::CommonName, issuer);
            (wanted.self_signed(&key).unwrap(), key)
        };
        let ((own, key), (other, _)) = (made("own"), made("other"));
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, pem: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        let own_file = write("own.pem", own.pem());
        let other_file = write("other.pem", other.pem());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}/mcp",
            listener.local_addr().unwrap().port()
        );
        let serving = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                drop(acceptor.accept(stream).await);
            }
        };
        let asking = async {
            let stranger = said(&url, Some(other_file)).await;
            assert!(stranger.contains("unknown issuer"), "{stranger}");
            let misnamed = said(&url, Some(own_file)).await;
            assert!(misnamed.contains("another host name"), "{misnamed}");
        };
        tokio::select! {
            () = serving => {}
            () = asking => {}
        }
    }
}
