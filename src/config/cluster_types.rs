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
    /// The internal listener for other replicas.
    pub listen: SocketAddr,
    /// Host and port of this replica for its peers; absent: derived from `listen`.
    pub advertise: Option<String>,
    /// How replicas authenticate each other.
    pub trust: ReplicaTrust,
    /// Prefix of every key in Redis.
    pub prefix: String,
    /// How long a replica counts as alive after its last heartbeat.
    pub lease: Duration,
}

/// How replicas authenticate each other.
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
    /// Authorities that sign the replicas' certificates.
    pub ca: PathBuf,
    /// Certificate chain of this replica.
    pub cert: PathBuf,
    /// Private key of this replica.
    pub key: PathBuf,
}

/// `cluster.redis`.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// The kind of Redis deployment.
    pub topology: RedisTopology,
    /// Host and port of each node; at least one.
    pub nodes: Vec<(String, u16)>,
    /// Database number; 0 in a Cluster.
    pub database: i64,
    /// The ACL user; absent: `default`.
    pub user: Option<String>,
    /// Password of the ACL user.
    pub password: Option<Secret>,
    /// Whether connections use TLS, those to sentinels included.
    pub tls: bool,
    /// PEM file with authorities for the servers' certificates; absent: those of the system.
    pub ca: Option<PathBuf>,
    /// PEM files with a client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The scheme of `cluster.redis`.
#[derive(Debug, Clone)]
pub enum RedisTopology {
    /// One server.
    Single,
    /// Sentinels, which name the current master.
    Sentinel {
        /// Name of the master at the sentinels.
        master: String,
        /// The password of the sentinels.
        password: Option<Secret>,
    },
    /// Redis Cluster.
    Cluster,
}
