//! Heartbeats that are answered while other replicas prove themselves.

use super::*;
use crate::config::{RedisConfig, RedisTopology, ReplicaTrust};
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;

fn record(node: u32) -> ReplicaRecord {
    ReplicaRecord {
        node,
        address: format!("127.0.0.1:{node}"),
        version: "1".to_owned(),
        config: "c".to_owned(),
        fingerprint: Some(format!("f{node}")),
        started: 0,
        is_draining: false,
    }
}

/// The replica with the number 1. Nothing listens where its Redis should be.
fn membership() -> Membership {
    let config = RedisConfig {
        topology: RedisTopology::Single,
        nodes: vec![("127.0.0.1".to_owned(), 1)],
        database: 0,
        user: None,
        password: None,
        tls: false,
        ca: None,
        identity: None,
    };
    let redis = RedisClient::start(&config, "test", &TaskSpawner::new()).unwrap();
    let secret = Secret::new("s");
    let records = RecordSealer::new(Some(&secret), "test");
    let identity = Arc::new(ReplicaIdentity::new(&ReplicaTrust::Secret(secret)).unwrap());
    let terms = (Duration::from_hours(1), CancellationToken::new());
    Membership::new(redis, identity, records, record(1), terms).unwrap()
}

#[tokio::test]
async fn replica_that_proves_itself_during_a_heartbeat_is_kept() {
    let (membership, proved) = (membership(), CancellationToken::new());
    let server = RedisServer::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !proved.is_cancelled() {
                membership.learn(std::iter::empty(), &server);
            }
        });
        for node in 2..100 {
            membership.learn_proved(record(node));
        }
        proved.cancel();
    });
    assert_eq!(membership.peers().known().count(), 98);
}
