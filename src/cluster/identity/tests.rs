use tokio::io::duplex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::cluster::fixtures::identity;

/// Shakes hands; the fingerprint of the client as the server saw it.
async fn meet(
    (client, name): (Arc<ClientConfig>, ServerName<'static>),
    server: Arc<ServerConfig>,
) -> std::io::Result<String> {
    let (near, far) = duplex(64 * 1024);
    let accepted = TlsAcceptor::from(server).accept(far);
    let connected = TlsConnector::from(client).connect(name, near);
    let (accepted, connected) = tokio::join!(accepted, connected);
    connected?;
    let accepted = accepted?;
    let shown = accepted.get_ref().1.peer_certificates().unwrap();
    Ok(fingerprint(&shown[0]))
}

#[tokio::test]
async fn replicas_see_each_others_certificates() {
    let (one, two) = (identity(), identity());
    let client = one.client("127.0.0.1:1", two.fingerprint().as_deref());
    let seen = meet(client.unwrap(), two.server().unwrap()).await.unwrap();
    assert_eq!(Some(seen), one.fingerprint());
    assert_ne!(one.fingerprint(), two.fingerprint());
}

#[tokio::test]
async fn server_with_another_certificate_is_refused() {
    let (one, two, other) = (identity(), identity(), identity());
    let client = one.client("127.0.0.1:1", other.fingerprint().as_deref());
    let refused = meet(client.unwrap(), two.server().unwrap()).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn client_without_a_certificate_is_refused() {
    let two = identity();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let pinned = PinnedCertificate {
        fingerprint: two.fingerprint().unwrap(),
        signatures: SignatureCheck(Arc::clone(&provider)),
    };
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    let name = ServerName::try_from(OWN_NAME).unwrap();
    let refused = meet((Arc::new(client), name), two.server().unwrap()).await;
    assert!(refused.is_err());
}

mod files {
    use std::path::Path;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tempfile::TempDir;

    use super::*;

    /// A directory with an authority and a certificate of it for `name`.
    fn signed(name: &str, authority: &Issuer<'_, KeyPair>, ca: &str) -> (TempDir, ReplicaIdentity) {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, authority).unwrap().pem();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = ReplicaTls {
            ca: write("ca.pem", ca),
            cert: write("cert.pem", &cert),
            key: write("key.pem", &key.serialize_pem()),
        };
        let identity = ReplicaIdentity::new(&ReplicaTrust::Tls(files)).unwrap();
        (dir, identity)
    }

    fn authority() -> (Issuer<'static, KeyPair>, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), pem)
    }

    #[tokio::test]
    async fn authority_and_name_decide() {
        let (ca, pem) = authority();
        let (_one, one) = signed("one.test", &ca, &pem);
        let (_two, two) = signed("two.test", &ca, &pem);
        assert_eq!(one.fingerprint(), None);
        let server = || two.server().unwrap();
        let client = |address| one.client(address, None).unwrap();
        meet(client("two.test:1"), server()).await.unwrap();
        assert!(meet(client("three.test:1"), server()).await.is_err());
        let (other, other_pem) = authority();
        let (_three, three) = signed("one.test", &other, &other_pem);
        let stranger = three.client("two.test:1", None).unwrap();
        assert!(meet(stranger, server()).await.is_err());
    }

    #[test]
    fn missing_file_is_an_error() {
        let gone = Path::new("/nonexistent/file.pem").to_owned();
        let files = ReplicaTls {
            ca: gone.clone(),
            cert: gone.clone(),
            key: gone,
        };
        assert!(ReplicaIdentity::new(&ReplicaTrust::Tls(files)).is_err());
    }
}
