//! TLS of a listener: towards clients, or towards other replicas.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::tls::ShownCertificate;
use crate::cluster::{Cluster, IdentityError};

/// The TLS of a listener.
#[derive(Debug)]
pub(super) enum ListenerTls {
    /// Towards clients, who show no certificate.
    Clients(ShownCertificate),
    /// Towards other replicas.
    Replicas(ReplicaTls),
}

/// The TLS of the internal listener.
#[derive(Debug)]
pub(super) struct ReplicaTls {
    config: Arc<ServerConfig>,
    cluster: Arc<Cluster>,
}

impl ReplicaTls {
    /// Needs the identity of the replica.
    ///
    /// # Errors
    /// Its certificate cannot be used.
    pub(super) fn new(cluster: Arc<Cluster>) -> Result<Self, IdentityError> {
        let config = cluster.tls()?;
        Ok(Self { config, cluster })
    }
}

impl ListenerTls {
    /// For one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        match self {
            Self::Clients(shown) => shown.acceptor(),
            Self::Replicas(replicas) => TlsAcceptor::from(Arc::clone(&replicas.config)),
        }
    }

    /// Answers a peer that asks for a proof that this process is a replica. `None` if the peer does not ask, else whether it
    /// got the proof.
    pub(super) async fn prove(&self, stream: &mut TlsStream<TcpStream>) -> Option<bool> {
        match self {
            Self::Replicas(replicas) if Cluster::is_asked_for_proof(stream.get_ref().1) => {
                Some(replicas.cluster.prove(stream).await)
            }
            Self::Clients(_) | Self::Replicas(_) => None,
        }
    }

    /// Whether the other side may send requests; looks a replica up that is not known yet.
    pub(super) async fn admits(&self, stream: &TlsStream<TcpStream>) -> bool {
        match self {
            Self::Clients(_) => true,
            Self::Replicas(replicas) => {
                let shown = stream.get_ref().1.peer_certificates();
                replicas.cluster.admits(shown).await
            }
        }
    }
}
