//! Replicas whose Redis fails over or loses a master, over TLS and with an ACL user of one prefix. Spec: DESIGN §8.1.

use std::path::PathBuf;
use std::sync::Arc;

use drawbridge::redis_client::cmd;
use serde_json::json;

use super::adoption::{adopted, keeps, ping, put_state, settled};
use super::{SECRET, forwards};
use crate::harness::redis::{self, RedisServer, RedisTls};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Session, Setup, eventually};

/// A user for the keys of gateways, as `docs/operations/replicas.md` has it; each server has to know it.
pub(super) const USER: [&str; 9] = [
    "--user",
    "gate",
    "on",
    ">word",
    "~drawbridge:*",
    "+@all",
    "-@admin",
    "-@dangerous",
    "+info",
];

/// A replica that reaches Redis at `places` as that user.
pub(super) fn replica(places: &str, tls: &RedisTls, stub: &HttpStub) -> Setup {
    let (scheme, rest) = places.split_once("://").unwrap();
    let tables = format!(
        "[keys]\nseal = [{{ id = \"k1\", key = \"{SECRET}\" }}]\n[cluster]\n\
         redis = {{ url = \"{scheme}://gate:word@{rest}\", ca = \"{}\" }}\n\
         listen = \"127.0.0.1:0\"\nsecret = \"{SECRET}\"\nlease = \"2s\"\n",
        tls.ca_file().display()
    );
    Setup::open().toml(&tables).http("stub", stub, "")
}

/// Waits until a replica is connected to Redis and has a lease.
async fn leased(gateway: &Gateway) {
    eventually("the replica has a lease", async || {
        let held = gateway.metric("drawbridge_cluster_lease_held", "").await;
        let connected = gateway.metric("drawbridge_redis_connected", "").await;
        (held > 0.5 && connected > 0.5).then_some(())
    })
    .await;
}

/// Waits until a replica has lost a connection to Redis.
async fn cut(gateway: &Gateway) {
    eventually("the connection to Redis is lost", async || {
        let lost = gateway.metric("drawbridge_redis_connections_lost_total", "");
        (lost.await > 0.5).then_some(())
    })
    .await;
}

/// Waits until the servers together have the records of `count` sessions.
pub(super) async fn has_records(servers: &[RedisServer], count: usize) {
    let mut find = cmd("KEYS");
    find.arg("drawbridge:*:record");
    eventually("Redis has the records", async || {
        let mut found = 0;
        for server in servers {
            let keys: Vec<String> = server.client().await.command("keys", &find).await.ok()?;
            found += keys.len();
        }
        (found == count).then_some(())
    })
    .await;
}

/// Waits until a session whose owner is lost is served, with what it had.
async fn is_adopted(user: &Session) {
    eventually("the session is adopted", async || {
        (user.post(&ping()).await.status() == 200).then_some(())
    })
    .await;
    assert!(keeps(user).await.contains("kept"), "adopted");
}

/// Three sentinels that know a master, its replica and each other.
pub(super) async fn sentinels(master: &RedisServer, tls: &Arc<RedisTls>) -> Vec<RedisServer> {
    let mut all = Vec::new();
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..3 {
        let file = master.dir().join(format!("sentinel-{number}.conf"));
        let text = format!(
            "sentinel monitor main 127.0.0.1 {} 2\nsentinel down-after-milliseconds main 1000\n\
             sentinel failover-timeout main 5000\n",
            master.port
        );
        std::fs::write(&file, text).unwrap();
        all.push(redis::sentinel(&file, Some(tls)).await.unwrap());
        files.push(file);
    }
    for file in files {
        eventually("a sentinel knows all", async || {
            let text = std::fs::read_to_string(&file).unwrap();
            let others = text.matches("known-sentinel main").count();
            (others == 2 && text.contains("known-replica main")).then_some(())
        })
        .await;
    }
    all
}

#[tokio::test]
async fn sessions_go_on_over_a_failover_of_sentinels() {
    let tls = RedisTls::new();
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let arguments = [&USER[..], &at_once].concat();
    let Some(mut master) = redis::server_over_tls(&tls, &arguments).await else {
        return;
    };
    let of = ["--replicaof", "127.0.0.1", &master.port.to_string()];
    let arguments = [&USER[..], &of].concat();
    let copy = redis::server_over_tls(&tls, &arguments).await.unwrap();
    let client = master.client().await;
    let mut info = cmd("INFO");
    info.arg("replication");
    eventually("the copy follows", async || {
        let text: String = client.command("info", &info).await.ok()?;
        text.contains("state=online").then_some(())
    })
    .await;
    let sentinels = sentinels(&master, &tls).await;
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|one| format!("127.0.0.1:{}", one.port))
        .collect();
    let places = format!("rediss+sentinel://{}/main", hosts.join(","));
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| replica(&places, &tls, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    master.kill();
    for gateway in [&one, &two] {
        cut(gateway).await;
    }
    assert!(
        keeps(&there).await.contains("kept"),
        "while there is no master"
    );
    for gateway in [&one, &two] {
        leased(gateway).await;
    }
    assert!(keeps(&there).await.contains("kept"), "at the new master");
    has_records(std::slice::from_ref(&copy), 1).await;
    one.kill().await;
    is_adopted(&there).await;
    assert!((adopted(&two).await - 1.0).abs() < 0.5);
    two.stop().await;
}

#[tokio::test]
async fn sessions_go_on_while_a_master_of_a_cluster_is_gone() {
    let tls = RedisTls::new();
    let Some(mut cluster) = redis::cluster_with(3, Some(&tls), &USER).await else {
        return;
    };
    let hosts = cluster
        .nodes
        .iter()
        .map(|one| format!("127.0.0.1:{}", one.port));
    let places = format!("rediss+cluster://{}", hosts.collect::<Vec<_>>().join(","));
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| replica(&places, &tls, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    // Leases are kept in one slot: without its master that is an outage of all.
    let leases = cluster.place_of("drawbridge:{replicas}:index").await;
    let gone = (leases + 1) % 3;
    cluster.nodes[gone].kill();
    let before = forwards(&two, "ok").await;
    for _ in 0..5 {
        assert!(keeps(&there).await.contains("kept"), "passed on");
        let other = two.anonymous().open("/mcp/stub").await;
        assert_eq!(other.text("echo", json!({"text": "new"})).await, "new");
    }
    assert!(forwards(&two, "ok").await > before + 4.5);
    leased(&two).await;
    cluster.nodes[gone].start().await;
    has_records(&cluster.nodes, 1 + 5).await;
    one.kill().await;
    is_adopted(&there).await;
    two.stop().await;
}
