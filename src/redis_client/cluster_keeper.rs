//! The connection to a Cluster over time. The crate follows slots that move, but goes on asking a node that is silent,
//! and does not notice that a master has restarted.

use std::time::Duration;

use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::cmd;
use tokio::time::{sleep, timeout};

use super::connect::{ANSWER_WITHIN, RedisConnector, RedisLink, masters};
use super::link::SharedLink;
use super::server_runs::ServerRuns;
use crate::telemetry::chain::chain;

/// How often masters are asked for their run ids.
const LOOK: Duration = Duration::from_secs(5);
/// The longest pause between two replacements of the connection.
const REPLACE_PAUSE: Duration = Duration::from_secs(3);

/// Keeps the present connection of `shared` until no master can be reached. One silent node is no reason to give it up:
/// a further connection, which knows who has the slots of that node now, takes its place meanwhile.
pub(super) async fn keep(
    connector: &RedisConnector,
    shared: &SharedLink,
    mut link: ClusterConnection,
    runs: &mut ServerRuns,
) {
    loop {
        let is_doubted = timeout(LOOK, shared.until_doubted()).await.is_ok();
        let infos = if is_doubted {
            match connector.connect().await {
                Ok((RedisLink::Cluster(further), infos)) => {
                    tracing::debug!("connection to the Redis Cluster replaced: a node is silent");
                    shared.replace(RedisLink::Cluster(further.clone()));
                    link = further;
                    infos
                }
                Ok((RedisLink::Single(_), _)) => Vec::new(),
                Err(failure) => {
                    if !answers(&mut link).await {
                        return shared.give_up_present();
                    }
                    tracing::debug!(error = chain(&failure), "no further connection to Redis");
                    Vec::new()
                }
            }
        } else {
            masters(&mut link).await
        };
        if runs.learn(&infos) {
            shared.tell(runs);
        }
        if is_doubted {
            sleep(REPLACE_PAUSE.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }
}

/// Whether any master answers.
async fn answers(link: &mut ClusterConnection) -> bool {
    let one = Some(ResponsePolicy::OneSucceeded);
    let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, one));
    let asked = timeout(ANSWER_WITHIN, link.route_command(cmd("PING"), all)).await;
    matches!(asked, Ok(Ok(_)))
}
