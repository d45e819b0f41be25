//! Leases, who is a member, and what `/status` says.

use drawbridge::redis_client::cmd;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{SECRET, forwards, knows, pair, replica, replica_with, tables};
use crate::harness::redis;
use crate::harness::session::text_of;
use crate::harness::{Gateway, Setup, eventually};

async fn status(gateway: &Gateway) -> Value {
    let (_, text) = gateway.admin_text("/status").await.unwrap();
    let status: Value = serde_json::from_str(&text).unwrap();
    status["cluster"].clone()
}

fn said(gateway: &Gateway, message: &str) -> Option<Value> {
    let records = gateway.log_records();
    records.into_iter().find(|one| one["message"] == message)
}

#[tokio::test]
async fn status_lists_the_replicas() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let cluster = status(&one).await;
    assert_eq!(cluster["redis"], true, "{cluster}");
    assert!(cluster["lease_ms"].as_u64().unwrap() > 0, "{cluster}");
    let replicas = cluster["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 2, "{cluster}");
    assert_eq!(replicas[0]["self"], true);
    assert_eq!(replicas[0]["node"], cluster["node"]);
    let other = status(&two).await;
    assert_eq!(replicas[1]["node"], other["node"]);
    assert_eq!(replicas[1]["version"], env!("CARGO_PKG_VERSION"));
    // A stop gives the lease up: nothing runs out.
    two.stop().await;
    knows(&one, 1).await;
    one.stop().await;
}

#[tokio::test]
async fn replicas_with_one_file_have_the_same_configuration() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let both = pair(|| replica(&redis)).await;
    let differing = Setup::open()
        .server("drain = \"9s\"")
        .toml(&tables(&redis, SECRET, ""))
        .stub("stub", &[]);
    for gateway in &both {
        let others = gateway.metric("drawbridge_cluster_other_configurations", "");
        assert!(others.await < 0.5);
        let line = said(gateway, "replica has another configuration");
        assert_eq!(line, None);
    }
    let third = differing.start().await;
    knows(&third, 3).await;
    let others = third.metric("drawbridge_cluster_other_configurations", "");
    assert!((others.await - 2.0).abs() < 0.5);
    for gateway in both {
        gateway.stop().await;
    }
    third.stop().await;
}

#[tokio::test]
async fn traffic_with_redis_is_counted() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let one = replica(&redis).start().await;
    let user = one.anonymous().open("/mcp/stub").await;
    // Long enough to be answered as a stream, whose events are logged.
    user.text("sleep", json!({"ms": 600})).await;
    for (name, labels) in [
        ("drawbridge_redis_sent_bytes_total", ""),
        ("drawbridge_redis_received_bytes_total", ""),
        ("drawbridge_events_logged_total", ""),
        ("drawbridge_events_logged_size_bytes_total", ""),
        ("drawbridge_rates_borrowed_total", "lent"),
    ] {
        eventually(name, async || {
            (one.metric(name, labels).await > 0.5).then_some(())
        })
        .await;
    }
    one.stop().await;
}

#[tokio::test]
async fn gateway_without_a_cluster_says_nothing_of_one() {
    let gw = Setup::open().stub("stub", &[]).start().await;
    assert_eq!(status(&gw).await, Value::Null);
    gw.stop().await;
}

#[tokio::test]
async fn replica_with_another_secret_is_no_member() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let one = replica(&redis).start().await;
    let other = SECRET.replace('0', "9");
    let setup = Setup::open().toml(&tables(&redis, &other, ""));
    let two = setup.stub("stub", &[]).start().await;
    for gateway in [&one, &two] {
        eventually("the record is refused", async || {
            let refused = gateway.metric("drawbridge_cluster_records_refused_total", "");
            (refused.await > 0.5).then_some(())
        })
        .await;
        assert_eq!(
            status(gateway).await["replicas"].as_array().unwrap().len(),
            1
        );
    }
    // The sealing keys are the same, so that the handle opens: its owner is not believed to be one.
    let here = one.anonymous().open("/mcp/stub").await;
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let answer = here.at(two.anonymous()).post(&ping).await;
    assert_eq!(answer.status(), 503);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn stranger_gets_no_answer_from_the_internal_listener() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let one = replica(&redis).start().await;
    let cluster = status(&one).await;
    let address = cluster["replicas"][0]["address"].as_str().unwrap();
    let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = b"GET /drawbridge/replica HTTP/1.1\r\nhost: a\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut plain, request)
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    one.stop().await;
}

