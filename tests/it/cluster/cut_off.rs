//! Replicas without Redis: all replicas, or one that is cut off while the others reach Redis. Spec: DESIGN §8.1;
//! `docs/adr/0027`.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use drawbridge::redis_client::{RedisClient, cmd};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::adoption::{LEASE, adopted, keeps, over_http, ping, put_state, settled};
use super::{SECRET, knows};
use crate::harness::http::initialize;
use crate::harness::redis::{self, RedisServer, free_port};
use crate::harness::upstream::HttpStub;
use crate::harness::{Gateway, Setup, eventually};

/// A way to a port that can be closed: connections break, and new connections fail.
pub(super) struct Gate {
    pub(super) port: u16,
    is_open: watch::Sender<bool>,
}

impl Gate {
    async fn before(redis: &RedisServer) -> Self {
        Self::to(redis.port).await
    }

    pub(super) async fn to(behind: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_open, opened) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                let mut opened = opened.clone();
                tokio::spawn(async move {
                    let copied = async {
                        let mut other = TcpStream::connect((Ipv4Addr::LOCALHOST, behind)).await?;
                        copy_bidirectional(&mut tcp, &mut other).await
                    };
                    tokio::select! {
                        _ = copied => {}
                        _ = opened.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self { port, is_open }
    }

    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(super) fn close(&self) {
        self.is_open.send_replace(false);
    }
}

/// A replica with these ports of Redis and of its internal listener.
pub(super) fn at(redis: u16, internal: u16, stub: &HttpStub) -> Setup {
    advertised(redis, internal, "", stub)
}

/// The same with more lines of `[cluster]`.
pub(super) fn advertised(redis: u16, internal: u16, more: &str, stub: &HttpStub) -> Setup {
    let tables = format!(
        "[keys]\nseal = [{{ id = \"k1\", key = \"{SECRET}\" }}]\n[cluster]\n\
         redis = \"redis://127.0.0.1:{redis}\"\nlisten = \"127.0.0.1:{internal}\"\n\
         secret = \"{SECRET}\"\nlease = \"2s\"\n{more}\n"
    );
    Setup::open().toml(&tables).http("stub", stub, "")
}

pub(super) async fn fencings(gateway: &Gateway) -> f64 {
    let name = "drawbridge_cluster_fencings_total";
    gateway.metric(name, "").await
}

async fn is_fenced(gateway: &Gateway) {
    eventually("the replica is fenced", async || {
        let now = gateway.metric("drawbridge_cluster_fenced", "").await;
        (fencings(gateway).await > 0.5 && now > 0.5).then_some(())
    })
    .await;
}

/// What a replica says of the cluster.
async fn cluster(gateway: &Gateway) -> Value {
    let (_, text) = gateway.admin_text("/status").await.unwrap();
    let mut status: Value = serde_json::from_str(&text).unwrap();
    status["cluster"].take()
}

/// A replica whose Redis is behind a gate, and a replica beside it. Both know each other.
async fn behind_gate(redis: &RedisServer, stub: &HttpStub) -> (Gate, [Gateway; 2]) {
    let gate = Gate::before(redis).await;
    let one = at(gate.port, 0, stub).start().await;
    let two = over_http(redis, stub).start().await;
    knows(&two, 2).await;
    knows(&one, 2).await;
    (gate, [one, two])
}

/// The number of a replica.
async fn node(gateway: &Gateway) -> u32 {
    let cluster = cluster(gateway).await;
    u32::from_str_radix(cluster["node"].as_str().unwrap(), 16).unwrap()
}

#[tokio::test]
async fn owners_serve_on_while_redis_is_away_for_all() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    redis.kill();
    let until = Instant::now() + 3 * LEASE;
    while Instant::now() < until {
        assert!(keeps(&here).await.contains("kept"));
        assert!(keeps(&there).await.contains("kept"));
    }
    let cut = cluster(&one).await;
    assert_eq!(
        (&cut["lease_ms"], &cut["fenced"]),
        (&json!(0), &json!(false))
    );
    assert!(fencings(&one).await + fencings(&two).await < 0.5);
    redis.start().await;
    let until = Instant::now() + 3 * LEASE;
    while Instant::now() < until {
        assert!(keeps(&there).await.contains("kept"));
    }
    // Whichever is back first leaves the other one a lease to come back.
    assert!(fencings(&one).await + fencings(&two).await < 0.5);
    assert!(adopted(&two).await < 0.5, "it was not adopted");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn owner_that_is_cut_off_loses_its_session_and_leaves_it_alone() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let (gate, [one, two]) = behind_gate(&redis, &stub).await;
    tokio::time::sleep(LEASE).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    assert_eq!(cluster(&one).await["fenced"], false);
    gate.close();
    is_fenced(&one).await;
    assert_eq!(cluster(&one).await["fenced"], true);
    let answer = here.post(&ping()).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.header("retry-after").is_some());
    assert!(keeps(&there).await.contains("kept"), "adopted");
    assert!((adopted(&two).await - 1.0).abs() < 0.5);
    // It still has a link to the session at the upstream.
    one.stop().await;
    assert!(keeps(&there).await.contains("kept"), "not ended there");
    two.stop().await;
}

