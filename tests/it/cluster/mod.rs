//! Several gateways as one: their shared Redis, their leases, and forwarded requests.

mod adoption;
mod cut_off;
mod entry;
mod failover;
mod fenced;
mod forwarding;
mod gap;
mod hand_over;
mod implicit;
mod internal;
mod kills;
mod list_notices;
mod lost_owner;
mod lost_tasks;
mod made_again;
mod membership;
mod new_keys;
mod passed_calls;
mod quotas;
mod redis_client;
mod resumed_calls;
mod rolling;
mod secrets;
mod sockets;
mod stopping;
mod trouble;

use crate::harness::redis::RedisServer;
use crate::harness::{Gateway, Setup, eventually};

/// The secrets of a cluster.
const SECRET: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
/// Tables that make a gateway a replica, with more lines of `[cluster]`.
fn tables(redis: &RedisServer, secret: &str, more: &str) -> String {
    format!(
        "[keys]\nseal = [{{ id = \"k1\", key = \"{SECRET}\" }}]\n[cluster]\nredis = \"{}\"\n\
         listen = \"127.0.0.1:0\"\nsecret = \"{secret}\"\n{more}\n",
        redis.url()
    )
}

/// A replica with the stub upstream `stub`, without authentication.
fn replica(redis: &RedisServer) -> Setup {
    replica_with(redis, "")
}

/// The same with more lines of `[cluster]`.
fn replica_with(redis: &RedisServer, more: &str) -> Setup {
    Setup::open()
        .toml(&tables(redis, SECRET, more))
        .stub("stub", &[])
}

/// Two replicas that know each other.
async fn pair(make: impl Fn() -> Setup) -> [Gateway; 2] {
    let both = [make().start().await, make().start().await];
    for gateway in &both {
        knows(gateway, 2).await;
    }
    both
}

/// Waits until a replica knows that there are `count`.
async fn knows(gateway: &Gateway, count: u32) {
    eventually("replicas know each other", async || {
        let known = gateway.metric("drawbridge_cluster_replicas", "").await;
        ((known - f64::from(count)).abs() < 0.5).then_some(())
    })
    .await;
}

/// Requests that a replica has forwarded, with any outcome.
async fn forwards(gateway: &Gateway, labels: &str) -> f64 {
    let name = "drawbridge_cluster_forward_duration_seconds_count";
    gateway.metric(name, labels).await
}
