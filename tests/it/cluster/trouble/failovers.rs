//! Masters that die and come back while users call: behind sentinels, and of a Cluster. Over TLS, with an ACL user of one
//! prefix.

use drawbridge::redis_client::cmd;

use super::super::failover::{self, USER};
use super::{LEASE, OUTAGE, REPLICAS, World, rounds};
use crate::harness::eventually;
use crate::harness::redis::{self, RedisServer, RedisTls};
use crate::harness::upstream::HttpStub;

/// Waits until a server says of its replication all of `words`.
async fn says(server: &RedisServer, words: &[&str]) {
    let mut info = cmd("INFO");
    info.arg("replication");
    eventually(&format!("a server says {words:?}"), async || {
        let client = server.client().await;
        let text: String = client.command("info", &info).await.ok()?;
        words.iter().all(|word| text.contains(word)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn failover_of_sentinels_fails_no_call() {
    let tls = RedisTls::new();
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let arguments = [&USER[..], &at_once].concat();
    let Some(master) = redis::server_over_tls(&tls, &arguments).await else {
        return;
    };
    let port = master.port.to_string();
    let arguments = [&USER[..], &at_once, &["--replicaof", "127.0.0.1", &port]].concat();
    let copy = redis::server_over_tls(&tls, &arguments).await.unwrap();
    says(&master, &["state=online"]).await;
    let sentinels = failover::sentinels(&master, &tls).await;
    let hosts = sentinels
        .iter()
        .map(|one| format!("127.0.0.1:{}", one.port));
    let places = format!(
        "rediss+sentinel://{}/main",
        hosts.collect::<Vec<_>>().join(",")
    );
    let stub = HttpStub::start(&[]).await;
    let setups = (0..REPLICAS).map(|_| failover::replica(&places, &tls, &stub));
    let world = World::start(setups.collect()).await;
    let mut servers = [master, copy];
    for _ in 0..rounds() {
        let failover = async {
            servers[0].kill();
            says(&servers[1], &["role:master"]).await;
            tokio::time::sleep(2 * LEASE).await;
            servers[0].start().await;
            // It follows the new master now.
            says(&servers[1], &["state=online"]).await;
        };
        world.load.during(failover).await;
        world.recovered(&servers[1..]).await;
        // The former copy is the next one to be killed.
        servers.reverse();
    }
    world.served_on().await;
    world.end(100).await;
}

#[tokio::test]
async fn master_of_a_cluster_that_dies_fails_no_call() {
    let tls = RedisTls::new();
    let Some(mut cluster) = redis::cluster_with(3, Some(&tls), &USER).await else {
        return;
    };
    let nodes = cluster.nodes.iter();
    let hosts = nodes.map(|one| format!("127.0.0.1:{}", one.port));
    let places = format!("rediss+cluster://{}", hosts.collect::<Vec<_>>().join(","));
    let stub = HttpStub::start(&[]).await;
    let setups = (0..REPLICAS).map(|_| failover::replica(&places, &tls, &stub));
    let world = World::start(setups.collect()).await;
    // First the master with the leases, then one without.
    let leases = cluster.place_of("drawbridge:{replicas}:index").await;
    for round in 0..rounds().max(2) {
        let gone = (leases + round) % 3;
        let outage = async {
            cluster.nodes[gone].kill();
            tokio::time::sleep(OUTAGE).await;
            cluster.nodes[gone].start().await;
            tokio::time::sleep(2 * LEASE).await;
        };
        world.load.during(outage).await;
        world.recovered(&cluster.nodes).await;
    }
    world.served_on().await;
    world.end(100).await;
}