#[tokio::test]
async fn replica_that_does_not_reach_itself_says_so() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let nowhere = format!("advertise = \"127.0.0.1:{}\"", redis::free_port());
    let setup = Setup::open().toml(&tables(&redis, SECRET, &nowhere));
    let gw = setup.stub("stub", &[]).start().await;
    let line = eventually("the line", async || {
        said(&gw, "replica does not reach itself")
    })
    .await;
    assert!(line.to_string().contains("cluster.advertise"), "{line}");
    gw.stop().await;
}

#[tokio::test]
async fn restarted_empty_redis_is_joined_again() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica(&redis)).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    there.text("echo", json!({"text": "a"})).await;
    redis.kill();
    eventually("the lease is over", async || {
        let cluster = status(&two).await;
        (cluster["lease_ms"] == 0).then_some(())
    })
    .await;
    // What is known is used: calls do not need Redis.
    assert_eq!(there.text("echo", json!({"text": "b"})).await, "b");
    redis.start().await;
    for gateway in [&one, &two] {
        let line = "replica had lost its lease and has it again";
        eventually(line, async || said(gateway, line)).await;
        knows(gateway, 2).await;
    }
    assert_eq!(there.text("echo", json!({"text": "c"})).await, "c");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn replica_starts_while_redis_is_away() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    redis.kill();
    let gw = replica(&redis).start().await;
    let session = gw.anonymous().open("/mcp/stub").await;
    session.text("echo", json!({"text": "a"})).await;
    redis.start().await;
    eventually("it has a lease", async || {
        let cluster = status(&gw).await;
        (cluster["lease_ms"].as_u64() > Some(0)).then_some(())
    })
    .await;
    session.text("echo", json!({"text": "b"})).await;
    gw.stop().await;
}

#[tokio::test]
async fn replica_whose_number_another_one_has_ends() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let mut one = replica(&redis).start().await;
    let cluster = status(&one).await;
    let node = u32::from_str_radix(cluster["node"].as_str().unwrap(), 16).unwrap();
    let mut set = cmd("SET");
    set.arg(format!("drawbridge:{{replicas}}:lease:{node}"));
    set.arg("another").arg("PX").arg(60_000);
    let client = redis.client().await;
    client.command::<()>("set", &set).await.unwrap();
    assert_eq!(one.exit().await, Some(1), "a supervisor starts it again");
    let line = said(&one, "this process ends: another replica has its number");
    assert_eq!(line.unwrap()["level"], "ERROR");
}

#[tokio::test]
async fn stopped_replica_lapses_and_comes_back() {
    let Some(redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"2s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    assert_eq!(there.text("echo", json!({"text": "a"})).await, "a");
    one.signal(Signal::STOP);
    knows(&two, 1).await;
    one.signal(Signal::CONT);
    knows(&two, 2).await;
    // No request for the session has come meanwhile.
    assert_eq!(there.text("echo", json!({"text": "b"})).await, "b");
    assert!(forwards(&two, "").await > 1.5);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn outage_longer_than_a_lease_drops_no_replica() {
    let Some(mut redis) = redis::server(&[]).await else {
        return;
    };
    let [one, two] = pair(|| replica_with(&redis, "lease = \"3s\"")).await;
    let here = one.anonymous().open("/mcp/stub").await;
    let there = here.at(two.anonymous());
    let (_, call) = there.start_call("sleep", json!({"ms": 15_000})).await;
    redis.kill();
    eventually("the lease is over", async || {
        let cluster = status(&two).await;
        (cluster["lease_ms"] == 0).then_some(())
    })
    .await;
    // The owner of the session is late to come back.
    one.signal(Signal::STOP);
    redis.start().await;
    let client = redis.client().await;
    let mut index = cmd("ZCARD");
    index.arg("drawbridge:{replicas}:index");
    let beaten = async || {
        let name = "drawbridge_redis_command_duration_seconds_count";
        two.metric(name, "heartbeat").await
    };
    eventually("the other one is back", async || {
        let known: u32 = client.command("index", &index).await.unwrap();
        (known == 1).then_some(())
    })
    .await;
    let before = beaten().await;
    eventually("two more heartbeats", async || {
        (beaten().await > before + 1.5).then_some(())
    })
    .await;
    knows(&two, 1).await;
    one.signal(Signal::CONT);
    knows(&two, 2).await;
    let (_, reply) = call.finish().await;
    assert_eq!(text_of(&reply.unwrap()), "slept");
    one.stop().await;
    two.stop().await;
}
