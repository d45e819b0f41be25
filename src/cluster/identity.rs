//! The certificate of a replica, and the verification of its peers' certificates. TLS 1.3 only, both ways.
//!
//! With `cluster.secret` each replica makes a certificate at its start; the peers accept the certificate of the lease record
//! alone, by its digest. With `cluster.tls` certificates are those of the operator's authority.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::generate_simple_self_signed;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, ServerConfig, SignatureScheme, SupportedCipherSuite,
};

use crate::config::{ReplicaTls, ReplicaTrust};

/// Names the exchange of `proof` in the TLS handshake.
pub(super) const PROOF_PROTOCOL: &[u8] = b"drawbridge-proof/1";
/// The name in certificates that replicas make.
const OWN_NAME: &str = "replica.drawbridge.internal";

/// Why a replica has no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// No certificate could be made.
    #[error("the certificate of this replica cannot be made")]
    Made(#[from] rcgen::Error),
    /// A file of `cluster.tls` is no PEM file of its kind.
    #[error("cluster.tls cannot be read")]
    File(#[from] pem::Error),
    /// The certificates cannot be used.
    #[error("the certificates of this replica cannot be used")]
    Unusable(#[from] Error),
    /// The authorities cannot be used.
    #[error("cluster.tls.ca cannot be used")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    /// The internal listener serves already, without TLS.
    #[error("the internal listener serves already: it cannot be given certificates")]
    InUse,
}

/// The certificate of this replica, and the trust in certificates of peers.
#[derive(Debug)]
pub(super) struct ReplicaIdentity {
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// `None`: lease records name the certificates of peers.
    roots: Option<Arc<RootCertStore>>,
}

impl ReplicaIdentity {
    /// Makes a certificate, or reads that of `cluster.tls`.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub(super) fn new(trust: &ReplicaTrust) -> Result<Self, IdentityError> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // What is forwarded is sealed at one replica and opened at another: the suite with the fewest instructions.
        let is_other =
            |suite: &SupportedCipherSuite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256;
        provider.cipher_suites.sort_by_key(is_other);
        let provider = Arc::new(provider);
        let (chain, key, roots) = match trust {
            ReplicaTrust::Secret(_) => made()?,
            ReplicaTrust::Tls(files) => read(files)?,
        };
        Ok(Self {
            provider,
            chain,
            key,
            roots,
        })
    }

    /// What the lease record says of the certificate; `None` where an authority vouches for it.
    pub(super) fn fingerprint(&self) -> Option<String> {
        let own = self.chain.first().filter(|_| self.roots.is_none())?;
        Some(fingerprint(own))
    }

    /// For connections of other replicas, who have to show a certificate and hold its key. Which certificates are
    /// believed is decided after the handshake where lease records name them: looking one up may take a round trip.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub(super) fn server(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        let verifier: Arc<dyn ClientCertVerifier> = match &self.roots {
            Some(roots) => {
                let provider = Arc::clone(&self.provider);
                WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider).build()?
            }
            None => Arc::new(AnyHolder(self.signatures())),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        // A resumed handshake would bring the decision of an earlier one; connections are kept instead.
        config.send_tls13_tickets = 0;
        if self.roots.is_none() {
            // Chosen by those alone that ask for a proof: other replicas name no protocol.
            config.alpn_protocols = vec![PROOF_PROTOCOL.to_vec()];
        }
        Ok(Arc::new(config))
    }

    /// For connections to the replica at `address` with the certificate `fingerprint`, and the name to ask for.
    ///
    /// # Errors
    /// The certificate cannot be used, or `address` names no host.
    pub(super) fn client(
        &self,
        address: &str,
        fingerprint: Option<&str>,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), IdentityError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let builder = if let Some(roots) = &self.roots {
            builder.with_root_certificates(Arc::clone(roots))
        } else {
            let pinned = PinnedCertificate {
                fingerprint: fingerprint.unwrap_or_default().to_owned(),
                signatures: self.signatures(),
            };
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(pinned))
        };
        let mut config = builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.resumption = Resumption::disabled();
        let name = match &self.roots {
            Some(_) => name_of(address)?,
            None => ServerName::try_from(OWN_NAME).map_err(|_| unnamed())?,
        };
        Ok((Arc::new(config), name))
    }

    /// For a connection to a process that is believed only after its proof (`super::proof`), and the name to ask for;
    /// `None` where an authority vouches for certificates.
    pub(super) fn asker(&self) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
        if self.roots.is_some() {
            return None;
        }
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13]);
        let any = Arc::new(AnyHolder(self.signatures()));
        let builder = builder.ok()?.dangerous();
        let builder = builder.with_custom_certificate_verifier(any);
        let config = builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key());
        let mut config = config.ok()?;
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![PROOF_PROTOCOL.to_vec()];
        let name = ServerName::try_from(OWN_NAME).ok()?;
        Some((Arc::new(config), name))
    }

    fn signatures(&self) -> SignatureCheck {
        SignatureCheck(Arc::clone(&self.provider))
    }
}

/// SHA-256 of a certificate, base64url.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, certificate))
}

type Certified = (
    Vec<CertificateDer<'static>>,
    PrivateKeyDer<'static>,
    Option<Arc<RootCertStore>>,
);

fn made() -> Result<Certified, IdentityError> {
    let made = generate_simple_self_signed([OWN_NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![made.cert.der().clone()], key.into(), None))
}

fn read(files: &ReplicaTls) -> Result<Certified, IdentityError> {
    let chain = CertificateDer::pem_file_iter(&files.cert)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&files.key)?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(&files.ca)? {
        roots.add(root?)?;
    }
    Ok((chain, key, Some(Arc::new(roots))))
}

/// The host of `host:port` or `[v6]:port`.
fn name_of(address: &str) -> Result<ServerName<'static>, Error> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok(ServerName::from(ip)),
        Err(_) => ServerName::try_from(host.to_owned()).map_err(|_| unnamed()),
    }
}

fn unnamed() -> Error {
    Error::General("cluster.advertise names no host".to_owned())
}

/// Whether the other side holds the key of the certificate that it shows.
#[derive(Clone)]
struct SignatureCheck(Arc<CryptoProvider>);

impl fmt::Debug for SignatureCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignatureCheck")
    }
}

/// The methods of a verifier that check signatures, by the `SignatureCheck` in a field.
macro_rules! checks_signatures {
    ($field:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.$field.0.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.$field.0.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            let algorithms = &self.$field.0.signature_verification_algorithms;
            algorithms.supported_schemes()
        }
    };
}

/// Believes one certificate.
#[derive(Debug)]
struct PinnedCertificate {
    fingerprint: String,
    signatures: SignatureCheck,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(certificate) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    checks_signatures!(signatures);
}

/// Accepts any certificate whose key the peer holds.
#[derive(Debug)]
struct AnyHolder(SignatureCheck);

impl ClientCertVerifier for AnyHolder {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    checks_signatures!(0);
}

impl ServerCertVerifier for AnyHolder {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    checks_signatures!(0);
}

#[cfg(test)]
mod tests;
