//! Certificates that are replaced while the listener runs.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use super::*;

/// The certificate that a handshake shows.
async fn shown(running: &Running, client: &ClientConfig) -> Vec<u8> {
    let mut client = client.clone();
    // Any certificate is accepted: the test compares it.
    client
        .dangerous()
        .set_certificate_verifier(Arc::new(AnyCertificate));
    let stream = handshake(running, client, "http/1.1").await;
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_restart() {
    let (running, client, folder) = start_tls(|_| ());
    let first = shown(&running, &client).await;
    let renewed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let refused = COUNTERS.certificates_refused.get();
    // Beside the old key it cannot be used.
    std::fs::write(folder.path().join("cert.pem"), renewed.cert.pem()).unwrap();
    while COUNTERS.certificates_refused.get() == refused {
        tokio::task::yield_now().await;
    }
    assert_eq!(shown(&running, &client).await, first);
    let key = renewed.signing_key.serialize_pem();
    std::fs::write(folder.path().join("key.pem"), key).unwrap();
    let replaced = async { while shown(&running, &client).await == first {} };
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, replaced).await.unwrap();
    assert_eq!(shown(&running, &client).await, renewed.cert.der().to_vec());
}
