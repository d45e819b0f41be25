//! Heartbeats that are answered while other replicas prove themselves.

use super::*;
use crate::cluster::fixtures::{identity, record};
use crate::config::redis_url;
use crate::runtime::lifecycle::TaskSpawner;
use crate::secret::Secret;

/// The replica with the number 1. Nothing listens where its Redis should be.
fn membership() -> Membership {
    let config = redis_url::parse("redis://127.0.0.1:1").unwrap();
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
