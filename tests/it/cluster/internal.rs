//! The internal listener, as another replica sees it. Spec: DESIGN §8.1.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use super::{SECRET, forwards, pair};
use crate::harness::redis::{self, RedisServer};
use crate::harness::{Gateway, Session, Setup};

/// A certificate that is its own authority, for all replicas of a cluster.
struct ReplicaCertificate {
    dir: tempfile::TempDir,
    client: Arc<ClientConfig>,
}

impl ReplicaCertificate {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let wanted = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = wanted.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let key = key.serialize_der().try_into().unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let client = Arc::new(client);
        Self { dir, client }
    }

    fn replica(&self, redis: &RedisServer) -> Setup {
        let at = |name: &str| Path::join(self.dir.path(), name).display().to_string();
        let (cert, key) = (at("cert.pem"), at("key.pem"));
        let tables = format!(
            "[keys]\nseal = [{{ id = \"k1\", key = \"{SECRET}\" }}]\n[cluster]\nredis = \"{}\"\n\
             listen = \"127.0.0.1:0\"\ntls = {{ ca = {cert:?}, cert = {cert:?}, key = {key:?} }}\n",
            redis.url()
        );
        Setup::open().toml(&tables).stub("stub", &[])
    }

    /// Pings `session` over the internal listener of `gateway`, in a request for `node`; the whole answer.
    async fn ping(&self, gateway: &Gateway, node: u32, session: &Session) -> String {
        let (_, address) = identity(gateway).await;
        let tcp = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::clone(&self.client));
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut tls = connector.connect(name, tcp).await.unwrap();
        let body = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ndrawbridge-for: {node}\r\n\
             content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
             mcp-session-id: {}\r\nmcp-protocol-version: {}\r\ncontent-length: {}\r\n\r\n{body}",
            session.path,
            session.id,
            session.revision,
            body.len()
        );
        tls.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The connection may end without a word of TLS.
        drop(tls.read_to_end(&mut answer).await);
        String::from_utf8(answer).unwrap()
    }
}

/// Number and internal address of a replica.
async fn identity(gateway: &Gateway) -> (u32, String) {
    let (_, text) = gateway.admin_text("/status").await.unwrap();
    let status: Value = serde_json::from_str(&text).unwrap();
    let own = &status["cluster"]["replicas"][0];
    let node = u32::from_str_radix(own["node"].as_str().unwrap(), 16).unwrap();
    (node, own["address"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn forwarded_request_goes_no_further() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let certificate = ReplicaCertificate::new();
    let [one, two] = pair(|| certificate.replica(&redis)).await;
    let (first, second) = (identity(&one).await.0, identity(&two).await.0);
    let here = one.anonymous().open("/mcp/stub").await;
    let owner = certificate.ping(&one, first, &here).await;
    assert!(owner.starts_with("HTTP/1.1 200"), "{owner}");
    // Sent to the wrong replica, which neither answers the request itself nor forwards it.
    let mistaken = certificate.ping(&two, first, &here).await;
    assert!(mistaken.starts_with("HTTP/1.1 421"), "{mistaken}");
    assert!(mistaken.contains("drawbridge-for: other"), "{mistaken}");
    // For this replica, but of a session of another replica.
    let foreign = certificate.ping(&two, second, &here).await;
    assert!(foreign.starts_with("HTTP/1.1 421"), "{foreign}");
    assert!(foreign.contains("drawbridge-for: other"), "{foreign}");
    assert!(forwards(&two, "").await < 0.5, "nothing was forwarded");
    one.stop().await;
    two.stop().await;
}