#[tokio::test]
async fn owner_that_is_cut_off_leaves_the_get_stream_of_its_session() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let (gate, [one, two]) = behind_gate(&redis, &stub).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let listening = here.listen().await;
    stub.heard().await;
    gate.close();
    is_fenced(&one).await;
    eventually("the upstream's GET stream has ended", async || {
        (stub.stats().await["open_get_streams"] == 0).then_some(())
    })
    .await;
    gate.open();
    stub.heard().await;
    drop(listening);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn owner_that_is_cut_off_opens_no_session() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let (gate, [one, two]) = behind_gate(&redis, &stub).await;
    gate.close();
    is_fenced(&one).await;
    let hello = initialize(1, "2025-11-25", &json!({}));
    let refused = one.anonymous().post("/mcp", &[], &hello).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn peer_that_was_cut_off_is_asked_when_it_reaches_redis_alone() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let (gate, other) = (Gate::before(&redis).await, Gate::before(&redis).await);
    let one = at(gate.port, 0, &stub).start().await;
    let two = at(other.port, 0, &stub).start().await;
    knows(&two, 2).await;
    knows(&one, 2).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    other.close();
    knows(&one, 1).await;
    tokio::time::sleep(2 * LEASE).await;
    other.open();
    gate.close();
    is_fenced(&one).await;
    eventually("the session is adopted", async || {
        (there.post(&ping()).await.status() == 200).then_some(())
    })
    .await;
    assert!(keeps(&there).await.contains("kept"));
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn replica_in_place_of_a_known_one_tells_that_it_reaches_redis() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let (gate, internal) = (Gate::before(&redis).await, free_port());
    let one = at(gate.port, 0, &stub).start().await;
    let two = at(redis.port, internal, &stub).start().await;
    knows(&one, 2).await;
    gate.close();
    two.kill().await;
    // The third replica starts after the lease of the first one has ended, so that it never knows the first one.
    tokio::time::sleep(LEASE).await;
    let three = at(redis.port, internal, &stub).start().await;
    is_fenced(&one).await;
    gate.open();
    eventually("the replica is not fenced any more", async || {
        let now = one.metric("drawbridge_cluster_fenced", "").await;
        (now < 0.5 && cluster(&one).await["fenced"] == false).then_some(())
    })
    .await;
    assert!((fencings(&one).await - 1.0).abs() < 0.5);
    one.stop().await;
    three.stop().await;
}

#[tokio::test]
async fn replica_that_restarted_without_redis_is_believed() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let internal = free_port();
    let one = at(redis.port, 0, &stub).start().await;
    let two = at(redis.port, internal, &stub).start().await;
    knows(&one, 2).await;
    knows(&two, 2).await;
    tokio::time::sleep(LEASE).await;
    let here = one.anonymous().open("/mcp/stub").await;
    put_state(&here).await;
    redis.kill();
    two.kill().await;
    // Its record, and its certificate, are in no Redis.
    let three = at(redis.port, internal, &stub).start().await;
    let there = here.at(three.anonymous());
    let until = Instant::now() + 3 * LEASE;
    while Instant::now() < until {
        assert!(keeps(&here).await.contains("kept"));
    }
    assert!(fencings(&one).await < 0.5, "the owner serves on");
    // Each replica has learnt the address of the other replica.
    assert!(keeps(&there).await.contains("kept"), "passed on");
    redis.start().await;
    let until = Instant::now() + 3 * LEASE;
    while Instant::now() < until {
        assert!(keeps(&there).await.contains("kept"));
    }
    knows(&one, 2).await;
    assert!(fencings(&one).await + fencings(&three).await < 0.5);
    assert!(adopted(&three).await < 0.5, "it was not adopted");
    one.stop().await;
    three.stop().await;
}

#[tokio::test]
async fn owner_that_has_a_lease_again_is_not_succeeded() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let stub = HttpStub::start(&[]).await;
    let [one, two] = settled(|| over_http(&redis, &stub)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    put_state(&here).await;
    let lease = format!("drawbridge:{{replicas}}:lease:{}", node(&one).await);
    let client: RedisClient = redis.client().await;
    one.signal(Signal::STOP);
    let renewed = async {
        eventually("Redis is asked for the lease", async || {
            let name = "drawbridge_redis_command_duration_seconds_count";
            (two.metric(name, "lease_exists").await > 0.5).then_some(())
        })
        .await;
        // While the owner is asked for its word.
        let mut set = cmd("SET");
        set.arg(&lease).arg("renewed").arg("PX").arg(3_000);
        client.command::<()>("set", &set).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        adopted(&two).await
    };
    let request = ping();
    let (adoptions, _) = tokio::join!(renewed, there.post(&request));
    assert!(adoptions < 0.5, "{adoptions}");
    eventually("adopted without it", async || {
        (there.post(&request).await.status() == 200).then_some(())
    })
    .await;
    assert!(keeps(&there).await.contains("kept"));
    two.stop().await;
}
