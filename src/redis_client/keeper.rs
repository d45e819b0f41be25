//! The task that keeps the connection.

use std::sync::Arc;
use std::time::Duration;

use super::cluster_keeper;
use super::connect::{RedisConnector, RedisLink};
use super::link::SharedLink;
use super::server_info::ServerInfo;
use super::server_runs::ServerRuns;
use crate::sync::backoff::Backoff;
use crate::telemetry::chain::chain;
use crate::telemetry::metrics::{COUNTERS, GAUGES};

/// After the first failed attempt; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects, and connects again whenever the connection breaks; never returns.
pub(super) async fn keep(connector: RedisConnector, shared: Arc<SharedLink>) {
    // Replicas that lose the same server do not come back at the same moment.
    let mut backoff = Backoff::with_jitter(FIRST_PAUSE, LONGEST_PAUSE, 0.5..1.0);
    let mut is_down = false;
    let mut runs = ServerRuns::default();
    loop {
        match connector.connect().await {
            Ok((link, infos)) => {
                report(&infos);
                runs.learn(&infos);
                shared.publish(link.clone(), &runs);
                GAUGES.redis_connected.set(1);
                tracing::info!(after_outage = is_down, "Redis connected");
                backoff.reset();
                is_down = false;
                match link {
                    RedisLink::Single(_) => {}
                    RedisLink::Cluster(link) => {
                        cluster_keeper::keep(&connector, &shared, link, &mut runs).await;
                    }
                }
                shared.until_broken().await;
                GAUGES.redis_connected.set(0);
                COUNTERS.redis_connections_lost.add(1);
                tracing::warn!("connection to Redis lost");
            }
            Err(failure) => {
                COUNTERS.redis_connects_failed.add(1);
                if !std::mem::replace(&mut is_down, true) {
                    tracing::warn!(
                        nodes = connector.nodes(),
                        error = chain(&failure),
                        remedy = failure.remedy(),
                        "Redis cannot be reached"
                    );
                }
            }
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// Says when Redis is set to throw away what sessions need.
fn report(infos: &[ServerInfo]) {
    let policy = infos.iter().find_map(ServerInfo::evicting_policy);
    GAUGES.redis_evicting.set(i64::from(policy.is_some()));
    if let Some(policy) = policy {
        tracing::error!(
            policy,
            remedy = "set maxmemory-policy noeviction",
            "Redis evicts keys when its memory is full: sessions would be lost"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::time::timeout;

    use super::*;
    use crate::config::redis_url;
    use crate::telemetry::captured::LogCapture;

    #[tokio::test]
    async fn unreachable_redis_is_named_with_a_remedy() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let config = redis_url::parse(&format!("redis://:hunter2@127.0.0.1:{port}")).unwrap();
        let connector = RedisConnector::new(&config).unwrap();
        let caught = LogCapture::begin();
        let logged = async {
            while caught.of_level("WARN").is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let kept = Box::pin(keep(connector, Arc::new(SharedLink::new("test", 1))));
        let first = timeout(Duration::from_secs(10), async {
            tokio::select! {
                () = kept => {}
                () = logged => {}
            }
        });
        first.await.expect("a line");
        let line = caught.of_level("WARN").remove(0);
        assert_eq!(line["nodes"], format!("127.0.0.1:{port}"));
        let remedy = line["remedy"].as_str().unwrap();
        assert!(remedy.contains("cluster.redis"), "{line}");
        assert!(!line.to_string().contains("hunter2"), "{line}");
    }
}
