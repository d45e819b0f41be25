//! Heartbeats that are answered while other replicas prove themselves.

use super::*;
use crate::cluster::fixtures::{identity, record};
use crate::config::{RedisConfig, RedisTopology};
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;

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
    let records = RecordSealer::new(Some(&Secret::new("s")), "test");
    let terms = (Duration::from_hours(1), CancellationToken::new());
    Membership::new(redis, Arc::new(identity()), records, record(1), terms).unwrap()
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
