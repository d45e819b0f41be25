//! The greeting by which a replica is recognised.

use serde::{Deserialize, Serialize};

/// The path of the greeting.
pub const REPLICA_PATH: &str = "/drawbridge/replica";

/// What a replica says at [`REPLICA_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaGreeting {
    /// Its number.
    pub node: u32,
    /// Its release.
    pub version: String,
    /// Milliseconds left of its lease.
    pub lease_ms: u64,
}
