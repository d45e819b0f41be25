//! `[cluster]` as typed values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::secret::Secret;

/// `[cluster]`.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The Redis that all replicas share.
    pub redis: RedisConfig,
    /// Where other replicas reach this one.
    pub listen: SocketAddr,
    /// Host and port of this replica for its peers; absent: derived from `listen`.
    pub advertise: Option<String>,
    /// How replicas know each other.
    pub trust: ReplicaTrust,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// How long a replica counts as alive after its last heartbeat.
    pub lease: Duration,
}

/// The proof by which replicas recognise each other.
#[derive(Debug, Clone)]
pub enum ReplicaTrust {
    /// `cluster.secret`: at least 32 bytes, the same for all replicas.
    Secret(Secret),
    /// `cluster.tls`.
    Tls(ReplicaTls),
}

/// `cluster.tls`: PEM files.
#[derive(Debug, Clone)]
pub struct ReplicaTls {
    /// The authorities that sign the certificates of replicas.
    pub ca: PathBuf,
    /// The chain of this replica.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// `cluster.redis`.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// What kind of Redis is at the nodes.
    pub topology: RedisTopology,
    /// Host and port of each, one at least.
    pub nodes: Vec<(String, u16)>,
    /// Database number; 0 in a Cluster.
    pub database: i64,
    /// The ACL user; absent: `default`.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// Whether connections use TLS, those to sentinels included.
    pub tls: bool,
    /// PEM file with the authorities of the servers; absent: those of the system.
    pub ca: Option<PathBuf>,
    /// PEM files with a certificate of ours and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The scheme of `cluster.redis`.
#[derive(Debug, Clone)]
pub enum RedisTopology {
    /// One server.
    Single,
    /// Sentinels, which name the server.
    Sentinel {
        /// The name of the server at the sentinels.
        master: String,
        /// The password of the sentinels.
        password: Option<Secret>,
    },
    /// Redis Cluster.
    Cluster,
}
