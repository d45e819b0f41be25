//! What the tests of several modules here begin with.

use super::identity::ReplicaIdentity;
use super::record::ReplicaRecord;
use crate::config::ReplicaTrust;
use crate::secret::Secret;

/// A replica with a certificate of its own.
pub(super) fn identity() -> ReplicaIdentity {
    ReplicaIdentity::new(&ReplicaTrust::Secret(Secret::new("s"))).unwrap()
}

/// The record of the replica with this number.
pub(super) fn record(node: u32) -> ReplicaRecord {
    ReplicaRecord {
        node,
        address: format!("127.0.0.1:{node}"),
        version: "1".to_owned(),
        config: "c".to_owned(),
        fingerprint: Some(format!("f{node}")),
        started: 1,
        is_draining: false,
    }
}
